"""Seeded streams of deletion requests: who asks to delete what, one request after another.

A stream knows the plan of a FedSGT run, since theory and adversary speak of its groups, and what each
client holds. The same stream is sent to every method that is compared.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedforget.data.holdings import Holdings
from fedforget.seeds import derive_seed
from fedforget.sequences.ledger import Deletion
from fedforget.sequential.config import SequentialRunConfig
from fedforget.sequential.deletions import deletion, read_requests
from fedforget.sequential.plan import SequentialPlan
from fedforget.sequential.plan_summary import hit_weights

Key = tuple[str, int]
"""A client and the number of one of its slices."""


def request_stream(
    config: SequentialRunConfig, plan: SequentialPlan, holdings: Holdings
) -> Iterator[Deletion]:
    """Yield requests until no record is left, ``requests.limit`` is reached, or the file ends.

    Parameters
    ----------
    config : SequentialRunConfig
        ``requests``, ``sequences.prior`` and ``seeds.requests``. ``requests.file`` names a stream that is
        replayed as it was written; else ``requests.kind`` says how it is drawn (see :data:`STREAMS`).
    plan : SequentialPlan
        The groups that requests hit, and the sequences that an adversary aims at.
    holdings : dict
        What each client holds, by slice.

    Raises
    ------
    DataError
        ``requests.file`` cannot be read as requests.
    """
    requests = config.requests
    found: Iterator[Deletion]
    if requests.file:
        found = iter(read_requests(Path(requests.file).expanduser()))
    else:
        found = STREAMS[requests.kind](_Left(config, plan, holdings))
    return itertools.islice(found, requests.limit or None)


def request_in_words(requests: Mapping[str, Any]) -> str:
    """Return what one request of a stream asks for; ``requests`` are a configuration's, as plain values."""
    if requests["file"]:
        return "replayed from a file"
    if requests["kind"] == "withdrawal":
        return "each withdrawing a client with all that it holds"
    return f"each naming {requests['records'] or 'all'} records of one slice ({requests['kind']} requests)"


class _Left:
    """What a stream can still ask for, and the generator that it draws with."""

    def __init__(self, config: SequentialRunConfig, plan: SequentialPlan, holdings: Holdings) -> None:
        self.config, self.plan = config, plan
        self.rng = np.random.default_rng(derive_seed(config.seeds.requests, "requests"))
        self._records: dict[Key, list[str]] = {
            item[:2]: list(holdings[item.client_id][item.slice_id]) for group in plan.groups for item in group
        }
        self._count = 0

    def of_group(self, group: int) -> list[Key]:
        """Return the group's slices that hold records, in order."""
        return [item[:2] for item in self.plan.groups[group] if self._records[item[:2]]]

    def of_clients(self) -> dict[str, list[Key]]:
        """Return each client's slices that hold records, in order; clients without any are left out."""
        found: dict[str, list[Key]] = {}
        for key in sorted(self._records):
            if self._records[key]:
                found.setdefault(key[0], []).append(key)
        return found

    def take(self, keys: list[Key]) -> Deletion:
        """Ask for ``requests.records`` records of one of the slices, drawn uniformly."""
        key = keys[int(self.rng.integers(len(keys)))]
        records = self._records[key]
        size = min(self.config.requests.records or len(records), len(records))
        chosen = sorted(records[i] for i in self.rng.choice(len(records), size=size, replace=False))
        self._records[key] = [record for record in records if record not in chosen]
        return self._named(*key, chosen)

    def withdraw(self, client: str) -> Deletion:
        """Ask for everything that a client holds."""
        for key in self._records:
            if key[0] == client:
                self._records[key] = []
        return self._named(client, None, None)

    def _named(self, client: str, slice_id: int | None, records: list[str] | None) -> Deletion:
        self._count += 1
        return deletion(client, slice_id, records, f"request-{self._count:03d}")


def _uniform(left: _Left) -> Iterator[Deletion]:
    """Independent requests with repetition, as the theory and the paper's experiment assume.

    A group is hit with the probability of the prior, or of its share of the slices, whether or not it
    was hit before; there a slice that holds records.
    """
    weights = np.array(hit_weights(left.plan, left.config), dtype=np.float64)
    while True:
        slices = [left.of_group(group) for group in range(len(weights))]
        odds = weights * [bool(keys) for keys in slices]
        if not odds.sum() > 0:
            return
        yield left.take(slices[int(left.rng.choice(len(odds), p=odds / odds.sum()))])


def _bursts(left: _Left) -> Iterator[Deletion]:
    """Runs of ``requests.burst`` requests that come from one client, drawn uniformly for each run."""
    while clients := left.of_clients():
        names = list(clients)
        name = names[int(left.rng.integers(len(names)))]
        for _ in range(left.config.requests.burst):
            keys = left.of_clients().get(name)
            if not keys:
                break
            yield left.take(keys)


def _skewed(left: _Left) -> Iterator[Deletion]:
    """Independent requests, of the client of rank i with odds ``1 / i ** requests.skew``; ranks are drawn."""
    names = sorted(left.of_clients())
    order = left.rng.permutation(len(names))
    weights = {names[k]: 1.0 / (rank + 1) ** left.config.requests.skew for rank, k in enumerate(order)}
    while clients := left.of_clients():
        odds = np.array([weights[name] for name in clients])
        keys = list(clients.values())
        yield left.take(keys[int(left.rng.choice(len(keys), p=odds / odds.sum()))])


def _withdrawal(left: _Left) -> Iterator[Deletion]:
    """Clients leave one after another, in a drawn order, with all that they hold."""
    names = sorted(left.of_clients())
    for k in left.rng.permutation(len(names)):
        yield left.withdraw(names[k])


def _adversarial(left: _Left) -> Iterator[Deletion]:
    """Requests that always hit the group that the most live sequences begin with.

    Once no sequence is live, the groups that hold records are emptied in order. A group that holds none
    cannot be asked for.
    """
    deleted: set[int] = set()
    while True:
        open_groups = [group for group in range(len(left.plan.groups)) if left.of_group(group)]
        if not open_groups:
            return
        first = Counter(
            order[0] for order in left.plan.sequences if order[0] in open_groups and order[0] not in deleted
        )
        target = min(first or open_groups, key=lambda group: (-first[group], group))
        deleted.add(target)
        yield left.take(left.of_group(target))


STREAMS: Mapping[str, Callable[[_Left], Iterator[Deletion]]] = {
    "uniform": _uniform,
    "bursts": _bursts,
    "skewed": _skewed,
    "withdrawal": _withdrawal,
    "adversarial": _adversarial,
}
"""Every kind that ``requests.kind`` may name."""
