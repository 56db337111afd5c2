"""Forgetting against utility: Pareto-optimal points, and observed-step envelopes with their areas."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

# (accuracy on what is to be forgotten, utility): lower and higher is better.
Trade = tuple[float, float]


def pareto(points: Sequence[Trade]) -> list[bool]:
    """Tell which (forget accuracy, utility) no other point beats: lower and higher is better."""
    return [
        not any(
            other[0] <= one[0] and other[1] >= one[1] and (other[0] < one[0] or other[1] > one[1])
            for other in points
        )
        for one in points
    ]


@dataclass(frozen=True)
class Areas:
    """Two envelopes over the accuracies that both methods reached.

    Attributes
    ----------
    low, high : float
        The common range of accuracies.
    first, second : float
        Range-normalised areas, in units of utility: the mean height of each envelope over the range.
    """

    low: float
    high: float
    first: float
    second: float

    @property
    def difference(self) -> float:
        """First minus second."""
        return self.first - self.second


def envelope_area(points: Sequence[Trade], low: float, high: float) -> float:
    """Return the range-normalised area under an observed-step envelope (FIRM, appendix D.1).

    The envelope at a ceiling ``c`` is the highest utility among the points whose accuracy is at most
    ``c``: a step function that rises only where a point was measured, without interpolation. Its integral
    from ``low`` to ``high`` is a finite sum, divided here by ``high - low``.

    Parameters
    ----------
    points : sequence of (float, float)
        At least one with an accuracy of at most ``low``: there is no extrapolation.
    low, high : float
        ``low < high``.
    """
    steps = sorted({low, high, *(accuracy for accuracy, _ in points if low < accuracy < high)})
    area = 0.0
    for start, stop in itertools.pairwise(steps):
        area += (stop - start) * max(utility for accuracy, utility in points if accuracy <= start)
    return area / (high - low)


def envelope_areas(first: Sequence[Trade], second: Sequence[Trade]) -> Areas | None:
    """Compare two envelopes over their common range of accuracies.

    The range goes from the larger of the two smallest accuracies to the smaller of the two largest.

    Returns
    -------
    Areas or None
        None where the ranges have no interval in common.
    """
    if not first or not second:
        return None
    low = max(min(accuracy for accuracy, _ in points) for points in (first, second))
    high = min(max(accuracy for accuracy, _ in points) for points in (first, second))
    if not low < high:
        return None
    return Areas(low, high, envelope_area(first, low, high), envelope_area(second, low, high))
