"""Gradient-ascent unlearning in a federation (Halimi et al. 2022): approximate."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from logging import INFO

from flwr.serverapp import Grid
from flwr.supercore import log

from fedforget.errors import RunError
from fedforget.seeds import derive_seed
from fedforget.sequences.ledger import Ledger
from fedforget.sequential import approximate
from fedforget.sequential import protocol as words
from fedforget.sequential.approximate import WHOLE
from fedforget.sequential.ascent import distance_between
from fedforget.sequential.averaging import FedAvg as Average
from fedforget.sequential.modules import PrefixModule
from fedforget.sequential.plan import SequentialPlan
from fedforget.sequential.protocol import Work
from fedforget.sequential.training import client_seed
from strategies.approximate import Approximate
from strategies.sequential_record import average
from strategies.sequential_round import Snapshot
from strategies.sequential_spool import Request

_DRAWS = 10  # modules that the reference is compared with


class GradientAscent(Approximate):
    """FedAvg whose clients unlearn their own deleted records by projected gradient ascent.

    The reference is the average of the other clients' modules of the last round, which is the served module
    with the client's own part taken out. From there the client raises the loss on the records that it is to
    forget, and is projected back into an l2 ball around the reference whose radius is a third of the
    reference's mean distance to ten freshly drawn modules (or ``ascent.radius``). Then all clients
    train ``ascent.rounds`` rounds on what remains.

    **Approximate.** The other clients' modules were trained from averages that the deleted records took
    part in, and raising a loss is not undoing a training. The published method forgets a client with all
    its data. Here a request may name records: the ascent is on those alone, and what the client keeps
    takes part in the rounds afterwards. Where several clients forget at once, the reference leaves all
    of them out, each ascends from it, and the results are averaged by number of records. Both are choices
    of ours. The published stopping rule, by the distance from the client's own module, is left out;
    ``ascent.epochs`` and the ball bound the ascent.

    Parameters as for :class:`strategies.fedsgt.FedSGT`; ``initial`` is needed for the radius.
    """

    def averaged(self, server_round: int, module: PrefixModule, requests: list[Request]) -> None:
        """Keep what the clients sent in the last round."""
        if server_round == self.config.rounds_per_phase:
            self._keep_last(requests)

    def unlearn(self, grid: Grid, timeout: float, snapshot: Snapshot) -> PrefixModule:
        """Let the clients of new requests ascend, then all train on what remains."""
        wanted = pending(self.ledger, self.plan, approximate.noted(self.run.path).get("requests", ()))
        reference = self._reference(snapshot, wanted)
        module, every = reference, list[Request]()
        if wanted:
            module, every = self._ascend(grid, timeout, reference, wanted)
        clients = approximate.retained(self.ledger, ())
        last: list[Request] = []
        for step in range(self.config.ascent.rounds if clients else 0):
            log(INFO, "[AFTER ASCENT, ROUND %d/%d]", step + 1, self.config.ascent.rounds)
            purpose = f"after ascent {len(self.ledger.requests())}"
            last = self.round_of(grid, timeout, snapshot, module, clients, step + 2, purpose)
            module, _ = average(self.spool, WHOLE, last)
            every += last
        self._keep_last(last)
        self.outbox.drop_held()
        self.spool.remove(every)
        return module

    def _reference(self, snapshot: Snapshot, wanted: Iterable[str]) -> PrefixModule:
        forgetting, total = set(wanted), Average()
        for path in sorted((approximate.history(self.run.path, self.ledger) / "last").glob("*.safetensors")):
            size = sum(n for (client, _), n in snapshot.left.items() if client == path.stem)
            if path.stem not in forgetting and size:
                total.add(path.stem, size, PrefixModule.load(path).tensors)
        if not total.clients:
            raise RunError(
                "no other client's module is left to begin the ascent from; run `fedforget retrain`"
            )
        return PrefixModule(WHOLE, total.result())

    def _ascend(
        self, grid: Grid, timeout: float, reference: PrefixModule, wanted: dict[str, Forgetting]
    ) -> tuple[PrefixModule, list[Request]]:
        root, radius = self.config.seeds.training, self._radius(reference)
        self.outbox.hold(reference)
        requests, further = [], {}
        for name, one in sorted(wanted.items()):
            seed = client_seed(root, self.plan, WHOLE, len(self.ledger.requests()), name)
            work = Work(
                WHOLE, tuple(sorted(one.records)), (), reference.sha256, 0, derive_seed(seed, "ascent")
            )
            asked = json.dumps({"radius": radius, "records": json.loads(words.without_to_json(one.records))})
            further[name] = {words.ASCENT: asked}
            without = f"{words.without_to_json(one.earlier)} {asked}"
            requests.append(Request(name, work, one.examples, without))
        log(INFO, "[ASCENT] %d clients, radius %.4g", len(requests), radius)
        self._exchange.run(
            grid,
            requests,
            {name: one.earlier for name, one in wanted.items()},
            json.dumps([reference.sha256]),
            timeout,
            words.ASCENT_TRAIN,
            further,
        )
        return average(self.spool, WHOLE, requests)[0], requests

    def _radius(self, reference: PrefixModule) -> float:
        if self.config.ascent.radius:
            return self.config.ascent.radius
        names = sorted(reference.tensors)
        centre = [reference.tensors[name] for name in names]
        distances = []
        for i in range(_DRAWS):
            drawn = self.initial(derive_seed(self.config.seeds.training, "ascent", "radius", i))
            distances.append(distance_between(centre, [drawn[name] for name in names]))
        return sum(distances) / _DRAWS / 3.0

    def _keep_last(self, requests: Iterable[Request]) -> None:
        folder = approximate.history(self.run.path, self.ledger) / "last"
        for one in requests:
            self.spool.load(one).save(folder / f"{one.client_id}.safetensors")


@dataclass
class Forgetting:
    """What one client is to forget.

    Attributes
    ----------
    records : dict of int to tuple of str or None
        By slice; None for all that was left of it.
    earlier : dict of int to tuple of str
        What earlier requests deleted of those slices; it is not to be touched again.
    examples : int
        Records to forget.
    """

    records: dict[int, tuple[str, ...] | None] = field(default_factory=dict)
    earlier: dict[int, tuple[str, ...]] = field(default_factory=dict)
    examples: int = 0


def pending(ledger: Ledger, plan: SequentialPlan, done: Iterable[str]) -> dict[str, Forgetting]:
    """Return what clients are to forget: the requests of this generation that were not unlearned yet.

    Parameters
    ----------
    ledger : Ledger
    plan : SequentialPlan
        Of the current generation.
    done : iterable of str
        Ids of requests that were unlearned.
    """
    handled, current = set(done), ledger.generation()
    named: dict[tuple[str, int], set[str] | None] = {}
    before: dict[tuple[str, int], set[str]] = {}
    fewer: dict[tuple[str, int], set[str]] = {}  # of what the slice had when the generation began
    sizes = {item[:2]: item.size for group in plan.groups for item in group}
    for one in ledger.requests():
        fresh = one.outcome.generation == current and one.outcome.request_id not in handled
        slices = [key for key in sizes if key[0] == one.client and one.slice_id in (None, key[1])]
        for key in slices:
            if not fresh:
                before.setdefault(key, set()).update(one.records or ())
                if one.outcome.generation == current:
                    fewer.setdefault(key, set()).update(one.records or ())
            elif one.records is None:
                named[key] = None
            elif (known := named.setdefault(key, set())) is not None:
                known.update(one.records)
    found: dict[str, Forgetting] = {}
    for key, records in sorted(named.items()):
        gone = before.get(key, set())
        count = sizes[key] - len(fewer.get(key, ())) if records is None else len(records - gone)
        if count < 1:
            continue
        client = found.setdefault(key[0], Forgetting())
        client.records[key[1]] = None if records is None else tuple(sorted(records - gone))
        client.earlier[key[1]] = tuple(sorted(gone))
        client.examples += count
    return found
