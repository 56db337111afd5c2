"""What the approximate methods share: FedAvg that keeps results of clients, and unlearns after deletions."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from logging import WARNING

from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.supercore import log

from fedforget.errors import LedgerError
from fedforget.seeds import derive_seed
from fedforget.sequential import approximate
from fedforget.sequential.approximate import WHOLE
from fedforget.sequential.modules import PrefixModule
from strategies.fedavg import FedAvg
from strategies.sequential_record import changed
from strategies.sequential_round import Snapshot, requests_of
from strategies.sequential_spool import Request


class Approximate(FedAvg):
    """FedAvg whose repair unlearns. What serves after it may still depend on what was deleted.

    Training is FedAvg's, and what it serves before any deletion is exact. After a deletion nothing
    serves until ``fedforget repair``, which lets the method unlearn; ``fedforget retrain`` begins anew,
    exactly. Parameters as for :class:`strategies.fedsgt.FedSGT`.
    """

    def train_due(self, grid: Grid, timeout: float, rounds: int, result: Result) -> None:
        """Train, where this generation never was; else unlearn what was deleted since."""
        ledger, generation = self.ledger, self.ledger.generation()
        if all(module.generation != generation for module in ledger.modules()):
            super().train_due(grid, timeout, rounds, result)
            return
        if WHOLE in ledger.live_modules() or approximate.serving(self.run.path, ledger):
            return
        try:
            key = ledger.data_key(WHOLE)
        except LedgerError:  # deleted, and not to be repaired yet
            return
        approximate.drop_stale(self.run.path, ledger, self.config.method)
        module = self.unlearn(grid, timeout, Snapshot.of(ledger, self.plan))
        if changed(ledger, WHOLE, key):
            log(WARNING, "\tmore was deleted meanwhile; what was made is dropped")
            return
        approximate.note(self.run.path, ledger, self.config.method, module, key)
        self.trained.append(WHOLE)

    @abstractmethod
    def unlearn(self, grid: Grid, timeout: float, snapshot: Snapshot) -> PrefixModule:
        """Return the module that is to serve now.

        Raises
        ------
        RunError
            A client failed, or none is left that the method could work with.
        """

    def round_of(
        self,
        grid: Grid,
        timeout: float,
        snapshot: Snapshot,
        module: PrefixModule,
        clients: Iterable[str],
        step: int,
        purpose: str,
    ) -> list[Request]:
        """Let some clients train on from a module; their results are then in the spool.

        Parameters
        ----------
        grid, timeout
        snapshot : Snapshot
        module : PrefixModule
            What they begin with.
        clients : iterable of str
        step : int
            Number of the round, from 2: what it draws depends on it.
        purpose : str
            What the draws are for, so that they are not the training's.

        Returns
        -------
        list of Request
            One per client that has data left.
        """
        wanted = set(clients)
        self.outbox.hold(module)
        found = requests_of(self.plan, [WHOLE], snapshot, {WHOLE: module}, step, self.config)
        requests = [
            replace(one, work=replace(one.work, seed=derive_seed(one.work.seed, purpose)))
            for one in found
            if one.client_id in wanted
        ]
        self._exchange.run(grid, requests, snapshot.without, json.dumps([module.sha256]), timeout)
        return requests
