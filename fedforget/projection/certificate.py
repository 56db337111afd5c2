"""What can be checked about a delivered update: the KKT residuals (16) to (19) and the duality gap."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedforget.projection.passes import check, excess, slackness
from fedforget.projection.problem import Problem, Vector

SOLVER_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Certificate:
    """KKT residuals of the delivered tensor, after its cast, all computed in fp64.

    Every residual is a pure number that does not change when the base update or the budget's unit is
    rescaled. ``x`` is the delivered update, ``S`` the diagonal ``1 + sum_k lambda_k F_k``; norms run over
    the coordinates that take part (non-zero base, in the support of a client whose budget the base breaks).

    Attributes
    ----------
    stationarity : float
        Equation (16): ``||S x - base|| / ||base||``, Euclidean norms. About half the dtype's epsilon
        for an optimum that was rounded.
    primal : float
        Equation (17): ``max_k max(0, b_k(x) / epsilon - 1)``. Zero means that every budget holds,
        with no tolerance.
    dual : float
        Equation (18): ``max_k max(0, -lambda_k) / max_k |lambda_k|``.
    complementarity : float
        Equation (19): ``max_k w_k |b_k(x) / epsilon - 1|``; the weight ``w_k`` is ``lambda_k max_j F_k(j)``,
        the largest shrinkage that client k causes, over the largest such value of all clients.
    duality_gap : float
        ``1/2 ||x - base||^2 - g(lambda)``, in the squared units of the base. Where ``primal`` is zero it is
        an upper bound on ``1/2 ||x - x*||^2``, with ``x*`` the exact optimum.
    before_rounding : float
        The larger of the primal and complementarity residuals of ``x(lambda)``, equation (12), in fp64 and
        before the cast. For a dtype narrower than fp64 the budgets meant here are those that were
        solved for: epsilon, less what rounding added.
    tolerance : float
        ``max(1e-9, 2 eps)``, ``eps`` the dtype's machine epsilon: rounding an exact optimum to nearest or
        toward zero keeps every residual below it, as long as nothing falls into the subnormal range.
    certified : bool
        True when ``primal`` and ``dual`` are exactly zero, ``stationarity`` and ``complementarity`` at most
        ``tolerance``, and ``before_rounding`` at most 1e-9. The multipliers then prove that ``x`` is feasible
        and, up to the rounding of its dtype, the closest update to the base.
    """

    stationarity: float
    primal: float
    dual: float
    complementarity: float
    duality_gap: float
    before_rounding: float
    tolerance: float
    certified: bool


def certify(
    problem: Problem, update: Tensor, multipliers: Vector, before_rounding: float, dtype: torch.dtype
) -> tuple[Certificate, Vector]:
    """Certify a delivered update, in one pass.

    Parameters
    ----------
    problem : Problem
        The reduced program.
    update : Tensor
        ``[n]``, the delivered values of the coordinates that take part, in the caller's units.
    multipliers : ndarray
        fp64 ``[v]``, in rescaled units.
    before_rounding : float
        See :class:`Certificate`.
    dtype : torch.dtype
        What the update is delivered in.

    Returns
    -------
    tuple of Certificate and ndarray
        And fp64 ``[v]``, the damages of the delivered values in rescaled units.
    """
    found = check(problem, update, multipliers)
    # P(x) - g(lambda) = [L(x, lambda) - g(lambda)] + [P(x) - L(x, lambda)]: no cancellation.
    gap = 0.5 * found.gap + float(multipliers @ (problem.budgets - found.damages))
    primal = excess(found.damages, problem.budgets)
    largest = float(np.abs(multipliers).max())
    dual = max(0.0, -float(multipliers.min())) / largest if largest else 0.0
    complementarity = slackness(problem, multipliers, found.damages, problem.budgets)
    tolerance = rounding_tolerance(dtype)
    certified = (
        primal == 0.0
        and dual == 0.0
        and found.stationarity <= tolerance
        and complementarity <= tolerance
        and before_rounding <= SOLVER_TOLERANCE
    )
    with np.errstate(over="ignore", under="ignore"):
        gap = float(np.ldexp(gap, 2 * problem.exponent))
    certificate = Certificate(
        found.stationarity, primal, dual, complementarity, gap, before_rounding, tolerance, certified
    )
    return certificate, found.damages


def trivial(dtype: torch.dtype) -> Certificate:
    """Certify an optimum in closed form: the base itself, or zero on the supports for a zero budget."""
    return Certificate(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, rounding_tolerance(dtype), True)


def zeroed(problem: Problem, dtype: torch.dtype) -> Certificate:
    """Certify an update set to zero because no finite multiplier is large enough: feasible, no more."""
    with np.errstate(over="ignore", under="ignore"):
        distance = 0.5 * float(np.ldexp(np.sum(np.square(problem.base)), 2 * problem.exponent))
    return Certificate(0.0, 0.0, 0.0, 1.0, distance, math.inf, rounding_tolerance(dtype), False)


def rounding_tolerance(dtype: torch.dtype) -> float:
    """Return what rounding to ``dtype`` may add to a residual of an exact optimum, at least 1e-9."""
    return max(SOLVER_TOLERANCE, 2.0 * torch.finfo(dtype).eps)
