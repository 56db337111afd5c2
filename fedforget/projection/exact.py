"""The exact dual solver: projected Newton on the ``m`` multipliers (FIRM, appendix B, equations 13 to 20)."""

from __future__ import annotations

import numpy as np
from scipy.linalg import LinAlgError, cholesky, solve_triangular
from scipy.optimize import nnls

from fedforget.projection.problem import Matrix, Problem, Vector, damages, damages_of, kkt_residual, shrinkage

# The solver aims far below the 1e-9 that the certificate asks for, since a Newton step there is cheap.
GOAL = 1e-12
_GOOD = 1e-10
_MAX_STEPS = 200
_PARTS = (1.0, 0.5, 0.25, 0.125)
_SAMPLE = 1 << 16
# Relative to a unit diagonal; makes the Hessian of duplicated clients invertible.
_RIDGE = 1e-12


def solve_dual(problem: Problem, budgets: Vector, start: Vector | None = None) -> Vector:
    """Maximise the dual (14) and return the multipliers, in rescaled units; fp64 ``[v]``.

    Each step solves a small non-negative quadratic program with the negative Hessian (20), so a
    multiplier may fall as well as rise. Its right-hand side is that of the secular equations
    ``b_k^(-1/2) = epsilon^(-1/2)``, which are nearly linear in the multipliers; where that step does not
    raise the dual enough, the plain gradient (13) is tried, whole and in parts, and then one exact
    coordinate sweep. The dual never falls, so the steps cannot cycle.

    Parameters
    ----------
    problem : Problem
        The reduced program.
    budgets : ndarray
        fp64 ``[v]``, positive, in rescaled units.
    start : ndarray, optional
        Multipliers to begin from; by default those of a sample of the coordinates.
    """
    multipliers = _start(problem, budgets) if start is None else start
    values, hessian = _evaluate(problem, multipliers)
    residual = kkt_residual(problem, multipliers, values, budgets)
    best, best_residual, stalled = multipliers, residual, 0
    for _ in range(_MAX_STEPS):
        if residual <= GOAL or (best_residual <= _GOOD and stalled >= 3):
            break
        multipliers = _next(problem, multipliers, values, hessian, budgets)
        values, hessian = _evaluate(problem, multipliers)
        residual = kkt_residual(problem, multipliers, values, budgets)
        stalled = 0 if residual < 0.5 * best_residual else stalled + 1
        if residual < best_residual:
            best, best_residual = multipliers, residual
    return best


def _next(problem: Problem, present: Vector, values: Vector, hessian: Matrix, budgets: Vector) -> Vector:
    """Return the first of the candidate steps that raises the dual."""
    secular = _newton(present, hessian, _secular(values, budgets))
    if secular is not None and _ascends(problem, present, secular, values, budgets):
        return secular
    full = _newton(present, hessian, values - budgets)
    if full is not None:
        for part in _PARTS:
            trial = np.asarray(present + part * (full - present))
            if _ascends(problem, present, trial, values, budgets):
                return trial
    return coordinate_sweep(problem, present, budgets)


def _start(problem: Problem, budgets: Vector) -> Vector:
    zero = np.zeros(len(budgets))
    if len(problem.base) <= _SAMPLE:
        return coordinate_sweep(problem, zero, budgets)
    thinned = problem.sample(-(-len(problem.base) // _SAMPLE))
    seen = thinned.budgets > 0
    if not seen.all():  # a client with no coordinate in the sample
        return zero
    return solve_dual(thinned, thinned.budgets * (budgets / problem.budgets))


def _evaluate(problem: Problem, multipliers: Vector) -> tuple[Vector, Matrix]:
    """Return the damages ``b_k(x(lambda))`` and the negative dual Hessian (20), scaled, in one pass.

    Row and column k of the Hessian are multiplied by :func:`_scale` of multiplier k.
    """
    v = len(multipliers)
    values, hessian = np.zeros(v), np.zeros((v, v))
    scale = _scale(multipliers)
    base = problem.scaled_base
    with np.errstate(under="ignore", over="ignore"):
        for run, fishers in problem.blocks():
            diagonal = 1.0 + np.einsum("k,kn->n", multipliers, fishers)
            update = base[run] / diagonal
            values += 0.5 * (fishers * np.square(update)).sum(axis=1)
            fishers *= scale[:, None]
            fishers *= base[run] / diagonal / np.sqrt(diagonal)
            hessian += fishers @ fishers.T
    return values, hessian


def _scale(multipliers: Vector) -> Vector:
    # A Fisher times its multiplier over S is at most 1: no product in the Hessian over- or underflows.
    return np.maximum(multipliers, 1.0)


def _ascends(problem: Problem, present: Vector, trial: Vector, values: Vector, budgets: Vector) -> bool:
    """Return whether the dual rises by at least a small part of what the gradient (13) promises.

    Written out, ``g(trial) - g(present)`` is ``sum_k (trial_k - present_k) (1/2 sum_j F_k x x' - epsilon)``
    with the updates x and x' of both points: a difference without cancellation.
    """
    step = trial - present
    promised = float(step @ (values - budgets))
    mixed = np.sqrt(shrinkage(problem, present)) * np.sqrt(shrinkage(problem, trial))
    rise = float(step @ (damages_of(problem, problem.scaled_base / mixed) - budgets))
    return promised > 0.0 and rise >= 1e-3 * promised


def _secular(values: Vector, budgets: Vector) -> Vector:
    """Right-hand side of Newton's method on ``b_k^(-1/2) = epsilon^(-1/2)`` in every client."""
    return np.asarray(2.0 * values * (np.sqrt(values / budgets) - 1.0))


def _newton(multipliers: Vector, hessian: Matrix, right_hand_side: Vector) -> Vector | None:
    """Minimise ``1/2 z'Hz - (r + H lambda)'z`` over ``z >= 0``; None where that fails in fp64."""
    diagonal = np.diagonal(hessian)
    if not (np.isfinite(hessian).all() and (diagonal > 0.0).all()):
        return None
    root, scale = np.sqrt(diagonal), _scale(multipliers)
    scaled = hessian / np.outer(root, root) + _RIDGE * np.eye(len(root))
    unit = root / scale
    try:
        lower = cholesky(scaled, lower=True)
        target = lower.T @ (unit * multipliers) + solve_triangular(lower, right_hand_side / unit, lower=True)
        solution, _ = nnls(lower.T, target)
    except (LinAlgError, ValueError, RuntimeError):
        return None
    step = np.asarray(solution / unit)
    return step if np.isfinite(step).all() else None


def coordinate_sweep(problem: Problem, multipliers: Vector, budgets: Vector) -> Vector:
    """Maximise the dual exactly in one multiplier after the other, each free to rise or fall."""
    multipliers = multipliers.copy()
    diagonal = shrinkage(problem, multipliers)
    base = problem.scaled_base
    for k in range(len(multipliers)):
        fisher = problem.fisher(k)
        others = np.maximum(diagonal - multipliers[k] * fisher, 1.0)
        on = fisher > 0.0
        multipliers[k] = _secular_root(fisher[on], base[on], others[on], budgets[k])
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
            scale = max(t, 1.0)
            slope = float(np.sum(np.square(update) * fisher * (scale * fisher / diagonal)))
            if not slope > 0.0:
                break
            step = 2.0 * value * (np.sqrt(ratio) - 1.0) / slope * scale
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
