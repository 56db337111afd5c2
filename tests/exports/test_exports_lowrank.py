"""Truncated SVD: as good as the best, exact where the rank allows it, the same every time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedforget.errors import ExportError
from fedforget.exports.lowrank import of_error, of_rank


def matrix(rows: int, columns: int, decay: float = 0.9, seed: int = 0) -> Tensor:
    """Singular values decay**0, decay**1, ..."""
    draw = torch.Generator().manual_seed(seed)
    k = min(rows, columns)
    left, _ = torch.linalg.qr(torch.randn(rows, k, generator=draw))
    right, _ = torch.linalg.qr(torch.randn(columns, k, generator=draw))
    return (left * decay ** torch.arange(k)) @ right.T


def best(wide: Tensor, rank: int) -> float:
    """Relative error of the truncated SVD (Eckart and Young)."""
    squares = torch.linalg.svdvals(wide.double()).square()
    return float((squares[rank:].sum() / squares.sum()).sqrt())


# A random subspace for a small rank, the Gram matrix (wide, tall) for one that is not small.
@pytest.mark.parametrize(
    ("rows", "columns", "rank"), [(96, 160, 12), (160, 96, 12), (40, 60, 20), (60, 40, 20)]
)
def test_as_good_as_the_truncated_svd(rows: int, columns: int, rank: int) -> None:
    wide = matrix(rows, columns)
    found = of_rank(wide, rank, seed=3)
    assert (found.A.shape, found.B.shape) == ((rank, columns), (rows, rank))
    measured = float((wide - found.B @ found.A).norm() / wide.norm())
    assert found.relative_error == pytest.approx(measured, rel=1e-3)
    assert best(wide, rank) * 0.999 <= measured <= best(wide, rank) * 1.02
    again = of_rank(wide, rank, seed=3)
    assert torch.equal(found.A, again.A)
    assert torch.equal(found.B, again.B)


@pytest.mark.parametrize(("rows", "columns"), [(96, 160), (24, 40), (40, 24)])
def test_a_matrix_of_that_rank_is_kept(rows: int, columns: int) -> None:
    draw = torch.Generator().manual_seed(0)
    wide = torch.randn(rows, 5, generator=draw) @ torch.randn(5, columns, generator=draw)
    for rank in (5, 9, 1000):
        assert of_rank(wide, rank, seed=0).relative_error < 2e-6
    assert of_error(wide, 1e-3, seed=0).rank == 5
    assert of_rank(wide, 4, seed=0).relative_error > 0.01


@pytest.mark.parametrize("target", [0.5, 0.05, 1e-3])
@pytest.mark.parametrize(("rows", "columns"), [(120, 130), (50, 30)])
def test_the_lowest_rank_for_an_error(rows: int, columns: int, target: float) -> None:
    wide = matrix(rows, columns)
    found = of_error(wide, target, seed=0)
    assert found.relative_error <= target
    lowest = next(rank for rank in range(1, 200) if best(wide, rank) <= target)
    assert lowest <= found.rank <= lowest + 1


def test_nothing_and_half_precision() -> None:
    nothing = of_error(torch.zeros(6, 4), 0.1, seed=0)
    assert (nothing.rank, nothing.relative_error) == (1, 0.0)
    assert of_rank(matrix(20, 30, decay=0.1).bfloat16(), 20, seed=0).relative_error < 1e-6


def test_what_cannot_be_asked() -> None:
    with pytest.raises(ExportError, match="--rank: 0"):
        of_rank(torch.ones(3, 3), 0, seed=0)
    for target in (0.0, 1.0, float("nan")):
        with pytest.raises(ExportError, match="--error"):
            of_error(torch.ones(3, 3), target, seed=0)
    with pytest.raises(ExportError, match="cannot be reached with fp32 factors"):
        of_error(matrix(20, 30, decay=1.0), 1e-12, seed=0)


def test_a_matrix_without_columns() -> None:
    assert of_rank(torch.zeros(4, 0), 2, seed=0).rank == 0
