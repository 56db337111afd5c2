"""The primal program (P) of one tensor, reduced to the coordinates and clients that can matter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedforget.projection.compiled import Kernels, compile_kernels
from fedforget.projection.sparse import (
    PLAIN_POWER,
    FisherSupport,
    Places,
    exponent,
    largest_magnitude,
    rescaled,
    times_power_,
)

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

# Elements of the Fisher matrix that one step of a pass works on: with its temporaries it stays in cache.
_BLOCK = 1 << 15
# Coordinates of the whole tensor per step while the matrix is built, and entries of a single row.
_CHUNK = 1 << 22
_STEP = 1 << 17
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

    Attributes
    ----------
    places : Tensor or slice
        The ``n`` coordinates in the flattened tensor: int64 ``[n]``, or a slice.
    base : ndarray
        fp64 ``[n]``, the base update, rescaled.
    fishers : ndarray
        fp32 or fp64 ``[v, n]``, the Fisher diagonals of the violated clients, rescaled, times their divisor.
    clients : ndarray
        int64 ``[v]``, which retain clients the rows belong to.
    exponents : ndarray
        int64 ``[v]``, the power of two of each client's largest Fisher entry.
    divisors : ndarray
        fp64 ``[v]``, see :class:`FisherSupport`.
    exponent : int
        The power of two of the largest entry of ``base``.
    budgets : ndarray
        fp64 ``[v]``, epsilon in each client's rescaled units.
    before : ndarray
        fp64 ``[v]``, the base's damages in rescaled units.
    compiled : bool
        Whether numba does what it can.
    """

    places: Places
    base: Vector
    fishers: NDArray[np.floating]
    clients: NDArray[np.int64]
    exponents: NDArray[np.int64]
    divisors: Vector
    exponent: int
    budgets: Vector
    before: Vector
    compiled: bool = False

    def kernels(self, dtype: torch.dtype) -> Kernels | None:
        """Return the kernels where they do a pass that delivers this dtype."""
        single = len(self.fishers) == 1 and self.fishers.dtype == np.float32
        fits = single and dtype == torch.bfloat16 and abs(self.exponent) < PLAIN_POWER
        return compile_kernels() if self.compiled and fits else None

    @property
    def in_range(self) -> bool:
        """Whether the multipliers and damages of the optimum are fp64 numbers in rescaled units."""
        return bool((self.budgets >= _SMALLEST_BUDGET).all() and (self.budgets < np.inf).all())

    @cached_property
    def peaks(self) -> Vector:
        """Largest rescaled Fisher entry of each client, in [1/2, 1)."""
        peaks: Vector = self.fishers.max(axis=1).astype(np.float64)
        return peaks

    def fisher(self, k: int) -> Vector:
        """Row ``k`` of the Fisher matrix in rescaled units; fp64 ``[n]``."""
        fisher: Vector = self.fishers[k].astype(np.float64)
        return fisher

    def true_multipliers(self, multipliers: Vector) -> Vector:
        """Return ``lambda_k`` of equation (8) for multipliers in rescaled units."""
        with np.errstate(over="ignore", under="ignore"):
            return np.asarray(np.ldexp(multipliers * self.divisors, -self.exponents))

    def rescaled_multipliers(self, multipliers: Vector) -> Vector:
        """Return multipliers in rescaled units for those of equation (8)."""
        with np.errstate(over="ignore", under="ignore"):
            return np.asarray(np.ldexp(multipliers / self.divisors, self.exponents))

    def true_damages(self, values: Vector) -> Vector:
        """Return ``b_k`` of equation (6) for damages in rescaled units."""
        with np.errstate(over="ignore", under="ignore"):
            return np.asarray(np.ldexp(values / self.divisors, self.exponents + 2 * self.exponent))

    def runs(self) -> Iterator[slice]:
        """Yield runs of coordinates, always the same."""
        v, n = self.fishers.shape
        step = max(1024, _BLOCK // v)
        for start in range(0, n, step):
            yield slice(start, min(start + step, n))

    def blocks(self) -> Iterator[tuple[slice, Matrix]]:
        """Yield runs of coordinates with a copy of their Fisher matrix."""
        for run in self.runs():
            yield run, self.fishers[:, run].astype(np.float64)

    def round(self, update: Vector, dtype: torch.dtype) -> Tensor:
        """Cast an update in rescaled units to the dtype it is delivered in, to nearest."""
        with np.errstate(over="ignore", under="ignore"):
            return torch.from_numpy(times_power_(update.copy(), self.exponent)).to(dtype)

    def unround(self, values: Tensor) -> Vector:
        """Return delivered values in rescaled units."""
        return rescaled(values, -self.exponent)

    def grouped(self) -> Problem | None:
        """Sum the base's squares over coordinates with equal Fisher entries: the same dual, in few terms.

        Returns
        -------
        Problem or None
            For a single client whose Fisher takes few values, as one that came in bf16 does, however it was
            scaled; its ``places`` are empty. None for another one.
        """
        if len(self.fishers) > 1 or self.fishers.dtype != np.float32:
            return None
        fishers = self.fishers[0]
        # Two numbers that bf16 tells apart differ, after one product or quotient, in these bits.
        bits = fishers.view(np.int32)
        low, high = (int(end) >> 15 for end in (bits.min(), bits.max()))
        values, sums = np.zeros(high - low + 1, np.float32), np.zeros(high - low + 1)
        group = _group_compiled if self.compiled else _group
        for start in range(0, len(bits), _STEP):
            part = slice(start, start + _STEP)
            alike, some = group(fishers[part], self.base[part], low, values)
            if not alike:
                return None
            sums += some
        on = np.flatnonzero(values)
        return replace(self, places=slice(0, 0), base=np.sqrt(sums[on]), fishers=values[on][None])

    def sample(self, stride: int) -> Problem:
        """Take every ``stride``-th coordinate, without places; the budgets stay those of the whole."""
        part = slice(None, None, stride)
        return replace(
            self,
            places=slice(0, 0),
            base=np.ascontiguousarray(self.base[part]),
            fishers=np.ascontiguousarray(self.fishers[:, part]),
        )


def reduce_problem(
    base: Tensor,
    fishers: Sequence[FisherSupport],
    epsilon: float,
    violated: NDArray[np.int64],
    before: Vector,
    *,
    compiled: bool = False,
) -> Problem:
    """Collect the coordinates with a non-zero base in the union of the violated clients' supports.

    ``before`` holds the base's damages to the violated clients.
    """
    acting = [_where_non_zero(base, fishers[k]) for k in violated]
    places = acting[0].places if len(acting) == 1 else _union(acting, base.numel())
    values = base[places]
    power = exponent(largest_magnitude(values))
    powers = np.array([exponent(float(one.values.max())) for one in acting], dtype=np.int64)
    divisors = np.array([one.divisor for one in acting])
    with np.errstate(over="ignore", under="ignore"):
        budgets = np.ldexp(epsilon * divisors, -(2 * power + powers))
        start = np.ldexp(before * divisors, -(2 * power + powers))
    matrix = _matrix(acting, places, powers)
    at = rescaled(values, -power)
    return Problem(places, at, matrix, violated, powers, divisors, power, budgets, start, compiled)


def _group(
    fishers: NDArray[np.float32], base: Vector, low: int, values: NDArray[np.float32]
) -> tuple[bool, Vector]:
    """Note Fisher entries in a table by their leading bits, and add up the base's squares alongside.

    Returns
    -------
    tuple of (bool, ndarray)
        Whether no two entries collided in the table, and the sums.
    """
    before = values.copy()
    known = before > 0.0
    keys = fishers.view(np.int32) >> 15
    keys -= low
    values[keys] = fishers
    alike = np.array_equal(values[keys], fishers) and np.array_equal(values[known], before[known])
    sums: Any = np.bincount(keys, np.square(base), len(values))
    return alike, sums


def _group_compiled(
    fishers: NDArray[np.float32], base: Vector, low: int, values: NDArray[np.float32]
) -> tuple[bool, Vector]:
    sums = np.zeros(len(values))
    return compile_kernels().group(fishers, base, low, values, sums), sums


def _where_non_zero(base: Tensor, fisher: FisherSupport) -> FisherSupport:
    values = base[fisher.places]
    if bool(values.abs().min() > 0):  # several times as fast as the comparison of every value
        return fisher
    return fisher.where(values != 0)


def _union(fishers: Sequence[FisherSupport], size: int) -> Tensor:
    taking_part = torch.zeros(size, dtype=torch.bool)
    for one in fishers:
        taking_part[one.places] = True
    return torch.nonzero(taking_part).squeeze(1)


def _matrix(
    fishers: Sequence[FisherSupport], places: Places, powers: NDArray[np.int64]
) -> NDArray[np.floating]:
    """Lay the rescaled Fishers out over the union of their supports."""
    narrow = all(
        one.values.dtype != torch.float64 and np.ldexp(float(one.values.min()), -power) >= _FP32_FLOOR
        for one, power in zip(fishers, powers, strict=True)
    )
    kind = np.float32 if narrow else np.float64
    if isinstance(places, slice) or len(fishers) == 1:
        matrix = np.empty((1, len(fishers[0].values)), kind)
        for start in range(0, matrix.size, _STEP):
            part = slice(start, start + _STEP)
            matrix[0, part] = rescaled(fishers[0].values[part], -int(powers[0]))
        return matrix
    matrix = np.zeros((len(fishers), len(places)), kind)
    position = torch.empty(_CHUNK, dtype=torch.int64)
    positions = [one.positions for one in fishers]
    for start in range(0, int(places[-1]) + 1, _CHUNK):
        first, last = _cut(places, start)
        position[places[first:last] - start] = torch.arange(first, last)
        for row, one in enumerate(fishers):
            low, high = _cut(positions[row], start)
            where = position[positions[row][low:high] - start].numpy()
            matrix[row, where] = rescaled(one.values[low:high], -int(powers[row]))
    return matrix


def _cut(index: Tensor, start: int) -> tuple[int, int]:
    first, last = torch.searchsorted(index, torch.tensor([start, start + _CHUNK])).tolist()
    return first, last
