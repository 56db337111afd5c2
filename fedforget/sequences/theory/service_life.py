"""How many deletion requests a set of sequences serves (FedSGT, Sections 5.1 and A.1).

Service ends with the request after which no module is left: when, for every sequence, its
first group has been hit. Requests are independent and may hit the same group again, so the
service life is the time a coupon collector needs for the set F of groups that come first in
some sequence; every other group is a blank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedforget.errors import PlanError
from fedforget.sequences.theory.collector import STATES, Class, classes_of, collected, moments, num_states
from fedforget.sequences.theory.inputs import (
    EXACT_GROUPS,
    Sequences,
    checked_sequences,
    count,
    exact_limit,
    request_distribution,
)


def deletion_rate(num_groups: int, budget: int) -> float:
    """Expected number of requests until service ends, ``L * H_min(L,B)``.

    For uniform requests with repetition over L groups. The paper writes it with an
    approximation sign; it is exact where ``min(L,B)`` different groups come first in the
    sequences, as they do for the cyclic rotations. :func:`service_life` takes any sequences.

    Parameters
    ----------
    num_groups : int
        L.
    budget : int
        B, the number of sequences. Past B = L it changes nothing.

    Raises
    ------
    PlanError
        Either is not a positive integer.
    """
    L, B = count(num_groups, "num_groups", 1), count(budget, "budget", 1)
    return L * _harmonic(min(L, B))


def fedcio_deletion_rate(num_clusters: int) -> float:
    """Expected number of requests until every FedCIO cluster has been hit, ``c * H_c``.

    For clusters of equal size, uniform requests with repetition, and no cluster retrained
    meanwhile (Section 5.1).

    Raises
    ------
    PlanError
        ``num_clusters`` is not a positive integer.
    """
    c = count(num_clusters, "num_clusters", 1)
    return c * _harmonic(c)


def _harmonic(n: int) -> float:
    return math.fsum(1.0 / i for i in range(1, n + 1))


@dataclass(frozen=True)
class ServiceLife:
    """The distribution of the number of requests until service ends, that request included.

    Parameters
    ----------
    first_groups : tuple of int
        F: the groups that come first in some sequence.
    mean, std : float
        In requests. Both are infinite where a group of F is never hit.
    """

    first_groups: tuple[int, ...]
    mean: float
    std: float
    _coefficients: NDArray[np.float64] = field(repr=False)  # P(T <= n) = sum_j c_j * base_j ** n
    _bases: NDArray[np.float64] = field(repr=False)
    _classes: tuple[Class, ...] = field(repr=False)  # groups of F by probability, where these are few

    def cdf(self, num_requests: int) -> float:
        """Probability that service has ended after ``num_requests`` requests."""
        n = count(num_requests, "num_requests", 0)
        if n < len(self.first_groups):
            return 0.0
        if self._classes:
            return collected(self._classes, n)
        return min(1.0, max(0.0, float(self._coefficients @ self._bases**n)))

    def survival(self, num_requests: int) -> float:
        """Probability that some module is still active after ``num_requests`` requests."""
        return 1.0 - self.cdf(num_requests)

    def quantile(self, probability: float) -> float:
        """Smallest number of requests n with ``cdf(n) >= probability``; infinite if there is none.

        Raises
        ------
        PlanError
            ``probability`` is not strictly between 0 and 1.
        """
        if not 0.0 < probability < 1.0:
            raise PlanError(f"probability is {probability!r}; give a number strictly between 0 and 1")
        if not math.isfinite(self.mean):
            return math.inf
        low, high = len(self.first_groups) - 1, len(self.first_groups)
        while self.cdf(high) < probability:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.cdf(middle) < probability else (low, middle)
        return float(high)

    def band(self, confidence: float = 0.9) -> tuple[float, float]:
        """Central interval that one observed service life falls in with this probability, at least."""
        tail = (1.0 - confidence) / 2
        return self.quantile(tail), self.quantile(1.0 - tail)


def service_life(
    sequences: Sequences, prior: Sequence[float] | None = None, num_groups: int | None = None
) -> ServiceLife:
    """Exact distribution of the service life of any set of sequences.

    With F the first groups and p(A) the chance that a request hits the set A,
    ``E[T] = sum over nonempty A in F of (-1)^(|A|+1) / p(A)`` and
    ``P(T <= n) = sum over A in F of (-1)^|A| (1 - p(A))^n``. Where F has few classes of equally
    likely groups, the chain of how many of each are missing gives the same without cancellation.

    Parameters
    ----------
    sequences : sequence of sequences of int
        The trained orders of groups.
    prior : sequence of float, optional
        Weight of each group in the distribution of requests; uniform by default.
    num_groups : int, optional
        L; by default one more than the largest group named.

    Raises
    ------
    PlanError
        Malformed sequences or prior; or more than 20 first groups of too many probabilities
        (:func:`monte_carlo_service_life` simulates those).
    """
    orders, L = checked_sequences(sequences, num_groups)
    first = tuple(sorted({order[0] for order in orders}))
    p = request_distribution(prior, L)[list(first)]
    nothing = np.zeros(0)
    if not p.min() > 0:
        return ServiceLife(first, math.inf, math.inf, nothing, nothing, ((len(first), 0.0),))
    classes = tuple(classes_of(p.tolist()))
    if len(classes) == 1 or (len(first) > EXACT_GROUPS and num_states(classes) <= STATES):
        return ServiceLife(first, *moments(classes), nothing, nothing, classes)
    exact_limit(len(first), "the service life under a non-uniform prior", "monte_carlo_service_life")
    hit, signs = np.zeros(1), np.ones(1)
    for probability in p:  # over all subsets A of F: p(A) and (-1)^|A|
        hit, signs = np.concatenate([hit, hit + probability]), np.concatenate([signs, -signs])
    inner, sign = hit[1:], -signs[1:]
    mean = math.fsum(sign / inner)
    second = math.fsum(sign * (2.0 - inner) / inner**2)
    std = math.sqrt(max(second - mean**2, 0.0))
    return ServiceLife(first, mean, std, signs, np.clip(1.0 - hit, 0.0, 1.0), ())
