"""The controls that FIRM is compared with: A1, A2 and the support- and norm-matched merge."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedforget.merging import kernels
from fedforget.merging.averaging import linear
from fedforget.merging.base import FirmBaseParameters
from fedforget.merging.inputs import Clients
from fedforget.merging.layout import Scratch, squares
from fedforget.merging.registry import Plan, method
from fedforget.merging.selection import Stream, kept_count, select
from fedforget.merging.sensitivities import Sensitivities, base_block, process
from fedforget.merging.sources import Source
from fedforget.parameters import Scaled, fraction, positive


@dataclass(frozen=True)
class UnnormalisedParameters(Scaled):
    """Parameters of ablation A1."""

    keep: float = fraction(1.0, "share of each raw Fisher's entries that is kept; 1 is the raw Fisher itself")


@method(
    "firm_unnormalised",
    pretty="FIRM A1, unnormalised",
    reference="FIRM, section 5.5, ablation A1",
    summary="gamma times the sum of task vectors weighted by their raw, pooled Fishers, not normalised",
    parameters=UnnormalisedParameters,
    needs_fisher=True,
    pools=True,
)
def firm_unnormalised(clients: Clients, p: UnnormalisedParameters) -> Plan:
    """``gamma * (sum_i G_i delta_i + sum_k G_k delta_k)`` with the raw, pooled Fishers G.

    The paper says "raw-Fisher weighted sum" and not whether it is sparsified; raw is read as neither
    normalised nor sparsified, and ``keep=0.1`` is the other reading.
    """

    def tensor(name: str) -> tuple[Tensor, dict[str, Any]]:
        sources = [clients.source(name, members) for members in clients.domains.values()]
        sources += clients.sources(name, clients.retain)
        size = clients.layouts[name].size
        keep = kept_count(size, p.keep)
        thresholds = [
            0.0 if keep == size else select([Stream(one, of_fisher=True)], keep).threshold for one in sources
        ]

        def block(start: int, stop: int) -> Tensor:
            terms = [_weighted(one, at, start, stop) for one, at in zip(sources, thresholds, strict=True)]
            return kernels.total(terms).mul_(p.gamma)

        return clients.layouts[name].assemble(clients.dtype(name), sources, block), {}

    return Plan(tensor)


def _weighted(source: Source, threshold: float, start: int, stop: int) -> Tensor:
    weights = kernels.keep_from_(source.fisher(start, stop), threshold)
    return weights.mul_(source.delta(start, stop))


@dataclass(frozen=True)
class UniformWeightsParameters(Scaled):
    """Parameters of ablation A2."""

    eps0: float = positive(1.0e-8, "stabiliser added to each number of weights, as in FIRM")


@method(
    "firm_uniform_weights",
    pretty="FIRM A2, uniform weights",
    reference="FIRM, section 5.5, ablation A2",
    summary="FIRM's base merge with weight 1 on every coordinate: forget domain mean + retain mean",
    parameters=UniformWeightsParameters,
    pools=True,
)
def firm_uniform_weights(clients: Clients, p: UniformWeightsParameters) -> Plan:
    """Equation (4) with all F~ = 1. Unlike ``uniform``, each forget *domain* weighs the same."""
    domains = list(clients.domains.values())

    def combine(blocks: list[list[Tensor]]) -> Tensor:
        *forget, retain = blocks
        roles = [[kernels.mean(members) for members in forget], retain]
        terms = [kernels.total(one).div_(len(one) + p.eps0) for one in roles if one]
        return kernels.total(terms).mul_(p.gamma)

    return linear(clients, [*domains, clients.retain], combine)


@method(
    "support_matched",
    pretty="Support- and norm-matched",
    reference="FIRM, appendix D.3",
    summary="FIRM's masks with uniform weights, rescaled over all tensors to the norm of FIRM's base merge",
    parameters=FirmBaseParameters,
    needs_fisher=True,
    pools=True,
)
def support_matched(clients: Clients, p: FirmBaseParameters) -> Plan:
    """Plan the control: a first pass over all tensors takes both norms, a second one merges."""
    limits: dict[str, Sensitivities] = {}
    fisher_squares, mask_squares = 0.0, 0.0
    for name in clients.names:
        limits[name], fisher_part, mask_part = _norms(process(clients, name, p.alpha, p.eps0), p)
        fisher_squares += fisher_part
        mask_squares += mask_part
    factor = math.sqrt(fisher_squares / mask_squares) if mask_squares else 0.0

    def tensor(name: str) -> tuple[Tensor, dict[str, Any]]:
        # A copy, so that what it reads is released after this tensor.
        s = limits[name].unread()
        merged = clients.layouts[name].assemble(
            clients.dtype(name), s.sources, lambda start, stop: _masked(s, p, start, stop).mul_(factor)
        )
        return merged, {}

    return Plan(
        tensor,
        {"rescaling": factor, "fisher_norm": math.sqrt(fisher_squares), "mask_norm": math.sqrt(mask_squares)},
    )


def _norms(s: Sensitivities, p: FirmBaseParameters) -> tuple[Sensitivities, float, float]:
    """Squared norms of FIRM's base merge and of the control before rescaling, for one tensor."""
    scratch = Scratch(s.dtype)

    def block(start: int, stop: int) -> tuple[float, float]:
        fisher = squares(base_block(s, p.gamma, p.eps0, start, stop, scratch).update)
        return fisher, squares(_masked(s, p, start, stop))

    both = s.layout.map(s.sources, block)
    norms = sum(fisher for fisher, _ in both), sum(mask for _, mask in both)
    if not all(math.isfinite(norm) for norm in norms):
        s.check()
    return s.unread(), *norms


def _masked(s: Sensitivities, p: FirmBaseParameters, start: int, stop: int) -> Tensor:
    """Equation (4) with weight 1 wherever the processed Fisher is positive."""
    terms = [
        kernels.weighted_mean(
            [one.source.delta(start, stop) for one in role],
            [(one.weights(start, stop) > 0.0).to(s.dtype) for one in role],
            max(p.eps0, torch.finfo(s.dtype).tiny),
        )[0]
        for role in (s.forget, s.retain)
        if role
    ]
    return kernels.total(terms).mul_(p.gamma)
