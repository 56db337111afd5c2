"""From fp64 multipliers to a tensor that satisfies its budgets in the dtype it is delivered in."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedforget.projection.exact import GOAL, GOOD, feasible_growth, solve_dual
from fedforget.projection.passes import Point, damages, kkt_residual, recover, rounding
from fedforget.projection.problem import Problem, Vector

# Sums of the same numbers in another order may differ by this much, so the budget is left that far.
SUMMATION = 1e-12
_TARGET = 1.0 - 4.0 * SUMMATION
_ATTEMPTS = 4
_NEAR = 1e-3
# From this many coordinates on, what rounding adds is predicted: a second solution costs more passes.
_PREDICTED = 1 << 13
# From this many on it is predicted from every so many-th coordinate; few widths are multiples of 11.
_SAMPLED, _STRIDE = 1 << 20, 11
# Relative rounding errors have a standard deviation of about 0.22 machine epsilons; squares have twice that.
_DEVIATIONS = 3.0 * 0.44
_INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, eq=False)
class Delivered:
    """Rounded values and the multipliers they come from.

    Attributes
    ----------
    values : Tensor
        ``[n]`` in the delivered dtype, on the CPU.
    multipliers : ndarray
        fp64 ``[v]``, in rescaled units.
    before_rounding : float
        KKT residual of the fp64 point for the budgets that were solved for.
    """

    values: Tensor
    multipliers: Vector
    before_rounding: float


def deliver_exact(problem: Problem, dtype: torch.dtype) -> Delivered | None:
    """Solve, cast, check in fp64 on the cast values, and shrink the budgets until every one holds.

    Rounding the optimum to nearest breaks ``b_k <= epsilon`` about as often as not. On many coordinates
    what it will add is known well from a point near the optimum, and the budgets are shrunk in advance.
    Up to three times the budgets that broke are reduced by the excess and the dual is solved again; then
    the first optimum is rounded toward zero, which cannot raise a damage. Returns None where no finite
    multiplier is large enough in fp64.
    """
    # Where the dual can be solved in few terms, only the update itself is built from all.
    terms = problem.grouped() if len(problem.base) >= _PREDICTED else None
    dual, cast = (problem, dtype) if terms is None else (terms, None)
    budgets = problem.budgets * _TARGET
    lowest = budgets * (1.0 - torch.finfo(dtype).eps)
    point, goal = None, GOAL
    if len(problem.base) >= _PREDICTED:
        goal = GOOD
        point = solve_dual(dual, budgets, dtype=cast, goal=_NEAR)
        budgets *= _allowance(problem, point, dtype)
        np.maximum(budgets, lowest, out=budgets)
    first = point = solve_dual(dual, budgets, point, cast, goal)
    for attempt in range(_ATTEMPTS):
        if attempt:
            point = solve_dual(dual, budgets, point, cast, goal)
        rounded = point.rounded or rounding(problem, point.multipliers, dtype)
        excess = rounded.damages / (problem.budgets * (1.0 - SUMMATION))
        broken = ~(excess <= 1.0)
        if not broken.any():
            residual = kkt_residual(problem, point.multipliers, point.damages, budgets)
            return Delivered(rounded.values, point.multipliers, residual)
        # Twice the excess at first: rounding falls out anew, so the bare excess would do every other time.
        # Rounding to nearest adds at most one machine epsilon, so no budget need shrink by more.
        budgets[broken] *= _TARGET * excess[broken] ** -(2.0 ** (attempt + 1))
        np.maximum(budgets, lowest, out=budgets)
    grown = feasible_growth(problem, first.multipliers, problem.budgets * (1.0 - 2.0 * SUMMATION))
    if grown is None:
        return None
    residual = kkt_residual(problem, grown, damages(problem, grown), problem.budgets * _TARGET)
    return Delivered(_toward_zero(problem, recover(problem, grown), dtype), grown, residual)


def _allowance(problem: Problem, point: Point, dtype: torch.dtype) -> Vector:
    """Return the part of each budget, at most 1, that what rounding adds will fill up to the whole."""
    rounded, damages_, spare = point.rounded, point.damages, 1.0
    if rounded is None:
        if len(problem.base) >= _SAMPLED:
            sample = problem.sample(_STRIDE)
            sampled = damages(sample, point.multipliers)
            if (sampled > 0.0).all():  # no client whose coordinates all lie outside the sample
                problem, damages_, spare = sample, sampled, math.sqrt(1.0 + 1.0 / _STRIDE)
        rounded = rounding(problem, point.multipliers, dtype)
    bias = np.maximum(rounded.damages / np.maximum(damages_, np.finfo(np.float64).tiny), 1.0)
    # What a sample says of the bias is off by the sample's own noise, and the whole adds its own.
    noise = spare * _DEVIATIONS * torch.finfo(dtype).eps * rounded.spread
    return np.asarray((1.0 - noise) / bias)


def deliver_as_is(problem: Problem, multipliers: Vector, dtype: torch.dtype, stabiliser: float) -> Delivered:
    """Recover with the paper's stabilised denominator, cast to nearest and check nothing."""
    residual = kkt_residual(problem, multipliers, damages(problem, multipliers), problem.budgets)
    return Delivered(problem.round(recover(problem, multipliers, stabiliser), dtype), multipliers, residual)


def _toward_zero(problem: Problem, update: Vector, dtype: torch.dtype) -> Tensor:
    exact = torch.from_numpy(np.ldexp(update, problem.exponent))
    rounded = exact.to(dtype)
    # Floating formats are sign and magnitude: one less, read as an integer, is the next value toward zero.
    lower = (rounded.view(_INTEGER[dtype.itemsize]) - 1).view(dtype)
    return torch.where(rounded.to(torch.float64).abs() > exact.abs(), lower, rounded)
