"""The phase of a FedSGT training that is under way: which modules it trains, and how far they are."""

from __future__ import annotations

import json

from fedforget.sequences.ledger import Ledger
from fedforget.sequential.config import SequentialRunConfig
from fedforget.sequential.modules import PrefixModule
from fedforget.sequential.plan import Prefix, SequentialPlan
from strategies.sequential_record import changed, due
from strategies.sequential_round import Outbox, Snapshot, requests_of
from strategies.sequential_spool import Request


class Phase:
    """All modules of one depth that are due, from what the ledger says at the phase's beginning.

    Parameters
    ----------
    ledger : Ledger
    plan : SequentialPlan
    depth : int
        Of the modules, from 1.
    outbox : Outbox
        Holds the averages between rounds.

    Attributes
    ----------
    keys : dict of prefix to str
        The data key of every module that is trained.
    snapshot : Snapshot
    requests : dict of prefix to list of Request
        What the current round asks for.
    """

    def __init__(self, ledger: Ledger, plan: SequentialPlan, depth: int, outbox: Outbox) -> None:
        self._ledger, self._plan, self._outbox = ledger, plan, outbox
        # Data keys before anything else that the ledger says of the data: a deletion that comes
        # later changes them, and the ledger then refuses the module.
        keys = due(ledger, plan, depth)
        self.snapshot = Snapshot.of(ledger, plan)
        live = self.snapshot.live
        self.keys = {
            prefix: key for prefix, key in keys.items() if all(prefix[:i] in live for i in range(1, depth))
        }
        self.requests: dict[Prefix, list[Request]] = {}
        self._averages: dict[Prefix, PrefixModule] = {}
        outbox.drop_held()  # of a phase that had nothing left to train

    @property
    def asked(self) -> list[Request]:
        """All requests of the current round."""
        return [one for requests in self.requests.values() for one in requests]

    def ask(self, step: int, config: SequentialRunConfig) -> list[Request]:
        """Return the requests of a round, counted from 1; what was deleted meanwhile needs no further one."""
        if step > 1:
            self.keys = {p: key for p, key in self.keys.items() if not changed(self._ledger, p, key)}
        self.requests = {}
        for one in requests_of(self._plan, self.keys, self.snapshot, self._averages, step, config):
            self.requests.setdefault(one.work.prefix, []).append(one)
        return self.asked

    def hold(self, module: PrefixModule) -> None:
        """Keep the average of a round that another one follows."""
        self._averages[module.prefix] = module
        self._outbox.hold(module)

    def end(self) -> None:
        """Let go of what was kept between rounds."""
        self._averages.clear()
        self._outbox.drop_held()

    def cacheable(self) -> str:
        """Return a JSON list of the hashes that clients may keep in their caches."""
        live = {module.sha256 for module in self._ledger.live_modules().values()}
        return json.dumps(sorted(live | {module.sha256 for module in self._averages.values()}))
