"""A FedSGT plan: the groups of slices, the sequences, and what each prefix is trained on."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedforget.errors import PlanError
from fedforget.sequences import (
    PrefixTree,
    Slice,
    balanced_groups,
    barycentre_groups,
    barycentre_objective,
    plan_sequences,
)
from fedforget.sequential.config import SequentialRunConfig

Prefix = tuple[int, ...]


@dataclass(frozen=True)
class SequentialPlan:
    """Groups and sequences.

    Attributes
    ----------
    groups : tuple of tuples of Slice
        Slices of group 0, 1, ...
    sequences : tuple of tuples of int
        Orders of the groups.
    """

    groups: tuple[tuple[Slice, ...], ...]
    sequences: tuple[Prefix, ...]

    @functools.cached_property
    def tree(self) -> PrefixTree:
        """The distinct prefixes."""
        return PrefixTree(self.sequences)

    def slices(self, prefix: Sequence[int]) -> tuple[Slice, ...]:
        """Return the slices of the prefix's groups, ordered by client and slice.

        Raises
        ------
        PlanError
            A group that is not there.
        """
        for group in prefix:
            if not 0 <= group < len(self.groups):
                raise PlanError(
                    f"prefix {tuple(prefix)}: there is no group {group}; there are {len(self.groups)}"
                )
        return tuple(sorted(item for group in prefix for item in self.groups[group]))

    def clients(self, prefix: Sequence[int]) -> tuple[str, ...]:
        """Return the clients that hold data of the prefix's groups, in order."""
        return tuple(sorted({item.client_id for item in self.slices(prefix)}))

    def client_slices(self, prefix: Sequence[int], client_id: str) -> tuple[int, ...]:
        """Return the client's slices in the prefix's groups, in order; empty if it has none there."""
        return tuple(item.slice_id for item in self.slices(prefix) if item.client_id == client_id)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "groups": [[list(item) for item in group] for group in self.groups],
            "sequences": [list(sequence) for sequence in self.sequences],
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> SequentialPlan:
        """The inverse of :meth:`as_dict`."""
        return cls.of(value["groups"], value["sequences"])

    @classmethod
    def of(
        cls, groups: Iterable[Iterable[Sequence[Any]]], sequences: Iterable[Sequence[int]]
    ) -> SequentialPlan:
        """Make a plan of plain values, such as a ledger returns: groups of (client, slice, size)."""
        return cls(
            tuple(tuple(Slice(*item) for item in group) for group in groups),
            tuple(tuple(int(group) for group in sequence) for sequence in sequences),
        )


def make_plan(
    config: SequentialRunConfig, slices: Iterable[Slice], embeddings: Mapping[Any, Any] | None = None
) -> SequentialPlan:
    """Group the slices and choose the sequences that a configuration asks for.

    Methods without phases train one module on everything: one group, and the sequence of it.

    Parameters
    ----------
    config : SequentialRunConfig
        ``grouping``, ``sequences`` and ``seeds.grouping``.
    slices : iterable of Slice
        What the clients declared.
    embeddings : mapping of (client, slice) to array, optional
        Mean embedding of each slice; needed for the barycentre grouping.

    Raises
    ------
    PlanError
        A grouping or a set of sequences that cannot be made, embeddings that are missing, or a method
        whose groups cannot be known before its clients have trained (see :func:`asks_clients`).
    """
    declared = sorted(slices)
    if config.method == "fedcio":
        raise PlanError("method: the groups of fedcio follow from the clients' updates; train it to see them")
    if config.method != "fedsgt":
        return SequentialPlan.of([declared], [(0,)])
    grouping, seed = config.grouping, config.seeds.grouping
    budget = grouping.client_budget or None
    if grouping.method == "barycentre":
        if embeddings is None:
            raise PlanError("grouping.method: barycentre needs the slices' embeddings, and none were given")
        points = {item: embeddings[item[:2]] for item in declared if item[:2] in embeddings}
        groups = barycentre_groups(declared, points, grouping.groups, seed, budget)
    else:
        groups = balanced_groups(declared, grouping.groups, seed, budget)
    if config.sequences.shards:
        return SequentialPlan.of(groups, _chains(grouping.groups, config.sequences.shards))
    sequences = plan_sequences(grouping.groups, config.sequences.budget, list(config.sequences.prior) or None)
    return SequentialPlan.of(groups, sequences)


def grouping_objectives(
    config: SequentialRunConfig, plan: SequentialPlan, embeddings: Mapping[Any, Any]
) -> dict[str, float]:
    """Return problem (1)'s objective of a plan's grouping, and of the random one of the same seed.

    Parameters
    ----------
    config : SequentialRunConfig
        ``grouping`` and ``seeds.grouping``.
    plan : SequentialPlan
        With the barycentre grouping.
    embeddings : mapping of (client, slice) to array
    """
    slices = [item for group in plan.groups for item in group]
    points = {item: embeddings[item[:2]] for item in slices}
    grouping = config.grouping
    drawn = balanced_groups(slices, grouping.groups, config.seeds.grouping, grouping.client_budget or None)
    return {
        "barycentre": barycentre_objective(plan.groups, points),
        "random": barycentre_objective(drawn, points),
    }


def asks_clients(config: SequentialRunConfig) -> bool:
    """Tell whether a plan takes more of the clients than the numbers and sizes of their slices."""
    return config.method == "fedcio" or reads_embeddings(config)


def reads_embeddings(config: SequentialRunConfig) -> bool:
    """Tell whether a plan takes the slices' embeddings."""
    return config.method == "fedsgt" and config.grouping.method == "barycentre"


def clustered_plan(clusters: Iterable[Iterable[str]], slices: Iterable[Slice]) -> SequentialPlan:
    """Make FedCIO's plan: a group of each cluster's slices, and a sequence of each group alone.

    Raises
    ------
    PlanError
        A client with slices is in no cluster.
    """
    position = {name: i for i, cluster in enumerate(clusters) for name in cluster}
    groups: list[list[Slice]] = [[] for _ in range(max(position.values(), default=-1) + 1)]
    for item in sorted(slices):
        if item.client_id not in position:
            raise PlanError(f"client {item.client_id!r}: is in no cluster")
        groups[position[item.client_id]].append(item)
    return SequentialPlan.of(groups, [(i,) for i in range(len(groups))])


def _chains(num_groups: int, shards: int) -> list[Prefix]:
    """Cut the groups into runs of consecutive ones."""
    length = num_groups // shards
    return [tuple(range(start, start + length)) for start in range(0, num_groups, length)]
