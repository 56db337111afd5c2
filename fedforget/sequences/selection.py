"""Which models answer after deletions, and with what weight: FedSGT, section 4.3 and Table 2."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fedforget.errors import PlanError, nearest


@dataclass(frozen=True)
class Selected:
    """One sequence that serves.

    Attributes
    ----------
    index : int
        Position of the sequence in the plan.
    prefix : tuple of int
        Its active prefix, which names the module in the prefix tree that ends the chain.
    weight : float
        Its share in the average of predictions; the shares of a selection sum to 1.
    """

    index: int
    prefix: tuple[int, ...]
    weight: float


def active_prefix(sequence: Sequence[int], deleted: Iterable[int]) -> tuple[int, ...]:
    """Return the groups before the first deleted one; every module from there on is off for good."""
    gone = frozenset(deleted)
    for position, group in enumerate(sequence):
        if group in gone:
            return tuple(sequence[:position])
    return tuple(sequence)


def select(
    sequences: Sequence[Sequence[int]], deleted: Iterable[int], rule: str = "AllSeq"
) -> list[Selected]:
    """Choose the sequences that serve once some groups are deleted.

    Parameters
    ----------
    sequences : sequence of tuple of int
        The plan.
    deleted : iterable of int
        Every group deleted so far.
    rule : {"AllSeq", "MinSeq", "LongSeq"}
        ``AllSeq``: every sequence with an active module. ``MinSeq``: those whose set of active groups
        is not contained in another's. ``LongSeq``: the one with the longest active prefix.

    Returns
    -------
    list of Selected
        In the order of the plan, weights proportional to the number of active modules. Empty when no
        module is left: service has ended.

    Raises
    ------
    PlanError
        An unknown rule, or a deleted group that no sequence holds (a mistyped deletion would otherwise
        leave the data in service).

    Notes
    -----
    ``AllSeq`` averages over sequences, as the paper has it. Sequences that share their active prefix
    are then the same model, listed once each, so that its weight counts them all;
    :func:`weight_by_prefix` adds them up, and serving need run the model only once.

    For ``MinSeq`` the paper's sentence ("the least overlap with the deleted groups") is ambiguous; the
    rule here is the one that its Table 2 shows. Of sequences with the same set of active groups
    the first is kept. The paper gives weights for ``AllSeq`` alone; ``MinSeq`` takes the same ones.
    ``LongSeq`` gives the first of several longest, which is always among those that ``MinSeq`` keeps.
    """
    if rule not in _RULES:
        raise PlanError(f"rule: {rule!r} is not one of {', '.join(_RULES)}{nearest(rule, _RULES)}")
    gone = frozenset(deleted)
    unknown = gone.difference(*sequences)
    if sequences and unknown:
        raise PlanError(f"deleted: group {min(unknown)} is in none of the sequences")
    prefixes = {index: active_prefix(sequence, gone) for index, sequence in enumerate(sequences)}
    kept = _RULES[rule]({index: prefix for index, prefix in prefixes.items() if prefix})
    modules = sum(map(len, kept.values()))
    return [Selected(index, prefix, len(prefix) / modules) for index, prefix in kept.items()]


def weight_by_prefix(selected: Iterable[Selected]) -> dict[tuple[int, ...], float]:
    """Return the weight of each distinct model, by its active prefix."""
    weights: dict[tuple[int, ...], float] = {}
    for item in selected:
        weights[item.prefix] = weights.get(item.prefix, 0.0) + item.weight
    return weights


_Prefixes = dict[int, tuple[int, ...]]


def _all_seq(live: _Prefixes) -> _Prefixes:
    return live


def _min_seq(live: _Prefixes) -> _Prefixes:
    first: dict[frozenset[int], int] = {}
    for index, prefix in live.items():
        first.setdefault(frozenset(prefix), index)
    return {
        index: live[index] for groups, index in first.items() if not any(groups < other for other in first)
    }


def _long_seq(live: _Prefixes) -> _Prefixes:
    # max() returns the first of equals, and the plan's order is the order of the mapping.
    longest = max(live, key=lambda index: len(live[index]), default=None)
    return {} if longest is None else {longest: live[longest]}


_RULES: dict[str, Callable[[_Prefixes], _Prefixes]] = {
    "AllSeq": _all_seq,
    "MinSeq": _min_seq,
    "LongSeq": _long_seq,
}
