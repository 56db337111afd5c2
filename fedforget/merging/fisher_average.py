"""Fisher-weighted averaging of all clients' task vectors (Matena and Raffel)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedforget.merging import kernels
from fedforget.merging.inputs import Clients
from fedforget.merging.registry import Plan, method
from fedforget.parameters import Scaled, non_negative


@dataclass(frozen=True)
class FisherAverageParameters(Scaled):
    """Parameters of Fisher averaging."""

    floor: float = non_negative(0.0, "least value that a raw Fisher entry counts as")


@method(
    "fisher_average",
    pretty="Fisher averaging",
    reference="Matena and Raffel, Merging Models with Fisher-Weighted Averaging, NeurIPS 2022, section 3",
    summary="gamma times the mean of all task vectors, each coordinate weighted by its raw Fisher",
    parameters=FisherAverageParameters,
    needs_fisher=True,
)
def fisher_average(clients: Clients, p: FisherAverageParameters) -> Plan:
    """``gamma * sum_c F_c delta_c / sum_c F_c`` over all clients, forget and retain, none pooled.

    The models share their starting point, so averaging them averages their task vectors. Where every
    client's Fisher is 0 the result is the plain mean: the limit of a floor that vanishes.
    """

    def tensor(name: str) -> tuple[Tensor, dict[str, Any]]:
        sources = clients.sources(name, clients.all)

        def block(start: int, stop: int) -> Tensor:
            deltas = [one.delta(start, stop) for one in sources]
            fishers = [one.fisher(start, stop).clamp(min=p.floor) for one in sources]
            largest = torch.stack(fishers).amax(dim=0)
            blind = largest == 0.0
            # Relative to the largest, so that no product of small numbers underflows.
            largest.masked_fill_(blind, 1.0)
            weights = [(fisher / largest).masked_fill_(blind, 1.0) for fisher in fishers]
            return kernels.weighted_mean(deltas, weights, 0.0)[0].mul_(p.gamma)

        return clients.layouts[name].assemble(clients.dtype(name), sources, block), {}

    return Plan(tensor)
