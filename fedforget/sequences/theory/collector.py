"""The coupon collector with classes of equally likely coupons: how many of each class are missing still.

Groups of two sizes, as a balanced grouping has them, make two classes; then the chain of the numbers that
are missing has few states, where the subsets of the groups would be too many. Every term is positive.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

STATES = 2**14
"""Most states of a chain that is gone through."""

Class = tuple[int, float]
"""How many coupons, and the probability of each."""


def classes_of(probabilities: Sequence[float]) -> list[Class]:
    """Return the classes of equal probabilities, to within rounding."""
    found: list[list[float]] = []
    for p in sorted(probabilities):
        if found and math.isclose(p, found[-1][0], rel_tol=1e-12):
            found[-1].append(p)
        else:
            found.append([p])
    return [(len(one), math.fsum(one) / len(one)) for one in found]


def num_states(classes: Sequence[Class]) -> int:
    """Return how many states the chain has."""
    return math.prod(count + 1 for count, _ in classes)


def moments(classes: Sequence[Class]) -> tuple[float, float]:
    """Return the mean and the standard deviation of the number of draws until none is missing."""
    mean: dict[tuple[int, ...], float] = {}
    second: dict[tuple[int, ...], float] = {}
    for missing in itertools.product(*(range(count + 1) for count, _ in classes)):
        rates = [m * p for m, (_, p) in zip(missing, classes, strict=True)]
        rate = math.fsum(rates)
        if not rate:
            mean[missing] = second[missing] = 0.0
            continue
        later = [
            (r / rate, (*missing[:c], missing[c] - 1, *missing[c + 1 :])) for c, r in enumerate(rates) if r
        ]
        after = math.fsum(share * mean[state] for share, state in later)
        mean[missing] = 1.0 / rate + after
        second[missing] = (
            (2.0 - rate) / rate**2
            + 2.0 / rate * after
            + math.fsum(share * second[state] for share, state in later)
        )
    whole = tuple(count for count, _ in classes)
    return mean[whole], math.sqrt(max(second[whole] - mean[whole] ** 2, 0.0))


def collected(classes: Sequence[Class], num_draws: int) -> float:
    """Return the probability that none is missing after a number of draws."""
    shape = tuple(count + 1 for count, _ in classes)
    state: NDArray[np.float64] = np.zeros(shape)  # by how many are missing
    state[tuple(count for count, _ in classes)] = 1.0
    missing = np.indices(shape)
    rates = [missing[c] * p for c, (_, p) in enumerate(classes)]
    for _ in range(num_draws):
        following = state * np.clip(1.0 - np.add.reduce(rates), 0.0, 1.0)
        for axis, rate in enumerate(rates):
            moved = np.moveaxis(state * rate, axis, 0)
            np.moveaxis(following, axis, 0)[:-1] += moved[1:]
        state = following
    return float(state[(0,) * len(classes)])
