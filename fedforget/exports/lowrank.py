"""The best approximation of a matrix by one of a lower rank (truncated SVD).

A large matrix is projected onto a random subspace that a few power iterations turn towards its
leading singular vectors (Halko, Martinsson and Tropp 2011, algorithms 4.4 and 5.1), which costs a
few products with thin matrices. Where the rank asked for is no longer small beside the matrix,
the eigenvectors of its Gram matrix on the shorter side are cheaper, and exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedforget.errors import ExportError
from fedforget.rng import seeded

_OVERSAMPLING = 8
_POWER_ITERATIONS = 2
# Room for the rounding of fp32 factors, in the squared error.
_MARGIN = 0.999
# Entries per step of the error's sum: 8 MiB in fp64.
_BLOCK = 1 << 20


@dataclass(frozen=True, eq=False)
class LowRank:
    """Factors of an approximation ``B @ A``, and how far it is from the matrix.

    Attributes
    ----------
    A : Tensor
        fp32, shape ``[r, d_in]``.
    B : Tensor
        fp32, shape ``[d_out, r]``; orthonormal columns.
    squared_error, squared_norm : float
        Squared Frobenius norms of ``matrix - B @ A``, measured on these factors, and of the matrix.
    """

    A: Tensor
    B: Tensor
    squared_error: float
    squared_norm: float

    @property
    def rank(self) -> int:
        """Number of rows of ``A``."""
        return int(self.A.shape[0])

    @property
    def relative_error(self) -> float:
        """``||matrix - B A||_F / ||matrix||_F``."""
        return math.sqrt(self.squared_error / self.squared_norm) if self.squared_norm > 0.0 else 0.0


def of_rank(matrix: Tensor, rank: int, seed: int) -> LowRank:
    """Approximate a matrix by one of at most a given rank.

    Parameters
    ----------
    matrix : Tensor
        Shape ``[d_out, d_in]``, any floating dtype.
    rank : int
        At least 1; cut to the shorter side.
    seed : int
        Of the random subspace.

    Raises
    ------
    ExportError
        The rank is below 1.
    """
    if rank < 1:
        raise ExportError(f"--rank: {rank} is no rank; give a whole number from 1")
    wide = matrix.float()
    rank = min(rank, *wide.shape)
    basis, _ = _leading(wide, rank, seed)
    return _factors(wide, basis[:, :rank])


def of_error(matrix: Tensor, target: float, seed: int) -> LowRank:
    """Approximate a matrix by one of about the lowest rank whose relative error is at most ``target``.

    Ranks are tried from 16, doubling; the singular values that come with each say where to cut.

    Raises
    ------
    ExportError
        The target is not in (0, 1), or below what fp32 factors can reach.
    """
    if not 0.0 < target < 1.0:
        raise ExportError(f"--error: {target:g} is no relative error; give a number between 0 and 1")
    wide = matrix.float()
    total = _squared_norm(wide)
    shorter = min(wide.shape)
    tried = 16
    while True:
        basis, squares = _leading(wide, min(tried, shorter), seed)
        # What is lost by keeping the first r of them is the total less their sum.
        enough = (total - squares.cumsum(0) <= _MARGIN * target**2 * total).nonzero().flatten()
        if len(enough):
            found = _factors(wide, basis[:, : int(enough[0]) + 1])
            if found.relative_error <= target or basis.shape[1] == shorter:
                break
        elif basis.shape[1] == shorter:
            found = _factors(wide, basis)
            break
        tried *= 2
    if found.relative_error > target:
        raise ExportError(
            f"--error: {target:g} cannot be reached with fp32 factors, only {found.relative_error:.2g}"
        )
    return found


def _leading(wide: Tensor, rank: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return at least ``rank`` leading left singular vectors and their squared singular values (fp64)."""
    width = rank + _OVERSAMPLING
    if 4 * width <= min(wide.shape):
        with seeded(seed, wide.device):
            left, values, _ = torch.svd_lowrank(wide, q=width, niter=_POWER_ITERATIONS)
        return left, values.double().square()
    tall = wide.shape[0] > wide.shape[1]
    double = wide.double()
    squares, vectors = torch.linalg.eigh(double.T @ double if tall else double @ double.T)
    squares, vectors = squares.flip(0).clamp_(min=0.0), vectors.flip(1)
    if tall:
        # Directions with a singular value of 0 have no left vector; any orthonormal ones serve.
        vectors = torch.linalg.qr(double @ vectors).Q
    return vectors.float(), squares


def _factors(wide: Tensor, basis: Tensor) -> LowRank:
    B = basis.contiguous()
    A = B.T @ wide
    error = 0.0
    step = max(1, _BLOCK // max(1, wide.shape[1]))
    for start in range(0, wide.shape[0], step):
        rows = slice(start, start + step)
        error += _squared_norm(wide[rows] - B[rows] @ A)
    return LowRank(A, B, error, _squared_norm(wide))


def _squared_norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64)) ** 2
