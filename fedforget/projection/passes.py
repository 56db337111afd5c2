"""Passes over the coordinates of a reduced problem: each reads the Fisher matrix once.

Everything is summed in fp64 over blocks in a fixed order. Updates, damages, budgets and multipliers are
in the problem's rescaled units.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedforget.projection.compiled import Kernels
from fedforget.projection.problem import Matrix, Problem, Vector


@dataclass(frozen=True, eq=False)
class Rounded:
    """An update in the dtype it is delivered in.

    Attributes
    ----------
    values : Tensor
        ``[n]``, ``x(lambda)`` cast to nearest, in the caller's units.
    damages : ndarray
        fp64 ``[v]``, ``b_k`` of the cast values.
    spread : ndarray
        fp64 ``[v]``, ``sqrt(sum_j t_j^2) / sum_j t_j`` of the terms of ``b_k``: what the relative rounding
        errors of single coordinates are multiplied by to give that of ``b_k``.
    """

    values: Tensor
    damages: Vector
    spread: Vector


@dataclass(frozen=True, eq=False)
class Point:
    """What one pass finds at given multipliers.

    Attributes
    ----------
    multipliers : ndarray
        fp64 ``[v]``.
    damages : ndarray
        fp64 ``[v]``, ``b_k(x(lambda))``.
    hessian : ndarray
        fp64 ``[v, v]``, the negative dual Hessian (20), row and column k multiplied by
        :func:`scale` of multiplier k.
    rounded : Rounded or None
        ``x(lambda)`` after its cast, where that was asked for.
    """

    multipliers: Vector
    damages: Vector
    hessian: Matrix
    rounded: Rounded | None = None


def evaluate(problem: Problem, multipliers: Vector, dtype: torch.dtype | None = None) -> Point:
    """Evaluate the dual's gradient and Hessian, and, where a dtype is given, the rounded update."""
    v = len(multipliers)
    values, hessian = np.zeros(v), np.zeros((v, v))
    cast = None if dtype is None else _Cast(problem, dtype)
    factor = scale(multipliers)[:, None]
    with np.errstate(under="ignore", over="ignore"):
        for run, fishers in problem.blocks():
            diagonal = _diagonal(fishers, multipliers)
            update = problem.base[run] / diagonal
            values += np.einsum("kn,n->k", fishers, update * update)
            if cast is not None:
                cast.add(run, fishers, update)
            fishers *= factor
            fishers *= update / np.sqrt(diagonal)
            hessian += fishers @ fishers.T
    return Point(multipliers, 0.5 * values, hessian, None if cast is None else cast.done())


def rounding(problem: Problem, multipliers: Vector, dtype: torch.dtype) -> Rounded:
    """Cast ``x(lambda)`` to nearest and sum its damages."""
    cast = _Cast(problem, dtype)
    kernels = problem.kernels(dtype)
    with np.errstate(under="ignore", over="ignore"):
        if kernels is not None:
            for run in problem.runs():
                cast.add_compiled(run, float(multipliers[0]), kernels)
            return cast.done()
        for run, fishers in problem.blocks():
            cast.add(run, fishers, problem.base[run] / _diagonal(fishers, multipliers))
    return cast.done()


class _Cast:
    """Builds a rounded update block by block."""

    def __init__(self, problem: Problem, dtype: torch.dtype) -> None:
        self._problem = problem
        self._values = torch.empty(len(problem.base), dtype=dtype)
        self._sums, self._squares = np.zeros(len(problem.clients)), np.zeros(len(problem.clients))

    def add(self, run: slice, fishers: Matrix, update: Vector) -> None:
        self._values[run] = self._problem.round(update, self._values.dtype)
        self._sum(fishers * np.square(self._problem.unround(self._values[run])))

    def add_compiled(self, run: slice, multiplier: float, kernels: Kernels) -> None:
        """Do the same for a single client's run at a multiplier."""
        fishers, bits = self._problem.fishers[0, run], self._values[run].view(torch.uint16).numpy()
        power, terms = self._problem.exponent, np.empty((1, len(fishers)))
        kernels.cast(self._problem.base[run], fishers, multiplier, 2.0**power, bits)
        kernels.terms(bits, fishers, 2.0**-power, 1.0, terms[0])
        self._sum(terms)

    def _sum(self, terms: Matrix) -> None:
        self._sums += terms.sum(axis=1)
        self._squares += np.einsum("kn,kn->k", terms, terms)

    def done(self) -> Rounded:
        spread = np.sqrt(self._squares) / np.maximum(self._sums, np.finfo(np.float64).tiny)
        return Rounded(self._values, 0.5 * self._sums, spread)


def scale(multipliers: Vector) -> Vector:
    """Return what row k of a Hessian is multiplied by, ``max(lambda_k, 1)``.

    A Fisher times its multiplier over S is at most 1: no product in the Hessian over- or underflows.
    """
    return np.maximum(multipliers, 1.0)


