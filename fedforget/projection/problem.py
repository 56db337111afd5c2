"""The primal program (P) of one tensor, reduced to the coordinates and clients that can matter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

# Elements of the Fisher matrix that one step of a pass works on: 1 MiB of fp64, so it stays in cache.
_BLOCK = 1 << 17
# Rescaled entries above this keep all their bits in fp32.
_FP32_FLOOR = 2.0**-100
_SMALLEST_BUDGET = 2.0**-900


@dataclass(frozen=True, eq=False)
class Problem:
    """Program (P) on the coordinates where a violated constraint acts.

    A client whose budget holds for the base update has multiplier zero: magnitudes only shrink
    (equation 12), so its damage only falls. Coordinates outside the supports of the other, violated
    clients keep their value. Neither takes part here.

    The numbers are rescaled by exact powers of two, the update by one and every Fisher diagonal by
    one of its own, so that the largest entries lie in [1/2, 1) and neither squares nor sums overflow.
    A multiplier in these units is ``lambda_k`` times the power of two of its client.

    Attributes
    ----------
    index : Tensor
        int64 ``[n]``, the coordinates in the flattened tensor.
    base : ndarray
        fp64 ``[n]``, the base update, in the caller's units.
    fishers : ndarray
        fp32 or fp64 ``[v, n]``, the Fisher diagonals of the violated clients, rescaled.
    clients : ndarray
        int64 ``[v]``, which retain clients the rows belong to.
    exponents : ndarray
        int64 ``[v]``, the power of two of each client's largest Fisher entry.
    exponent : int
        The power of two of the largest entry of ``base``.
    budgets : ndarray
        fp64 ``[v]``, epsilon in each client's rescaled units.
    """

    index: Tensor
    base: Vector
    fishers: NDArray[np.floating]
    clients: NDArray[np.int64]
    exponents: NDArray[np.int64]
    exponent: int
    budgets: Vector

    @property
    def in_range(self) -> bool:
        """Whether the multipliers and damages of the optimum are fp64 numbers in rescaled units."""
        return bool((self.budgets >= _SMALLEST_BUDGET).all())

    @property
    def peaks(self) -> Vector:
        """Largest rescaled Fisher entry of each client, in [1/2, 1)."""
        peaks: Vector = self.fishers.max(axis=1).astype(np.float64)
        return peaks

    @property
    def scaled_base(self) -> Vector:
        """The base update in rescaled units."""
        return np.ldexp(self.base, -self.exponent)

    def fisher(self, k: int) -> Vector:
        """Row ``k`` of the Fisher matrix in rescaled units; fp64 ``[n]``."""
        fisher: Vector = self.fishers[k].astype(np.float64)
        return fisher

    def blocks(self) -> Iterator[tuple[slice, Matrix]]:
        """Yield runs of coordinates with a copy of their Fisher matrix, always in the same order."""
        v, n = self.fishers.shape
        step = max(1024, _BLOCK // v)
        for start in range(0, n, step):
            run = slice(start, min(start + step, n))
            yield run, self.fishers[:, run].astype(np.float64)

    def sample(self, stride: int) -> Problem:
        """Take every ``stride``-th coordinate, with budgets in proportion to each client's damage there."""
        part = slice(None, None, stride)
        thinned = Problem(
            self.index[part],
            self.base[part],
            self.fishers[:, part],
            self.clients,
            self.exponents,
            self.exponent,
            self.budgets,
        )
        zero = np.zeros(len(self.clients))
        share = damages(thinned, zero) / damages(self, zero)
        return Problem(
            thinned.index,
            thinned.base,
            thinned.fishers,
            self.clients,
            self.exponents,
            self.exponent,
            self.budgets * share,
        )


def reduce_problem(
    base: Tensor, fishers: Sequence[Tensor], epsilon: float, violated: NDArray[np.int64]
) -> Problem:
    """Collect the coordinates with a non-zero base in the union of the violated clients' supports."""
    taking_part = torch.zeros_like(base, dtype=torch.bool)
    for k in violated:
        taking_part |= fishers[k] > 0
    taking_part &= base != 0
    index = torch.nonzero(taking_part).squeeze(1)
    values = _to_numpy(base[index])
    exponent = _exponent(np.abs(values).max())
    exponents = np.array([_exponent(float(fishers[k][index].max())) for k in violated], dtype=np.int64)
    fits_fp32 = all(fishers[k].dtype != torch.float64 for k in violated)
    matrix: NDArray[np.floating] = np.empty(
        (len(violated), len(values)), np.float32 if fits_fp32 else np.float64
    )
    for row, k in enumerate(violated):
        rescaled = np.ldexp(_to_numpy(fishers[k][index]), -exponents[row])
        if fits_fp32 and rescaled[rescaled > 0.0].min() < _FP32_FLOOR:
            matrix, fits_fp32 = matrix.astype(np.float64), False
        matrix[row] = rescaled
    with np.errstate(over="ignore", under="ignore"):
        budgets = np.ldexp(np.full(len(violated), epsilon), -(2 * exponent + exponents))
    return Problem(index, values, matrix, violated, exponents, exponent, budgets)


def damage(update: Tensor, fisher: Tensor) -> float:
    """Return ``b_k(update)``, equation (6), summed in fp64.

    Parameters
    ----------
    update, fisher : Tensor
        One-dimensional, of one length; the sum takes the coordinates with a positive Fisher.
    """
    support = torch.nonzero(fisher).squeeze(1)
    weights, values = _to_numpy(fisher[support]), _to_numpy(update[support])
    if not len(weights) or not values.any():
        return 0.0
    c, e = _exponent(weights.max()), _exponent(np.abs(values).max())
    with np.errstate(over="ignore", under="ignore"):
        total = 0.5 * np.sum(np.ldexp(weights, -c) * np.square(np.ldexp(values, -e)))
        return float(np.ldexp(total, c + 2 * e))


def shrinkage(problem: Problem, multipliers: Vector) -> Vector:
    """Return the diagonal of ``S(lambda)``, ``1 + sum_k lambda_k F_k(j)``; fp64 ``[n]``."""
    diagonal = np.empty(len(problem.base))
    with np.errstate(over="ignore"):
        for run, fishers in problem.blocks():
            diagonal[run] = 1.0 + np.einsum("k,kn->n", multipliers, fishers)
    return diagonal


def recover(problem: Problem, multipliers: Vector, stabiliser: float = 0.0) -> Vector:
    """Return the Lagrangian's minimiser, equation (12), in the caller's units; fp64 ``[n]``.

    The stabiliser is added where a multiplier acts; elsewhere the base is returned bit for bit.
    """
    diagonal = shrinkage(problem, multipliers)
    diagonal[diagonal > 1.0] += stabiliser
    return np.asarray(problem.base / diagonal)


def damages(problem: Problem, multipliers: Vector) -> Vector:
    """Return ``b_k(x(lambda))`` of every client, in rescaled units; fp64 ``[v]``."""
    return damages_of(problem, problem.scaled_base / shrinkage(problem, multipliers))


def damages_of(problem: Problem, update: Vector) -> Vector:
    """Return ``b_k(update)`` of every client; ``update`` and result in rescaled units."""
    totals = np.zeros(len(problem.clients))
    with np.errstate(under="ignore"):
        for run, fishers in problem.blocks():
            totals += 0.5 * (fishers * np.square(update[run])).sum(axis=1)
    return totals


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


def _exponent(value: float) -> int:
    return int(np.frexp(value)[1])


def _to_numpy(tensor: Tensor) -> Vector:
    array: Vector = tensor.cpu().to(torch.float64).numpy()
    return array
