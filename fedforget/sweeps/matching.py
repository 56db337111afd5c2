"""Finding the scale at which a method forgets as much as it should.

The rule is the paper's (FIRM, appendix D.2): of the settings tried, the one with the smallest
largest accuracy gap over the forget domains, ties by the sum of gaps, then by the lower gamma;
utility is never looked at. The reference here is a target per domain, a share of the way from the
accuracy before down to chance.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

# FIRM with a budget; ``firm`` alone is compared as FIRM-base.
QP = "firm-qp"
# Gammas outside are not tried: the update would be nothing, or everything.
_LOWEST, _HIGHEST = 2.0**-10, 2.0**10
# Closer together than this, two gammas give the same answers but for noise.
_RESOLUTION = 1.03

Accuracies = Mapping[str, float]


@dataclass(frozen=True)
class Point:
    """One gamma and what was forgotten at it.

    Attributes
    ----------
    gamma : float
    forget : mapping of str to float
        Accuracy per forget domain, on the selection split.
    """

    gamma: float
    forget: Accuracies

    def gaps(self, targets: Accuracies) -> tuple[float, float]:
        """Return the largest and the sum of the absolute gaps to the targets."""
        found = [abs(self.forget[domain] - target) for domain, target in targets.items()]
        # Accuracies are quotients of small integers: rounding keeps equal gaps equal.
        return round(max(found), 9), round(sum(found), 9)

    @property
    def mean(self) -> float:
        """Mean accuracy over the forget domains."""
        return sum(self.forget.values()) / len(self.forget)


def targets(before: Mapping[str, Mapping[str, float]], level: float) -> dict[str, float]:
    """Return the forget accuracy to match per domain: ``before - level * (before - chance)``."""
    return {
        domain: one["accuracy"] - level * (one["accuracy"] - one["chance"]) for domain, one in before.items()
    }


def choose(points: Iterable[Point], goal: Accuracies) -> Point:
    """Return the point with the smallest largest gap, ties by the sum of gaps, then by the lower gamma."""
    return min(points, key=lambda point: (*point.gaps(goal), point.gamma))


def search(
    measure: Callable[[float], Accuracies],
    goal: Accuracies,
    *,
    start: float = 1.0,
    max_evaluations: int = 7,
    points: dict[float, Point] | None = None,
    close: float = 0.0,
) -> dict[float, Point]:
    """Look for the gamma whose mean forget accuracy is the goal's, by bisection in log gamma.

    Parameters
    ----------
    measure : callable
        Forget accuracy per domain at a gamma.
    goal : mapping of str to float
        Target per domain.
    start : float
        The first gamma.
    max_evaluations : int
        Calls of ``measure``.
    points : dict, optional
        Points measured before; added to and returned.
    close : float
        Stop once some point's largest gap is at most this.

    Returns
    -------
    dict of float to Point
        Everything measured, by gamma.
    """
    points = {} if points is None else points
    wanted = sum(goal.values()) / len(goal)
    step = 2.0
    for _ in range(max_evaluations):
        if points and choose(points.values(), goal).gaps(goal)[0] <= close:
            break
        gamma = start if not points else _next(sorted(points.values(), key=lambda p: p.gamma), wanted, step)
        if gamma is None:
            break
        if points and (gamma > max(points) or gamma < min(points)):
            step *= 2.0
        points[gamma] = Point(gamma, dict(measure(gamma)))
    return points


def _next(points: list[Point], wanted: float, step: float) -> float | None:
    """Return the gamma to try, between the first two that the goal lies between, else beyond the ends."""
    for weaker, stronger in itertools.pairwise(points):
        if weaker.mean >= wanted > stronger.mean:
            if stronger.gamma / weaker.gamma < _RESOLUTION:
                return None
            return math.sqrt(weaker.gamma * stronger.gamma)
    beyond = points[-1].gamma * step if points[-1].mean >= wanted else points[0].gamma / step
    return beyond if _LOWEST <= beyond <= _HIGHEST else None
