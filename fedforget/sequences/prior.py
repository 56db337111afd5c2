"""Sequences for a deletion prior: the longest prefix expected to stay active, and plans that maximise it.

The model. Requests are independent; each hits group g with probability p_g and deletes it for good.
After t requests a set D of groups is gone, and a sequence still serves the prefix before its first
group in D. A plan is worth E[max over its sequences of that prefix's length], averaged over
t = 1 .. T. Averaging over the time, rather than fixing it, keeps a plan from being spent on one
number of deletions.

For a single sequence with prefixes A_1, A_2, ..., of sizes 1, 2, ..., and a length c(D) that other
sequences already secure, the gain is the sum over k of P(D misses A_k, c(D) < k). The k-th term
depends on A_k only as a set, so the best sequence among all L! is a longest path through the
subsets, which :func:`_best_addition` finds exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

from fedforget.errors import PlanError
from fedforget.seeds import derive_seed

Floats = NDArray[np.float64]
Lengths = NDArray[np.int16]

EXACT_GROUPS = 16
_DRAWS = 4096
_TOLERANCE = 1e-12
_MAX_EXCHANGED = 128  # exchanges compare every sequence with every other set of deleted groups
_MAX_PASSES = 3


def expected_longest_prefix(
    sequences: SequenceOf[tuple[int, ...]], deletion_prior: SequenceOf[float], num_requests: int | None = None
) -> float:
    """Return the expected longest active prefix, averaged over the times after 1 .. T requests; exact.

    Parameters
    ----------
    sequences : sequence of tuple of int
        Permutations of ``0 .. L-1``, L at most 16.
    deletion_prior : sequence of float
        Per group, a non-negative weight that a request hits it.
    num_requests : int, optional
        T, default L.

    Raises
    ------
    PlanError
        The prior is not one, the sequences are not permutations, or L exceeds 16.
    """
    num_groups = len(deletion_prior)
    prior, requests = _checked(deletion_prior, num_groups, num_requests)
    if num_groups > EXACT_GROUPS:
        raise PlanError(f"deletion_prior: exact for at most {EXACT_GROUPS} groups, given {num_groups}")
    for sequence in sequences:
        if sorted(sequence) != list(range(num_groups)):
            raise PlanError(
                f"sequences: {tuple(sequence)} is not an order of the groups 0 to {num_groups - 1}"
            )
    return _value(sequences, _deleted_sets(prior, requests))


def plan_for_prior(
    rotated: list[tuple[int, ...]],
    spare: list[tuple[int, ...]],
    deletion_prior: SequenceOf[float],
    num_requests: int | None,
) -> list[tuple[int, ...]]:
    """Choose as many sequences as ``rotated`` has; see :func:`~fedforget.sequences.plan_sequences`.

    Parameters
    ----------
    rotated : list of tuple of int
        The plan to improve on.
    spare : list of tuple of int
        Sequences to fill up with when no further one adds anything; twice as many, or all there are.
    """
    num_groups, budget = len(rotated[0]), len(rotated)
    prior, requests = _checked(deletion_prior, num_groups, num_requests)
    if num_groups > EXACT_GROUPS:
        return _plan_by_draws(rotated, spare, prior, requests)
    chance = _deleted_sets(prior, requests)
    chosen = _greedy(chance, num_groups, budget)
    exhausted = len(chosen) < budget
    plan = _filled(chosen, spare, budget)
    if _value(rotated, chance) >= _value(plan, chance) - _TOLERANCE:
        plan = rotated
    # A greedy plan that ran out of gain serves all that any plan can; there is nothing to exchange for.
    if exhausted or budget > _MAX_EXCHANGED:
        return plan
    return _exchanged(plan, chance)


def _checked(
    deletion_prior: SequenceOf[float], num_groups: int, num_requests: int | None
) -> tuple[Floats, int]:
    weights = np.asarray(deletion_prior, dtype=np.float64)
    if weights.shape != (num_groups,):
        raise PlanError(
            f"deletion_prior: has shape {weights.shape}; give one weight for each of {num_groups} groups"
        )
    for group, weight in enumerate(weights.tolist()):
        if not (math.isfinite(weight) and weight >= 0.0):
            raise PlanError(f"deletion_prior: group {group} has weight {weight}, not a finite number >= 0")
    if not weights.sum() > 0.0:
        raise PlanError("deletion_prior: all weights are 0; leave it out if no deletion is expected")
    requests = num_groups if num_requests is None else num_requests
    if requests < 1:
        raise PlanError(f"num_requests: {requests} is less than 1")
    # Weights near the largest float would overflow their sum.
    weights = weights / weights.max()
    return weights / weights.sum(), requests


def _deleted_sets(prior: Floats, num_requests: int) -> Floats:
    """Return P(D), averaged over t = 1 .. T; indexed by the bits of D, shape ``[2**L]``."""
    size = 1 << len(prior)
    hit = np.zeros(size)
    for g, p in enumerate(prior.tolist()):
        hit.reshape(-1, 2, 1 << g)[:, 1, :] += p
    now, total = np.zeros(size), np.zeros(size)
    now[0] = 1.0
    for _ in range(num_requests):
        # A request falls in D again, or adds the group that was missing; no term is negative.
        then = now * hit
        for g, p in enumerate(prior.tolist()):
            then.reshape(-1, 2, 1 << g)[:, 1, :] += p * now.reshape(-1, 2, 1 << g)[:, 0, :]
        now = then
        total += now
    return total / num_requests


def _lengths(sequence: tuple[int, ...]) -> Lengths:
    """Return the length of the sequence's active prefix for every set D, shape ``[2**L]``."""
    lengths = np.full(1 << len(sequence), len(sequence), dtype=np.int16)
    for position in reversed(range(len(sequence))):
        lengths.reshape(-1, 2, 1 << sequence[position])[:, 1, :] = position
    return lengths


