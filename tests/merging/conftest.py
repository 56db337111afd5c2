"""Small federations to merge."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedforget.summaries import ClientSummary

Make = Callable[..., ClientSummary]

# Two matrices, a vector, a scalar and an empty tensor.
SHAPES: dict[str, tuple[int, ...]] = {"b.weight": (6, 5), "a.weight": (4, 9), "c.bias": (7,), "d.scale": ()}


@pytest.fixture
def make() -> Make:
    """One client with one tensor ``w``, from lists of numbers."""

    def build(
        client_id: str,
        delta: list[float],
        fisher: list[float] | None = None,
        *,
        role: str = "forget",
        domain: str = "bio",
        dtype: torch.dtype = torch.float64,
    ) -> ClientSummary:
        fishers = {} if fisher is None else {"w": torch.tensor(fisher, dtype=dtype)}
        return ClientSummary(client_id, role, domain, 10, {"w": torch.tensor(delta, dtype=dtype)}, fishers)

    return build


@pytest.fixture
def four(make: Make) -> list[ClientSummary]:
    """Two forget clients of one domain, one of another, one retain client; see the golden tests."""
    return [
        make("a", [1, -2, 3, 0], [4, 0, 2, 1]),
        make("b", [3, 2, -1, 4], [0, 4, 2, 1]),
        make("c", [8, 4, -2, 6], [9, 0, 3, 1], domain="cyber"),
        make("r", [1, 1, 1, 1], [0, 1, 0, 3], role="retain", domain="general"),
    ]


@pytest.fixture
def federation() -> Callable[..., list[ClientSummary]]:
    """Random clients: two bio and two cyber forget clients, two retain clients, several tensors."""

    def build(
        seed: int = 0, dtype: torch.dtype = torch.float32, shapes: dict[str, tuple[int, ...]] = SHAPES
    ) -> list[ClientSummary]:
        generator = torch.Generator().manual_seed(seed)

        def draw(shape: tuple[int, ...]) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        roles = [("forget", "bio")] * 2 + [("forget", "cyber")] * 2 + [("retain", "general")] * 2
        return [
            ClientSummary(
                f"{role}-{domain}-{i}",
                role,
                domain,
                10,
                {name: (draw(shape) * 1e-2).to(dtype) for name, shape in shapes.items()},
                {name: (draw(shape).mul(2.0).exp() * 1e-4).to(dtype) for name, shape in shapes.items()},
            )
            for i, (role, domain) in enumerate(roles)
        ]

    return build
