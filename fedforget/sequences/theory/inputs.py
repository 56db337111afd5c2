"""Checks of what the theory functions are given: sequences, request distributions, counts."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np
from numpy.typing import NDArray

from fedforget.errors import PlanError

Sequences = Sequence[Sequence[int]]
"""Orders of groups; group ``g`` is an integer in ``[0, L)``. A sequence need not hold every group."""

EXACT_GROUPS = 20
"""Most groups for which the subset computations are exact; they hold 2**L numbers."""


def count(value: SupportsIndex, name: str, least: int) -> int:
    """Return ``value`` as an integer of at least ``least``.

    Raises
    ------
    PlanError
        It is not an integer, or too small.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise PlanError(f"{name} is {value!r}; give an integer of at least {least}") from None
    if number < least:
        raise PlanError(f"{name} is {number}; give an integer of at least {least}")
    return number


def checked_sequences(sequences: Sequences, num_groups: int | None) -> tuple[list[tuple[int, ...]], int]:
    """Return the sequences as tuples of integers, and the number of groups.

    Parameters
    ----------
    sequences : sequence of sequences of int
        At least one, none empty, no group twice in one sequence.
    num_groups : int, optional
        L; by default one more than the largest group named.

    Raises
    ------
    PlanError
        Any of these does not hold.
    """
    orders = [
        tuple(count(group, f"a group of sequence {i}", 0) for group in order)
        for i, order in enumerate(sequences)
    ]
    if not orders:
        raise PlanError("no sequences are given; give at least one order of groups")
    for i, order in enumerate(orders):
        if not order:
            raise PlanError(f"sequence {i} is empty; give at least one group")
        if len(set(order)) < len(order):
            raise PlanError(f"sequence {i}, {order}, names a group twice; name each group once")
    largest = max(max(order) for order in orders) + 1
    if num_groups is None:
        return orders, largest
    total = count(num_groups, "num_groups", 1)
    if largest > total:
        raise PlanError(
            f"a sequence names group {largest - 1}, but num_groups is {total}; groups are 0 to {total - 1}"
        )
    return orders, total


def request_distribution(prior: Sequence[float] | None, num_groups: int) -> NDArray[np.float64]:
    """Return the probability that one request hits each group, float64 ``[L]``.

    Parameters
    ----------
    prior : sequence of float, optional
        One non-negative weight per group, scaled here to sum to 1 (so the groups' sizes will
        do); uniform by default.
    num_groups : int
        L.

    Raises
    ------
    PlanError
        The wrong number of weights, a negative or non-finite one, or none that is positive.
    """
    if prior is None:
        return np.full(num_groups, 1.0 / num_groups)
    weights = np.asarray(prior, dtype=np.float64)
    if weights.shape != (num_groups,):
        raise PlanError(
            f"prior has shape {weights.shape}; give one weight for each of the {num_groups} groups"
        )
    if not np.isfinite(weights).all() or (weights < 0).any() or not weights.max() > 0:
        raise PlanError("prior must hold finite, non-negative weights, at least one of them positive")
    weights = weights / weights.max()  # or the sum of huge weights would be infinite
    return np.asarray(weights / weights.sum())


def exact_limit(num_groups: int, what: str, instead: str) -> None:
    """Refuse a subset computation that is too large, naming the simulation to use.

    Raises
    ------
    PlanError
        More than :data:`EXACT_GROUPS` groups.
    """
    if num_groups > EXACT_GROUPS:
        raise PlanError(f"{what} is exact for up to {EXACT_GROUPS} groups, not {num_groups}; use {instead}")
