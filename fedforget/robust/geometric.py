"""The geometric median of a forget domain's flattened vectors, by Weiszfeld's iteration.

The point that minimises ``sum_i |x - d_i|`` is a mean of the members with weights that sum to one, and
Weiszfeld's iteration, ``w_i`` proportional to ``1 / |x - d_i|`` and ``x = sum_i w_i d_i``, never leaves
such means. So x is held as its weights, and one streamed pass over the members, for their pairwise distances
D, is all that is read:

    |x - d_i|^2 = sum_j w_j D_ij^2 - 1/2 sum_jk w_j w_k D_jk^2.

As in Pillutla, Kakade and Harchaoui (Robust Aggregation for Federated Learning, 2022), a distance
counts as at least nu, so that a member at the median does not divide by zero; here nu is 1e-6 times the
smallest distance between two members that differ. The iteration starts at the mean and ends when a step is
shorter than 1e-9 of that distance, or of the mean distance to the members if that is larger; or after 10,000
steps, which the report tells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedforget.merging.layout import squares
from fedforget.merging.sources import Source
from fedforget.robust.scales import source_of
from fedforget.summaries import ClientSummary

TOLERANCE = 1e-9
MOST_STEPS = 10_000
_SMOOTHING = 1e-6

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class GeometricMedian:
    """The geometric median as a weighted mean.

    Attributes
    ----------
    weights : list of float
        One per member; they sum to one.
    steps : int
    converged : bool
    """

    weights: list[float]
    steps: int
    converged: bool


def geometric_median(squared: Matrix) -> GeometricMedian:
    """Find the weights of the geometric median.

    Parameters
    ----------
    squared : array
        ``[n, n]``, squared distances between the members.
    """
    n = len(squared)
    weights = np.full(n, 1.0 / n)
    apart = squared[squared > 0.0]
    if not apart.size:
        return GeometricMedian([float(one) for one in weights], 0, True)
    least = math.sqrt(float(apart.min()))
    nu = _SMOOTHING * least
    for step in range(1, MOST_STEPS + 1):
        distances = np.maximum(_distances(squared, weights), nu)
        new = 1.0 / distances
        new /= new.sum()
        change = new - weights
        moved = math.sqrt(max(0.0, -0.5 * float(change @ squared @ change)))
        weights = new
        if moved <= TOLERANCE * max(least, float(weights @ distances)):
            return GeometricMedian([float(one) for one in weights], step, True)
    return GeometricMedian([float(one) for one in weights], MOST_STEPS, False)


def _distances(squared: Matrix, weights: Matrix) -> Matrix:
    found: Matrix = squared @ weights - 0.5 * float(weights @ squared @ weights)
    return np.sqrt(np.maximum(found, 0.0))


def squared_distances(members: Sequence[ClientSummary], of_fisher: bool) -> tuple[Matrix, Matrix]:
    """Measure the members' flattened vectors, over all tensors, in one streamed pass, in fp64.

    Returns
    -------
    tuple of array
        ``[n, n]`` squared distances, and ``[n]`` squared norms.
    """
    n = len(members)
    between, norms = np.zeros((n, n)), np.zeros(n)
    for name in sorted(members[0].fisher if of_fisher else members[0].deltas):
        sources = [source_of(one, name) for one in members]

        def block(start: int, stop: int, sources: list[Source] = sources) -> tuple[Matrix, Matrix]:
            blocks = [s.fisher(start, stop) if of_fisher else s.delta(start, stop) for s in sources]
            found = np.zeros((n, n))
            for i in range(n):
                for j in range(i):
                    found[i, j] = found[j, i] = squares(blocks[i] - blocks[j])
            return found, np.array([squares(one) for one in blocks])

        for one in sources[0].layout.map(sources, block):
            between += one[0]
            norms += one[1]
    return between, norms


def distance_from_mean(squared: Matrix, norms: Matrix, weights: Sequence[float]) -> float:
    """Return ``|weighted mean - mean| / |mean|``; 0 where the mean is 0."""
    n = len(norms)
    uniform = np.full(n, 1.0 / n)
    change = np.asarray(weights) - uniform
    apart = max(0.0, -0.5 * float(change @ squared @ change))
    size = float(norms @ uniform) - 0.5 * float(uniform @ squared @ uniform)
    return math.sqrt(apart / size) if size > 0.0 else 0.0
