"""Seeded simulations, for sets of sequences too large for the exact computations.

Nothing falls back on them: the exact functions refuse what they cannot do and name these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from fedforget.errors import PlanError
from fedforget.seeds import derive_seed
from fedforget.sequences.theory.inputs import Sequences, checked_sequences, count, request_distribution
from fedforget.sequences.theory.remaining import MEASURES


@dataclass(frozen=True)
class Estimate:
    """A simulated mean and its interval.

    Parameters
    ----------
    mean : float
        Over the trials.
    low, high : float
        Interval for the expectation, by the normal approximation to the mean of the trials.
    confidence : float
        Of the interval, two-sided.
    trials : int
        Number of independent simulations.
    """

    mean: float
    low: float
    high: float
    confidence: float
    trials: int


def monte_carlo_remaining_groups(
    sequences: Sequences,
    num_requests: int,
    seed: int,
    trials: int = 10_000,
    prior: Sequence[float] | None = None,
    num_groups: int | None = None,
    measure: str = "longest",
    confidence: float = 0.99,
) -> Estimate:
    """Estimate :func:`expected_remaining_groups` from ``trials`` simulated request streams.

    Raises
    ------
    PlanError
        Malformed input, or fewer than two trials.
    """
    r = count(num_requests, "num_requests", 0)
    orders, L = checked_sequences(sequences, num_groups)
    if measure not in MEASURES:
        raise PlanError(f"measure is {measure!r}; give one of {', '.join(MEASURES)}")
    p = request_distribution(prior, L)
    trials = count(trials, "trials", 2)
    rng = np.random.default_rng(derive_seed(seed, "theory", "remaining groups"))
    kept = np.ones((trials, L), dtype=bool)
    rows = np.arange(trials)
    for _ in range(r):
        kept[rows, rng.choice(L, size=trials, p=p)] = False
    longest = np.zeros(trials, dtype=np.int64)
    used = np.zeros((trials, L), dtype=bool)
    for order in orders:
        active = np.logical_and.accumulate(kept[:, order], axis=1)
        longest = np.maximum(longest, active.sum(axis=1))
        used[:, order] |= active
    values = longest if measure == "longest" else used.sum(axis=1)
    return estimate(values.astype(np.float64), confidence)


def monte_carlo_service_life(
    sequences: Sequences,
    seed: int,
    trials: int = 10_000,
    prior: Sequence[float] | None = None,
    num_groups: int | None = None,
    confidence: float = 0.99,
) -> Estimate:
    """Estimate the mean of :func:`service_life` from ``trials`` simulated request streams.

    Raises
    ------
    PlanError
        Malformed input, fewer than two trials, or a first group that is never hit.
    """
    orders, L = checked_sequences(sequences, num_groups)
    first = sorted({order[0] for order in orders})
    p = request_distribution(prior, L)
    if not p[first].min() > 0:
        raise PlanError("a group that comes first in some sequence has prior 0, so the service never ends")
    trials = count(trials, "trials", 2)
    rng = np.random.default_rng(derive_seed(seed, "theory", "service life"))
    # Give request k the time of the k-th point of a Poisson process: the hits on each group are
    # then independent processes, and the requests up to the last first hit are counted as
    # one for each group of F plus Poisson many further ones.
    times = rng.exponential(size=(trials, len(first))) / p[first]
    last = times.max(axis=1, keepdims=True)
    again = rng.poisson((last - times) * p[first]).sum(axis=1)
    blanks = rng.poisson(last[:, 0] * max(0.0, 1.0 - float(p[first].sum())))
    return estimate((len(first) + again + blanks).astype(np.float64), confidence)


def estimate(values: NDArray[np.float64], confidence: float) -> Estimate:
    """Return the mean of independent values with its interval.

    Raises
    ------
    PlanError
        ``confidence`` is not strictly between 0 and 1.
    """
    if not 0.0 < confidence < 1.0:
        raise PlanError(f"confidence is {confidence!r}; give a number strictly between 0 and 1")
    mean = float(values.mean())
    half = float(norm.ppf(0.5 + confidence / 2)) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half, confidence, len(values))
