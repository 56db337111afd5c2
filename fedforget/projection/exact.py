"""The exact dual solver: projected Newton on the ``m`` multipliers (FIRM, appendix B, equations 13 to 20)."""

from __future__ import annotations

import numpy as np
import torch
from scipy.linalg import LinAlgError, cholesky, solve_triangular
from scipy.optimize import nnls

from fedforget.projection.passes import Point, damages, evaluate, kkt_residual, rise, scale, shrinkage
from fedforget.projection.problem import Matrix, Problem, Vector

# The solver aims below the 1e-9 that the certificate asks for: far below where a Newton step is cheap.
GOAL = 1e-12
GOOD = 1e-10
# A Newton step from this residual usually arrives, so its pass also rounds the update.
_NEAR = 1e-2
_MAX_STEPS = 200
_PARTS = (1.0, 0.5, 0.25, 0.125)
# A sample is solved no better than it resembles the whole.
_SAMPLE_GOAL = 1e-2
_SMALLEST_SAMPLE = 1 << 12
# Odd, so that a sample does not fall on the same columns of a matrix whose width is a power of two.
_STRIDES = (511, 63, 7)
# Relative to a unit diagonal; makes the Hessian of duplicated clients invertible.
_RIDGE = 1e-12


def solve_dual(
    problem: Problem,
    budgets: Vector,
    start: Point | None = None,
    dtype: torch.dtype | None = None,
    goal: float = GOAL,
) -> Point:
    """Maximise the dual (14) and return the last point.

    Each step solves a small non-negative quadratic program with the negative Hessian (20), so a
    multiplier may fall as well as rise. Its right-hand side is that of the secular equations
    ``b_k^(-1/2) = epsilon^(-1/2)``, which are nearly linear in the multipliers; where that step neither
    lowers the best residual so far nor raises the dual, the plain gradient (13) is tried, whole and in
    parts, and then one exact coordinate sweep.

    Parameters
    ----------
    problem : Problem
        The reduced program.
    budgets : ndarray
        fp64 ``[v]``, positive, in rescaled units.
    start : Point, optional
        Where to begin; by default at the multipliers of a sample of the coordinates.
    dtype : torch.dtype, optional
        Of the rounded update that passes near the optimum are to produce.
    goal : float
        KKT residual to stop at.
    """
    point = _start(problem, budgets, dtype) if start is None else start
    residual = _residual(problem, point, budgets)
    best, best_residual = point, residual
    for _ in range(_MAX_STEPS):
        if residual <= goal:
            break
        point = _next(problem, point, residual, best_residual, budgets, dtype if residual <= _NEAR else None)
        before, residual = residual, _residual(problem, point, budgets)
        if best_residual <= GOOD and residual > 0.5 * before:
            break  # fp64 has no better point nearby
        if residual < best_residual:
            best, best_residual = point, residual
    return point if residual <= best_residual else best


def _residual(problem: Problem, point: Point, budgets: Vector) -> float:
    return kkt_residual(problem, point.multipliers, point.damages, budgets)


def _next(
    problem: Problem,
    present: Point,
    residual: float,
    best_residual: float,
    budgets: Vector,
    dtype: torch.dtype | None,
) -> Point:
    """Return the first of the candidate steps that makes progress."""
    secular = _newton(present, _secular(present.damages, budgets))
    if secular is not None:
        trial = evaluate(problem, secular, dtype)
        if residual <= GOOD or _progresses(problem, present, trial, best_residual, budgets):
            return trial
    full = _newton(present, present.damages - budgets)
    if full is not None:
        for part in _PARTS:
            trial = evaluate(problem, np.asarray(present.multipliers + part * (full - present.multipliers)))
            if _progresses(problem, present, trial, best_residual, budgets):
                return trial
    return evaluate(problem, coordinate_sweep(problem, present.multipliers, budgets))


def _progresses(
    problem: Problem, present: Point, trial: Point, best_residual: float, budgets: Vector
) -> bool:
    """Return whether a step lowers the best residual by a quarter, or raises the dual as (13) promises.

    The first can happen a few dozen times and the dual cannot rise for ever: the steps do not cycle.
    """
    if _residual(problem, trial, budgets) <= 0.75 * best_residual:
        return True
    step = trial.multipliers - present.multipliers
    promised = float(step @ (present.damages - budgets))
    if not promised > 0.0:
        return False
    # The dual is concave: it rises by at least its slope at the far end.
    if float(step @ (trial.damages - budgets)) >= 1e-3 * promised:
        return True
    return rise(problem, present.multipliers, trial.multipliers, budgets) >= 1e-3 * promised