def _longest(sequences: SequenceOf[tuple[int, ...]], size: int) -> Lengths:
    longest = np.zeros(size, dtype=np.int16)
    for sequence in sequences:
        np.maximum(longest, _lengths(sequence), out=longest)
    return longest


def _value(sequences: SequenceOf[tuple[int, ...]], chance: Floats) -> float:
    return float((chance * _longest(sequences, len(chance))).sum())


def _best_addition(chance: Floats, secured: Lengths, num_groups: int) -> tuple[tuple[int, ...], float]:
    """Return the sequence that adds most to what is secured, and how much it adds; exact."""
    masks = np.arange(1 << num_groups)
    sizes = np.bitwise_count(masks.astype(np.uint32))
    best = np.zeros(len(masks))
    last = np.zeros(len(masks), dtype=np.int64)
    for k in range(1, num_groups + 1):
        inside = np.where(secured < k, chance, 0.0)
        for g in range(num_groups):  # afterwards inside[S] sums over all D within S
            halves = inside.reshape(-1, 2, 1 << g)
            halves[:, 1, :] += halves[:, 0, :]
        level = masks[sizes == k]
        before = np.full(len(level), -np.inf)
        for g in range(num_groups):
            value = np.where(level >> g & 1, best[level & ~(1 << g)], -np.inf)
            better = value >= before
            before[better] = value[better]
            last[level[better]] = g
        best[level] = before + inside[len(masks) - 1 - level]
    sequence: list[int] = []
    rest = len(masks) - 1
    while rest:
        sequence.append(int(last[rest]))
        rest &= ~(1 << sequence[-1])
    return tuple(reversed(sequence)), float(best[-1])


def _greedy(chance: Floats, num_groups: int, budget: int) -> list[tuple[int, ...]]:
    """Add the best sequence until the budget is spent or none adds anything."""
    chosen: list[tuple[int, ...]] = []
    secured = np.zeros(len(chance), dtype=np.int16)
    while len(chosen) < budget:
        sequence, gain = _best_addition(chance, secured, num_groups)
        # A sequence chosen before adds exactly nothing, so a positive gain means a new one.
        if gain <= _TOLERANCE or sequence in chosen:
            break
        chosen.append(sequence)
        np.maximum(secured, _lengths(sequence), out=secured)
    return chosen


