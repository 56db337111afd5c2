"""DARE: drop entries at random and rescale the rest, then add the task vectors (Yu et al.)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedforget.merging import kernels
from fedforget.merging.inputs import Clients
from fedforget.merging.registry import Plan, method
from fedforget.parameters import Scaled, integer, share
from fedforget.seeds import derive_seed


@dataclass(frozen=True)
class DareParameters(Scaled):
    """Parameters of DARE."""

    drop: float = share(0.9, "probability with which an entry of a task vector is dropped")
    seed: int = integer(0, "root of the random masks")


@method(
    "dare",
    pretty="DARE",
    reference="Yu et al., Language Models are Super Mario, ICML 2024, section 3 (with task arithmetic)",
    summary="task arithmetic on vectors whose entries are dropped at random and rescaled by 1 / (1 - drop)",
    parameters=DareParameters,
)
def dare(clients: Clients, p: DareParameters) -> Plan:
    """``gamma * sum_c mask_c delta_c / (1 - drop)`` over all clients, forget and retain."""

    def tensor(name: str) -> tuple[Tensor, dict[str, Any]]:
        sources = clients.sources(name, clients.all)

        def block(start: int, stop: int) -> Tensor:
            thinned = []
            for summary, source in zip(clients.all, sources, strict=True):
                purpose = ("dare", summary.client_id, name, start)
                thinned.append(_drop(source.delta(start, stop), p.drop, p.seed, purpose))
            return kernels.total(thinned).mul_(p.gamma)

        return clients.layouts[name].assemble(clients.dtype(name), sources, block), {}

    return Plan(tensor)


def _drop(vector: Tensor, drop: float, seed: int, purpose: Sequence[object]) -> Tensor:
    # Seeded by client, tensor and block: no mask depends on who else takes part.
    draws = np.random.default_rng(derive_seed(seed, *purpose)).random(vector.numel())
    return vector.masked_fill(torch.from_numpy(draws < drop), 0.0).div_(1.0 - drop)
