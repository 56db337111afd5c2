"""FedEraser (Liu et al. 2021): approximate unlearning of clients by calibrating stored updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from logging import INFO

from flwr.serverapp import Grid
from flwr.supercore import log
from torch import Tensor

from fedforget.errors import RunError
from fedforget.presets import to_yaml
from fedforget.sequential import approximate
from fedforget.sequential.approximate import WHOLE
from fedforget.sequential.calibration import applied, calibrated, difference
from fedforget.sequential.modules import PrefixModule
from fedforget.sequential.training import initial_seed
from strategies.approximate import Approximate
from strategies.sequential_round import Snapshot
from strategies.sequential_spool import Request


class FedEraser(Approximate):
    """FedAvg that stores clients' updates, and rebuilds the module from those of the others.

    Every ``calibration.interval``-th round's updates U_k are stored. To unlearn clients, the module
    begins again as it did. The first stored updates of the other clients are applied as they are,
    averaged by examples: the initial module owes the forgotten clients nothing. For each stored round
    after it the others train ``calibration.local_epochs`` epochs from the module as rebuilt so far, and
    ``||U_k|| U'_k / ||U'_k||`` of their fresh updates U'_k is applied: direction from the calibration, norm
    from the stored update.

    **Approximate.** The stored norms come from rounds that the forgotten clients shared. The method forgets
    clients: a request for some records removes their client's whole contribution, and what else that client
    holds takes no further part in this generation. With every client named by a request, nothing can
    be rebuilt.

    Two things are assumptions, as no text at hand settles them: norms are taken per tensor, and what is
    rebuilt are the module's tensors (of LoRA its factors), which are what clients send.

    Parameters as for :class:`strategies.fedsgt.FedSGT`; ``initial`` is needed.
    """

    _start: Mapping[str, Tensor]

    def averaged(self, server_round: int, module: PrefixModule, requests: list[Request]) -> None:
        """Store the round's updates, where it is one to be stored."""
        if server_round == 1:
            self._start = self.initial(requests[0].work.init_seed)
        if (server_round - 1) % self.config.calibration.interval == 0:
            folder = approximate.history(self.run.path, self.ledger) / f"round-{server_round:06d}"
            for one in requests:
                update = difference(self.spool.load(one).tensors, self._start)
                PrefixModule(WHOLE, update).save(folder / f"{one.client_id}.safetensors")
        self._start = module.tensors

    def unlearn(self, grid: Grid, timeout: float, snapshot: Snapshot) -> PrefixModule:
        """Rebuild the module from the updates of clients that no request named."""
        named = approximate.hit(self.run.path, self.ledger, self.config.method)
        clients = approximate.retained(self.ledger, named)
        if not clients:
            raise RunError(
                "requests named every client that has data, and federaser rebuilds from the others; "
                "run `fedforget retrain`"
            )
        folders = sorted(approximate.history(self.run.path, self.ledger).glob("round-*"))
        sizes = {name: sum(n for (c, _), n in snapshot.left.items() if c == name) for name in clients}
        module = PrefixModule(WHOLE, self.initial(initial_seed(self.config, self.plan, WHOLE)))
        every: list[Request] = []
        training = replace(self.config.training, local_epochs=self.config.calibration.local_epochs)
        self._exchange.text = to_yaml(replace(self.config, training=training))
        for number, folder in enumerate(folders):
            stored = {name: PrefixModule.load(folder / f"{name}.safetensors").tensors for name in clients}
            if number:
                log(INFO, "[CALIBRATION %d/%d] %d clients", number, len(folders) - 1, len(clients))
                requests = self.round_of(grid, timeout, snapshot, module, clients, number + 1, "calibration")
                every += requests
                for one in requests:
                    fresh = difference(self.spool.load(one).tensors, module.tensors)
                    stored[one.client_id] = calibrated(stored[one.client_id], fresh)
            updates = {name: (sizes[name], stored[name]) for name in clients}
            module = PrefixModule(WHOLE, applied(module.tensors, updates))
        self._exchange.text = to_yaml(self.config)
        self.outbox.drop_held()
        self.spool.remove(every)
        return module