def shrinkage(problem: Problem, multipliers: Vector) -> Vector:
    """Return the diagonal of ``S(lambda)``, ``1 + sum_k lambda_k F_k(j)``; fp64 ``[n]``."""
    diagonal = np.empty(len(problem.base))
    with np.errstate(over="ignore"):
        for run, fishers in problem.blocks():
            diagonal[run] = _diagonal(fishers, multipliers)
    return diagonal


def recover(problem: Problem, multipliers: Vector, stabiliser: float = 0.0) -> Vector:
    """Return the Lagrangian's minimiser, equation (12); fp64 ``[n]``.

    The stabiliser is added where a multiplier acts.
    """
    diagonal = shrinkage(problem, multipliers)
    diagonal[diagonal > 1.0] += stabiliser
    return np.asarray(problem.base / diagonal)


def damages(problem: Problem, multipliers: Vector) -> Vector:
    """Return ``b_k(x(lambda))`` of every client; fp64 ``[v]``."""
    totals = np.zeros(len(problem.clients))
    with np.errstate(under="ignore", over="ignore"):
        for run, fishers in problem.blocks():
            update = problem.base[run] / _diagonal(fishers, multipliers)
            totals += np.einsum("kn,n->k", fishers, update * update)
    return 0.5 * totals


def rise(problem: Problem, present: Vector, trial: Vector, budgets: Vector) -> float:
    """Return ``g(trial) - g(present)``, the rise of the dual (14).

    Written out, it is ``sum_k (trial_k - present_k) (1/2 sum_j F_k x x' - epsilon)`` with the updates x
    and x' of both points: a difference without cancellation.
    """
    totals = np.zeros(len(problem.clients))
    with np.errstate(under="ignore", over="ignore"):
        for run, fishers in problem.blocks():
            first = problem.base[run] / _diagonal(fishers, present)
            second = problem.base[run] / _diagonal(fishers, trial)
            totals += np.einsum("kn,n->k", fishers, first * second)
    return float((trial - present) @ (0.5 * totals - budgets))


@dataclass(frozen=True, eq=False)
class Check:
    """What one pass finds about any update and multipliers.

    Attributes
    ----------
    damages : ndarray
        fp64 ``[v]``, ``b_k`` of the update.
    stationarity : float
        ``||S x - base|| / ||base||``, equation (16).
    gap : float
        ``sum_j S (x - base / S)^2``, twice what the duality gap owes to stationarity.
    """

    damages: Vector
    stationarity: float
    gap: float


def check(problem: Problem, update: Tensor, multipliers: Vector) -> Check:
    """Check a delivered update ``[n]``, in the caller's units, in one pass."""
    totals = np.zeros(len(problem.clients) + 3)
    kernels = problem.kernels(update.dtype)
    with np.errstate(under="ignore", over="ignore"):
        for run in problem.runs():
            if kernels is None:
                terms = _check_terms(problem, run, update[run], multipliers)
            else:
                terms = np.empty((4, run.stop - run.start))
                bits, down = update[run].contiguous().view(torch.uint16).numpy(), 2.0**-problem.exponent
                kernels.check(
                    problem.base[run], problem.fishers[0, run], bits, float(multipliers[0]), down, terms
                )
            totals += terms.sum(axis=1)
    residual, norm, gap = totals[-3:]
    return Check(0.5 * totals[:-3], float(np.sqrt(residual / norm)), float(gap))


def _check_terms(problem: Problem, run: slice, update: Tensor, multipliers: Vector) -> Matrix:
    """What a check adds up, coordinate by coordinate: a row per client, and three more."""
    fishers: Matrix = problem.fishers[:, run].astype(np.float64)
    base, x = problem.base[run], problem.unround(update)
    diagonal = _diagonal(fishers, multipliers)
    off = diagonal * x - base
    fishers *= np.square(x)
    return np.vstack([fishers, off * off, base * base, off * (off / diagonal)])


def kkt_residual(problem: Problem, multipliers: Vector, damage_values: Vector, budgets: Vector) -> float:
    """Return the larger of the relative violations of (17) and (19), for given budgets.

    The multipliers must be non-negative; ``x(lambda)`` is stationary by construction, so (16) and (18) hold.
    """
    return max(excess(damage_values, budgets), slackness(problem, multipliers, damage_values, budgets))


def excess(damage_values: Vector, budgets: Vector) -> float:
    """Return ``max_k max(0, b_k / epsilon - 1)``, equation (17)."""
    return float(max(0.0, (damage_values / budgets - 1.0).max()))


def slackness(problem: Problem, multipliers: Vector, damage_values: Vector, budgets: Vector) -> float:
    """Return the largest ``|b_k / epsilon - 1|``, weighted by shares of the shrinkage, equation (19)."""
    weights = multipliers * problem.peaks
    if not weights.any():
        return 0.0
    return float((weights / weights.max() * np.abs(damage_values / budgets - 1.0)).max())


def _diagonal(fishers: Matrix, multipliers: Vector) -> Vector:
    diagonal: Vector = np.einsum("k,kn->n", multipliers, fishers)
    diagonal += 1.0
    return diagonal