def _start(problem: Problem, budgets: Vector, dtype: torch.dtype | None) -> Point:
    """Solve samples of about 1/512, 1/64 and 1/8 of the coordinates, each from where the last one ended."""
    zero = np.zeros(len(budgets))
    n = len(problem.base)
    if n < 2 * _SMALLEST_SAMPLE:
        return evaluate(problem, coordinate_sweep(problem, zero, budgets), dtype)
    solved = None
    for stride in _STRIDES:
        if n // stride < _SMALLEST_SAMPLE and stride != _STRIDES[-1]:
            continue
        sample = problem.sample(stride)
        share = damages(sample, zero) / problem.before
        if not (share > 0.0).all():  # a client with no coordinate in the sample
            continue
        first = coordinate_sweep(sample, zero, budgets * share) if solved is None else solved.multipliers
        solved = solve_dual(sample, budgets * share, evaluate(sample, first), goal=_SAMPLE_GOAL)
    return evaluate(problem, zero if solved is None else solved.multipliers)


def _secular(values: Vector, budgets: Vector) -> Vector:
    """Right-hand side of Newton's method on ``b_k^(-1/2) = epsilon^(-1/2)`` in every client."""
    return np.asarray(2.0 * values * (np.sqrt(values / budgets) - 1.0))


def _newton(point: Point, right_hand_side: Vector) -> Vector | None:
    """Minimise ``1/2 z'Hz - (r + H lambda)'z`` over ``z >= 0``; None where that fails in fp64."""
    hessian: Matrix = point.hessian
    diagonal = np.diagonal(hessian)
    if not (np.isfinite(hessian).all() and (diagonal > 0.0).all()):
        return None
    root, units = np.sqrt(diagonal), scale(point.multipliers)
    scaled = hessian / np.outer(root, root) + _RIDGE * np.eye(len(root))
    unit = root / units
    try:
        lower = cholesky(scaled, lower=True)
        target = lower.T @ (unit * point.multipliers)
        target += solve_triangular(lower, right_hand_side / unit, lower=True)
        solution, _ = nnls(lower.T, target)
    except (LinAlgError, ValueError, RuntimeError):
        return None
    step = np.asarray(solution / unit)
    return step if np.isfinite(step).all() else None


def coordinate_sweep(problem: Problem, multipliers: Vector, budgets: Vector) -> Vector:
    """Maximise the dual exactly in one multiplier after the other, each free to rise or fall."""
    multipliers = multipliers.copy()
    diagonal = shrinkage(problem, multipliers)
    for k in range(len(multipliers)):
        fisher = problem.fisher(k)
        others = np.maximum(diagonal - multipliers[k] * fisher, 1.0)
        on = fisher > 0.0
        multipliers[k] = _secular_root(fisher[on], problem.base[on], others[on], budgets[k])
        diagonal = others + multipliers[k] * fisher
    return multipliers


def _secular_root(fisher: Vector, base: Vector, others: Vector, budget: float) -> float:
    """Solve ``1/2 sum_j F base^2 / (others + t F)^2 = budget`` for ``t >= 0``; 0 where it is slack.

    ``b^(-1/2)`` is increasing and concave in ``t``, so Newton's method from the left rises to the root
    without passing it.
    """
    t = 0.0
    with np.errstate(under="ignore", over="ignore"):
        for _ in range(100):
            diagonal = others + t * fisher
            update = base / diagonal
            value = 0.5 * float(np.sum(fisher * np.square(update)))
            ratio = value / budget
            if ratio <= 1.0 + 0.1 * GOAL:
                break
            unit = max(t, 1.0)
            slope = float(np.sum(np.square(update) * fisher * (unit * fisher / diagonal)))
            if not slope > 0.0:
                break
            step = 2.0 * value * (np.sqrt(ratio) - 1.0) / slope * unit
            if not np.isfinite(step) or t + step <= t:
                break
            t += step
    return t


def feasible_growth(problem: Problem, multipliers: Vector, budgets: Vector) -> Vector | None:
    """Raise all multipliers together, as little as a doubling search finds, until the budgets hold in fp64.

    Returns None where no finite multiplier of the search is large enough.
    """
    growth = 0.0
    for power in range(-46, 500):
        candidate = multipliers * (1.0 + growth) + growth
        if (damages(problem, candidate) <= budgets).all():
            return candidate
        growth = 2.0**power
    return None
