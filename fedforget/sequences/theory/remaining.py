"""How much training data still serves after r requests (FedSGT, Sections 5.2 and A.2)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fedforget.errors import PlanError
from fedforget.sequences.theory.inputs import (
    Sequences,
    checked_sequences,
    count,
    exact_limit,
    request_distribution,
)

MEASURES = ("longest", "union")


def expected_remaining_groups(
    sequences: Sequences,
    num_requests: int,
    prior: Sequence[float] | None = None,
    num_groups: int | None = None,
    measure: str = "longest",
) -> float:
    """Expected number of groups whose data still serves, exact for the sequences given.

    Parameters
    ----------
    sequences : sequence of sequences of int
        The trained orders of groups.
    num_requests : int
        r, requests made so far, independent and with repetition.
    prior : sequence of float, optional
        Weight of each group in the distribution of requests; uniform by default.
    num_groups : int, optional
        L; by default one more than the largest group named.
    measure : str
        ``"longest"``: the length of the longest active prefix, the paper's R in units of
        ``|D|/L`` (what LongSeq serves). ``"union"``: the number of groups in the active
        prefix of some sequence (what AllSeq serves).

    Raises
    ------
    PlanError
        Malformed input, or more than 20 groups
        (:func:`monte_carlo_remaining_groups` simulates those).

    Notes
    -----
    Uniform requests: the deleted set given its size m is uniform among the m-subsets, so the
    measure is averaged over each size and the sizes are weighed by the occupancy law,
    equation (10). Other requests: the distribution over the 2^L deleted sets is carried
    through the requests one by one; every term is non-negative, so nothing cancels.
    """
    r = count(num_requests, "num_requests", 0)
    return _expectations(sequences, [r], prior, num_groups, measure)[0]


def expected_remaining_curve(
    sequences: Sequences,
    max_requests: int,
    prior: Sequence[float] | None = None,
    num_groups: int | None = None,
    measure: str = "longest",
) -> list[float]:
    """:func:`expected_remaining_groups` after 0, 1, ..., ``max_requests`` requests.

    Raises
    ------
    PlanError
        As :func:`expected_remaining_groups`.
    """
    r = count(max_requests, "max_requests", 0)
    return _expectations(sequences, range(r + 1), prior, num_groups, measure)


def remaining_band(
    sequences: Sequences,
    max_requests: int,
    prior: Sequence[float] | None = None,
    num_groups: int | None = None,
    measure: str = "longest",
    confidence: float = 0.9,
) -> list[tuple[float, float]]:
    """Central interval that the measure of one run falls in, after 0, 1, ..., ``max_requests`` requests.

    Exact: the distribution over the 2^L deleted sets is carried through the requests. With
    probability ``confidence`` at least, one observed value lies within its interval, ends included.

    Raises
    ------
    PlanError
        As :func:`expected_remaining_groups`, or a confidence that is not strictly between 0 and 1.
    """
    r = count(max_requests, "max_requests", 0)
    if not 0.0 < confidence < 1.0:
        raise PlanError(f"confidence is {confidence!r}; give a number strictly between 0 and 1")
    orders, L = checked_sequences(sequences, num_groups)
    exact_limit(L, "remaining_band", "monte_carlo_remaining_groups")
    value = remaining_by_deleted_set(orders, L, measure).astype(np.int64)
    tail = (1.0 - confidence) / 2 + 1e-12  # rounding must not move a quantile that is met exactly
    bands = []
    for state in _deleted_sets(request_distribution(prior, L), r):
        below = np.cumsum(np.bincount(value, weights=state, minlength=L + 1))
        above = np.cumsum(np.bincount(value, weights=state, minlength=L + 1)[::-1])[::-1]
        low = int(np.flatnonzero(below > tail)[0])  # P(value < low) <= tail
        high = int(np.flatnonzero(above > tail)[-1])
        bands.append((float(low), float(high)))
    return bands


def _expectations(
    sequences: Sequences,
    requests: Sequence[int],
    prior: Sequence[float] | None,
    num_groups: int | None,
    measure: str,
) -> list[float]:
    orders, L = checked_sequences(sequences, num_groups)
    exact_limit(L, "expected_remaining_groups", "monte_carlo_remaining_groups")
    p = request_distribution(prior, L)
    value = remaining_by_deleted_set(orders, L, measure)
    if prior is not None:
        wanted = set(requests)
        states = enumerate(_deleted_sets(p, max(requests)))
        return [float(state @ value) for r, state in states if r in wanted]
    sizes = np.bitwise_count(np.arange(2**L, dtype=np.uint32))
    means = np.bincount(sizes, weights=value, minlength=L + 1) / np.bincount(sizes, minlength=L + 1)
    return [
        math.fsum(float(occupancy(L, r, m)) * float(means[m]) for m in range(min(L, r) + 1)) for r in requests
    ]


def remaining_by_deleted_set(
    orders: Sequence[tuple[int, ...]], num_groups: int, measure: str
) -> NDArray[np.float64]:
    """The measure for every deleted set, float64 ``[2**L]``; bit g of the index says group g is deleted.

    A prefix is active where all its groups are kept. Each prefix is entered at its own set of
    groups and passed on to the larger kept sets, one group at a time.
    """
    if measure not in MEASURES:
        raise PlanError(f"measure is {measure!r}; give one of {', '.join(MEASURES)}")
    kept = np.zeros(2**num_groups, dtype=np.int32)
    for order in orders:
        mask = 0
        for length, group in enumerate(order, start=1):
            mask |= 1 << group
            kept[mask] = length if measure == "longest" else mask
    combine = np.maximum if measure == "longest" else np.bitwise_or
    for group in range(num_groups):
        pairs = kept.reshape(-1, 2, 2**group)  # axis 1: without, with this group
        combine(pairs[:, 1], pairs[:, 0], out=pairs[:, 1])
    if measure == "union":
        kept = np.bitwise_count(kept).astype(np.int32)
    return kept[::-1].astype(np.float64)  # the complement of a deleted set is the kept set


def _deleted_sets(p: NDArray[np.float64], max_requests: int) -> Iterator[NDArray[np.float64]]:
    """Yield the probability of every deleted set, float64 ``[2**L]``, after 0, 1, ... requests."""
    hit_again = np.zeros(1)
    for probability in p:
        hit_again = np.concatenate([hit_again, hit_again + probability])
    state = np.zeros(2 ** len(p))
    state[0] = 1.0
    yield state
    for _ in range(max_requests):
        following = state * hit_again
        for group, probability in enumerate(p):
            following.reshape(-1, 2, 2**group)[:, 1] += probability * state.reshape(-1, 2, 2**group)[:, 0]
        state = following
        yield state


def occupancy(num_groups: int, num_requests: int, distinct: int) -> Fraction:
    """``Pr(M = m)``: m distinct groups are hit by r uniform requests, equation (10).

    ``C(L,m) * m! * S(r,m) / L^r`` with S the Stirling numbers of the second kind.
    """
    L = count(num_groups, "num_groups", 1)
    r, m = count(num_requests, "num_requests", 0), count(distinct, "distinct", 0)
    # m! S(r,m), the surjections from r requests onto m groups, by inclusion-exclusion in integers.
    surjections = sum((-1) ** (m - j) * math.comb(m, j) * j**r for j in range(m + 1))
    return Fraction(math.comb(L, m) * surjections, L**r)


def expected_cyclic_span(num_groups: int, num_requests: int) -> float:
    """``E[U]``: shortest run of consecutive groups, on the circle, that covers every deleted one.

    Section A.2: given m deleted groups their circular gaps d_1..d_m are a uniform composition
    of L, ``Pr(max d <= s | m)`` follows by inclusion-exclusion, and
    ``E[U | m] = 1 + sum over s < L of Pr(max d <= s | m)``. Computed in integers.

    Raises
    ------
    PlanError
        ``num_groups`` is not positive or ``num_requests`` is negative.
    """
    L, r = count(num_groups, "num_groups", 1), count(num_requests, "num_requests", 0)
    total = Fraction(0)
    for m in range(1, min(L, r) + 1):
        shorter = sum(
            (-1) ** j * math.comb(m, j) * math.comb(L - 1 - j * s, m - 1)
            for s in range(1, L)
            for j in range((L - m) // s + 1)
        )
        total += occupancy(L, r, m) * (1 + Fraction(shorter, math.comb(L - 1, m - 1)))
    return float(total)


def expected_remaining_data(num_groups: int, num_requests: int, num_examples: float = 1.0) -> float:
    """``E[R] = |D|/L * (L - E[U])``, the closed form for the L rotations (B = L).

    The longest run of kept groups on the circle is the longest active prefix, since every
    group comes first in one rotation. Hence with ``num_examples = L`` this equals
    :func:`expected_remaining_groups` of the rotations. In the paper's equation (9) the
    span U is printed as T.

    Parameters
    ----------
    num_groups : int
        L; groups hold equal shares of the data.
    num_requests : int
        r, uniform with repetition.
    num_examples : float
        |D|; with the default the result is a fraction of the data.

    Raises
    ------
    PlanError
        As :func:`expected_cyclic_span`, or a negative ``num_examples``.
    """
    if not num_examples >= 0:
        raise PlanError(f"num_examples is {num_examples!r}; give a number of at least 0")
    return num_examples / num_groups * (num_groups - expected_cyclic_span(num_groups, num_requests))


def fedcio_remaining_data(num_clusters: int, num_requests: int, num_examples: float = 1.0) -> float:
    """FedCIO's ``E[R] = |D| (1 - 1/c)^r``: data of the clusters no request has hit (Section 5.2).

    Raises
    ------
    PlanError
        ``num_clusters`` is not positive, or another argument is negative.
    """
    c, r = count(num_clusters, "num_clusters", 1), count(num_requests, "num_requests", 0)
    if not num_examples >= 0:
        raise PlanError(f"num_examples is {num_examples!r}; give a number of at least 0")
    return float(num_examples * (1.0 - 1.0 / c) ** r)