def _filled(
    chosen: list[tuple[int, ...]], spare: list[tuple[int, ...]], budget: int
) -> list[tuple[int, ...]]:
    taken = set(chosen)
    return (chosen + [sequence for sequence in spare if sequence not in taken])[:budget]


def _exchanged(plan: list[tuple[int, ...]], chance: Floats) -> list[tuple[int, ...]]:
    """Replace one sequence at a time by the best addition to the others, while that helps."""
    plan = list(plan)
    num_groups = len(plan[0])
    lengths = np.stack([_lengths(sequence) for sequence in plan])
    for _ in range(_MAX_PASSES):
        changed = False
        for k, sequence in enumerate(plan):
            others = np.delete(lengths, k, axis=0).max(axis=0, initial=0)
            adds = float((chance * (np.maximum(others, lengths[k]) - others)).sum())
            better, gain = _best_addition(chance, others, num_groups)
            if gain > adds + _TOLERANCE and better != sequence and better not in plan:
                plan[k], lengths[k], changed = better, _lengths(better), True
        if not changed:
            break
    return plan


def _plan_by_draws(
    rotated: list[tuple[int, ...]], spare: list[tuple[int, ...]], prior: Floats, num_requests: int
) -> list[tuple[int, ...]]:
    """Choose sequences on drawn sets of deleted groups: for more groups than subsets can be listed for."""
    if np.ptp(prior) == 0.0:
        return rotated
    budget = len(rotated)
    gone = _draw(prior, num_requests, "choose")
    secured = np.zeros(len(gone), dtype=np.int64)
    chosen: list[tuple[int, ...]] = []
    while len(chosen) < budget:
        sequence = _by_hopes(gone, secured)
        lengths = _drawn_lengths(sequence, gone)
        if not (lengths > secured).any():
            break
        chosen.append(sequence)
        secured = np.maximum(secured, lengths)
    plan = _filled(chosen, spare, budget)
    fresh = _draw(prior, num_requests, "compare")
    return plan if _drawn_value(plan, fresh) > _drawn_value(rotated, fresh) else rotated


def _draw(prior: Floats, num_requests: int, purpose: str) -> NDArray[np.bool_]:
    """Return which groups are gone in each draw, shape ``[draws, L]``; the times 1 .. T take turns."""
    rng = np.random.default_rng(derive_seed(0, "sequences", "prior", purpose))
    times = 1 + np.arange(_DRAWS) % num_requests
    gone = np.zeros((_DRAWS, len(prior)), dtype=bool)
    for t in range(1, min(num_requests, _DRAWS) + 1):
        rows = np.flatnonzero(times >= t)
        gone[rows, rng.choice(len(prior), size=len(rows), p=prior)] = True
    return gone


def _by_hopes(gone: NDArray[np.bool_], secured: NDArray[np.int64]) -> tuple[int, ...]:
    """Build one sequence: each next group keeps alive the draws in which most is still to be gained."""
    num_groups = gone.shape[1]
    hopes = np.maximum(num_groups - gone.sum(axis=1) - secured, 0).astype(np.float64)
    sequence: list[int] = []
    left = list(range(num_groups))
    while left:
        kept = hopes @ ~gone[:, left]
        # Where no draw is left to gain from, the group that is gone least often comes first.
        rarity = 1.0 - gone[:, left].mean(axis=0)
        g = left.pop(int(np.lexsort((-rarity, -kept))[0]))
        sequence.append(g)
        hopes = hopes * ~gone[:, g]
    return tuple(sequence)


def _drawn_lengths(sequence: tuple[int, ...], gone: NDArray[np.bool_]) -> NDArray[np.int64]:
    ordered = gone[:, list(sequence)]
    return np.where(ordered.any(axis=1), ordered.argmax(axis=1), len(sequence))


def _drawn_value(plan: list[tuple[int, ...]], gone: NDArray[np.bool_]) -> float:
    longest = np.zeros(len(gone), dtype=np.int64)
    for sequence in plan:
        longest = np.maximum(longest, _drawn_lengths(sequence, gone))
    return float(longest.mean())
