"""Small honest federations whose Fishers and task vectors agree but for noise."""

from __future__ import annotations

import torch

from fedforget.summaries import ClientSummary

SHAPES: dict[str, tuple[int, ...]] = {"a.weight": (5, 7), "b.weight": (3, 4)}


def federation(seed: int = 0, members: int = 5, retain: int = 3) -> list[ClientSummary]:
    """Forget clients of the domain ``bio``, and retain clients."""
    draw = torch.Generator().manual_seed(seed)

    def normal(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, generator=draw)

    found = []
    for role, domain, count in (("forget", "bio", members), ("retain", "general", retain)):
        centre = {name: normal(shape) for name, shape in SHAPES.items()}
        fisher = {name: normal(shape).mul(2.0).exp() for name, shape in SHAPES.items()}
        found += [
            ClientSummary(
                f"{role}-{domain}-{i}",
                role,  # type: ignore[arg-type]
                domain,
                10,
                {name: one + 0.1 * normal(tuple(one.shape)) for name, one in centre.items()},
                {name: one * normal(tuple(one.shape)).mul(0.1).exp() for name, one in fisher.items()},
            )
            for i in range(count)
        ]
    return found
