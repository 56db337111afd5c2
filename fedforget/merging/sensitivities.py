"""From raw Fishers to FIRM's sensitivities: pool, then normalise, then sparsify (section 4.2.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedforget.merging import kernels
from fedforget.merging.inputs import Clients, Layout, Source
from fedforget.merging.selection import kept_count, kth_largest


@dataclass(frozen=True)
class Sensitivity:
    """The processed Fisher of one forget domain or one retain client for one weight, equation (3).

    Attributes
    ----------
    source : Source
        The pooled task vectors and raw Fishers.
    maximum, threshold : float
        Largest and last kept entry of the raw (pooled) Fisher.
    eps0 : float
        Numerical stabiliser.
    """

    source: Source
    maximum: float
    threshold: float
    eps0: float

    def weights(self, start: int, stop: int) -> Tensor:
        """Processed Fisher of rows ``start:stop``, flat fp64."""
        return kernels.top_normalised(
            self.source.fisher(start, stop), self.maximum, self.threshold, self.eps0
        )

    def delta(self, start: int, stop: int) -> Tensor:
        """Task vector of rows ``start:stop``, flat fp64."""
        return self.source.delta(start, stop)

    def dense(self) -> Tensor:
        """Return the whole processed Fisher, in the weight's shape; fp64."""
        return self.source.layout.assemble(torch.float64, self.weights)


@dataclass(frozen=True)
class Sensitivities:
    """Both roles' processed Fishers for one weight."""

    layout: Layout
    forget: list[Sensitivity]
    retain: list[Sensitivity]

    def unread(self) -> Sensitivities:
        """Return the same sensitivities without the tensors that they have read."""

        def fresh(role: list[Sensitivity]) -> list[Sensitivity]:
            return [replace(one, source=one.source.unread()) for one in role]

        return replace(self, forget=fresh(self.forget), retain=fresh(self.retain))


@dataclass(frozen=True)
class BaseBlock:
    """Some rows of the base merge, flat fp64.

    Attributes
    ----------
    update : Tensor
        ``gamma * raw``.
    sums : list of Tensor
        Sum of the weights of each role that has clients, before eps0.
    retain_weights : list of Tensor
        Processed Fisher per retain client.
    """

    update: Tensor
    sums: list[Tensor]
    retain_weights: list[Tensor]


def process(clients: Clients, name: str, alpha: float, eps0: float) -> Sensitivities:
    """Process the Fishers of one weight: forget domains pooled, retain clients each for itself."""

    def one(source: Source) -> Sensitivity:
        keep = kept_count(source.layout.size, alpha)
        threshold = kth_largest(source.fisher_blocks, source.layout.size, keep)
        maximum = (
            threshold if keep == 1 else max((float(b.max()) for b in source.fisher_blocks()), default=0.0)
        )
        return Sensitivity(source, maximum, threshold, eps0)

    return Sensitivities(
        layout=clients.layouts[name],
        forget=[one(clients.source(name, members)) for members in clients.domains.values()],
        retain=[one(source) for source in clients.sources(name, clients.retain)],
    )


def base_block(s: Sensitivities, gamma: float, eps0: float, start: int, stop: int) -> BaseBlock:
    """Equations (4) and (5) for rows ``start:stop``."""
    weights = [[one.weights(start, stop) for one in role] for role in (s.forget, s.retain)]
    terms = [
        kernels.weighted_mean([one.delta(start, stop) for one in role], role_weights, eps0)
        for role, role_weights in zip((s.forget, s.retain), weights, strict=True)
        if role
    ]
    return BaseBlock(
        update=kernels.total([term for term, _ in terms]).mul_(gamma),
        sums=[weight for _, weight in terms],
        retain_weights=weights[1],
    )
