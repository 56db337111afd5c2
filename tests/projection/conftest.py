"""Random projection problems; the checks below use their own fp64 arithmetic, not the library's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

Draw = Callable[..., tuple[Tensor, list[Tensor]]]


@pytest.fixture
def damage() -> Callable[[Tensor, Tensor], float]:
    """b_k of equation (6), summed in fp64."""

    def compute(update: Tensor, fisher: Tensor) -> float:
        return 0.5 * float((fisher.double() * update.double() ** 2).sum())

    return compute


@pytest.fixture
def draw() -> Draw:
    """A base update and m normalised, sparsified Fisher diagonals."""

    def make(seed: int, m: int, d: int, *, keep: float = 0.5, spread: float = 1.5, dtype=torch.float64):
        rng = np.random.default_rng(seed)
        base = torch.tensor(rng.standard_normal(d)).to(dtype)
        fishers = []
        for _ in range(m):
            fisher = np.exp(spread * rng.standard_normal(d)) * (rng.random(d) < keep)
            fishers.append(torch.tensor(fisher / max(fisher.max(), 1e-30)))
        return base, fishers

    return make
