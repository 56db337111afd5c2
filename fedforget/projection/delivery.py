"""From fp64 multipliers to a tensor that satisfies its budgets in the dtype it is delivered in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedforget.projection.exact import feasible_growth, solve_dual
from fedforget.projection.problem import Problem, Vector, damages, damages_of, kkt_residual, recover

# Sums of the same numbers in another order may differ by this much, so the budget is left that far.
SUMMATION = 1e-12
_TARGET = 1.0 - 4.0 * SUMMATION
_ATTEMPTS = 4
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

    Rounding the optimum to nearest breaks ``b_k <= epsilon`` about as often as not. Up to three times the
    budgets that broke are reduced by the excess and the dual is solved again; then the first optimum is
    rounded toward zero, which cannot raise a damage. Returns None where no finite multiplier is
    large enough in fp64.
    """
    budgets = problem.budgets * _TARGET
    lowest = budgets * (1.0 - torch.finfo(dtype).eps)
    first = multipliers = solve_dual(problem, budgets)
    for attempt in range(_ATTEMPTS):
        if attempt:
            multipliers = solve_dual(problem, budgets, multipliers)
        residual = kkt_residual(problem, multipliers, damages(problem, multipliers), budgets)
        delivered = Delivered(_cast(recover(problem, multipliers), dtype), multipliers, residual)
        excess = _damages_of(problem, delivered.values) / (problem.budgets * (1.0 - SUMMATION))
        broken = ~(excess <= 1.0)
        if not broken.any():
            return delivered
        # Twice the excess at first: rounding falls out anew, so the bare excess would do every other time.
        # Rounding to nearest adds at most one machine epsilon, so no budget need shrink by more.
        budgets[broken] *= _TARGET * excess[broken] ** -(2.0 ** (attempt + 1))
        np.maximum(budgets, lowest, out=budgets)
    grown = feasible_growth(problem, first, problem.budgets * (1.0 - 2.0 * SUMMATION))
    if grown is None:
        return None
    budgets = problem.budgets * _TARGET
    residual = kkt_residual(problem, grown, damages(problem, grown), budgets)
    return Delivered(_toward_zero(recover(problem, grown), dtype), grown, residual)


def deliver_as_is(problem: Problem, multipliers: Vector, dtype: torch.dtype, stabiliser: float) -> Delivered:
    """Recover with the paper's stabilised denominator, cast to nearest and check nothing."""
    residual = kkt_residual(problem, multipliers, damages(problem, multipliers), problem.budgets)
    return Delivered(_cast(recover(problem, multipliers, stabiliser), dtype), multipliers, residual)


def _cast(update: Vector, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(update).to(dtype)


def _toward_zero(update: Vector, dtype: torch.dtype) -> Tensor:
    exact = torch.from_numpy(update)
    rounded = exact.to(dtype)
    # Floating formats are sign and magnitude: one less, read as an integer, is the next value toward zero.
    lower = (rounded.view(_INTEGER[dtype.itemsize]) - 1).view(dtype)
    return torch.where(rounded.to(torch.float64).abs() > exact.abs(), lower, rounded)


def _damages_of(problem: Problem, values: Tensor) -> Vector:
    return damages_of(problem, np.ldexp(values.to(torch.float64).numpy(), -problem.exponent))
