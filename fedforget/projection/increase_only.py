"""The paper's own routine: multipliers that only rise (FIRM, appendix B, "Numerical procedure")."""

from __future__ import annotations

import numpy as np

from fedforget.projection.problem import Problem, Vector

OUTER_ITERATIONS = 500
BISECTIONS = 60
# Relative change of the multipliers below which they have stopped moving; the paper gives no number.
STILL = 1e-12
_DOUBLINGS = 1100  # from 1, past the largest fp64 number


def raise_multipliers(problem: Problem, epsilon: float) -> Vector:
    """Run the increase-only routine and return the multipliers in the caller's units; fp64 ``[v]``.

    From ``lambda = 0``, an outer iteration goes through the clients in order. For one whose damage
    exceeds epsilon, an upper multiplier is doubled, from the larger of 1 and twice the present one,
    until the constraint holds; 60 bisection steps between the present and the upper multiplier
    follow, with the others fixed, and the upper end is taken. The routine ends when every damage
    is at most ``epsilon + max(1e-4 epsilon, 1e-12)``, when the multipliers stop moving (``STILL``), or
    after 500 outer iterations. Later increases can leave an earlier constraint slack with a positive
    multiplier, and the result depends on the order of the clients.

    The damages inside the routine are those of equation (8); the stabiliser enters when the update
    is recovered.
    """
    tolerance = max(1e-4 * epsilon, 1e-12)
    fishers = np.ldexp(problem.fishers.astype(np.float64), problem.exponents[:, None])
    fishers /= problem.divisors[:, None]
    base = np.ldexp(problem.base, problem.exponent)
    supports = [row > 0.0 for row in fishers]
    multipliers = np.zeros(len(fishers))
    diagonal = np.ones(len(base))
    with np.errstate(over="ignore", under="ignore"):
        for _ in range(OUTER_ITERATIONS):
            before = multipliers.copy()
            for k, support in enumerate(supports):
                fisher, values = fishers[k][support], base[support]
                others = diagonal[support] - multipliers[k] * fisher
                multipliers[k] = _raise_one(fisher, values, others, multipliers[k], epsilon)
                diagonal = 1.0 + multipliers @ fishers
            if _within(fishers, supports, base / diagonal, epsilon + tolerance):
                break
            if np.abs(multipliers - before).max() <= STILL * max(1.0, float(multipliers.max())):
                break
    return multipliers


def _raise_one(fisher: Vector, base: Vector, others: Vector, present: float, epsilon: float) -> float:
    """Bracket by doubling, then bisect; the multiplier stays where it is if its constraint holds."""

    def holds(multiplier: float) -> bool:
        return _damage(fisher, base / (others + multiplier * fisher)) <= epsilon

    if holds(present):
        return present
    low, high = present, max(1.0, 2.0 * present)
    for _ in range(_DOUBLINGS):
        if holds(high):
            break
        low, high = high, 2.0 * high
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        if holds(middle):
            high = middle
        else:
            low = middle
    return high


def _within(fishers: Vector, supports: list[np.ndarray], update: Vector, limit: float) -> bool:
    return all(_damage(row[on], update[on]) <= limit for row, on in zip(fishers, supports, strict=True))


def _damage(fisher: Vector, update: Vector) -> float:
    return 0.5 * float(np.sum(fisher * np.square(update)))
