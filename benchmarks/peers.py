"""Naive torch and PEFT on the tensors that benchmarks/merging.py merges."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from fedforget.merging import kept_count
from fedforget.merging.fulm import cluster_labels
from fedforget.summaries import ClientSummary

ALPHA, DENSITY, SIMILAR = 0.1, 0.3, 0.6
FORGET = 6

Work = Callable[[list[ClientSummary]], Callable[[], None]]


def in_memory(merge: Callable[..., Tensor], *, fisher: bool = False) -> Work:
    """Read every input first; then merge weight by weight and keep nothing."""

    def prepare(clients: list[ClientSummary]) -> Callable[[], None]:
        inputs = {name: [[_dense(c.deltas[name]) for c in clients]] for name in clients[0].deltas}
        if fisher:
            for name, given in inputs.items():
                given.append([c.fisher[name].clone() for c in clients])

        merge(*[[torch.ones(2, 2).bfloat16()] * len(clients)] * (1 + fisher))  # imports what it needs

        def work() -> None:
            for given in inputs.values():
                merge(*given)

        return work

    return prepare


def _dense(delta: Any) -> Tensor:
    tensor: Tensor = delta.clone() if isinstance(delta, Tensor) else delta.dense()
    return tensor


def naive_firm(deltas: list[Tensor], fishers: list[Tensor]) -> Tensor:
    """Equations (2) to (5) on whole fp32 tensors."""
    terms = []
    for groups in (([0, 1, 2], [3, 4, 5]), ([6],)):
        numerator: Any = 0.0
        denominator: Any = 0.0
        for members in groups:
            pooled = torch.stack([fishers[i].float() for i in members]).mean(0)
            weight = pooled / (pooled.max() + 1e-8)
            threshold = weight.flatten().topk(kept_count(weight.numel(), ALPHA)).values[-1]
            weight = torch.where(weight >= threshold, weight, 0.0)
            numerator = numerator + weight * torch.stack([deltas[i].float() for i in members]).mean(0)
            denominator = denominator + weight
        terms.append(numerator / (denominator + 1e-8))
    return (terms[0] + terms[1]).bfloat16()


def naive_ties(deltas: list[Tensor]) -> Tensor:
    """TIES on whole fp32 tensors of the forget clients."""
    return _ties(torch.stack([delta.float() for delta in deltas[:FORGET]])).bfloat16()


def _ties(vectors: Tensor) -> Tensor:
    for vector in vectors:
        threshold = vector.abs().flatten().topk(kept_count(vector.numel(), DENSITY)).values[-1]
        vector[vector.abs() < threshold] = 0.0
    agrees = vectors * torch.where(vectors.sum(0) < 0, -1.0, 1.0) > 0
    return (vectors * agrees).sum(0) / agrees.sum(0).clamp(min=1)


def naive_fulm(clients: list[ClientSummary]) -> Callable[[], None]:
    """FULM on whole fp32 tensors: cosines over all of them first, then TIES inside each cluster."""
    inputs = {name: [_dense(c.deltas[name]) for c in clients] for name in clients[0].deltas}

    def work() -> None:
        gram = torch.zeros(FORGET, FORGET)
        for deltas in inputs.values():
            flat = torch.stack([delta.float().flatten() for delta in deltas[:FORGET]])
            gram += flat @ flat.T
        norms = gram.diagonal().sqrt()
        labels = torch.tensor(cluster_labels((gram / norms.outer(norms)).double().numpy(), SIMILAR, "single"))
        for deltas in inputs.values():
            groups = [torch.nonzero(labels == one).flatten().tolist() for one in labels.unique()]
            groups += [[i] for i in range(FORGET, len(deltas))]
            merged: Any = 0.0
            for members in groups:
                merged = merged + _ties(torch.stack([deltas[i].float() for i in members]))
            merged.bfloat16()

    return work


def naive_sum(deltas: list[Tensor]) -> Tensor:
    """Sum of the forget clients."""
    return torch.stack([delta.float() for delta in deltas[:FORGET]]).sum(0).bfloat16()


def naive_avg(deltas: list[Tensor]) -> Tensor:
    """Mean of all clients."""
    return torch.stack([delta.float() for delta in deltas]).mean(0).bfloat16()


def peft_ties(deltas: list[Tensor]) -> Tensor:
    """PEFT's TIES on the forget clients."""
    from peft.utils.merge_utils import ties

    merged: Tensor = ties([delta.float() for delta in deltas[:FORGET]], torch.ones(FORGET), DENSITY)
    return merged.bfloat16()


def peft_dare(deltas: list[Tensor]) -> Tensor:
    """PEFT's DARE, a tenth kept, on all clients."""
    from peft.utils.merge_utils import dare_linear

    merged: Tensor = dare_linear([delta.float() for delta in deltas], torch.ones(len(deltas)), 0.1)
    return merged.bfloat16()


def peft_sum(deltas: list[Tensor]) -> Tensor:
    """PEFT's task arithmetic on the forget clients."""
    return _peft_linear(deltas[:FORGET], 1.0)


def peft_avg(deltas: list[Tensor]) -> Tensor:
    """PEFT's task arithmetic on all clients, with weights that make a mean."""
    return _peft_linear(deltas, 1.0 / len(deltas))


def _peft_linear(deltas: list[Tensor], weight: float) -> Tensor:
    from peft.utils.merge_utils import task_arithmetic

    merged: Tensor = task_arithmetic([delta.float() for delta in deltas], torch.full((len(deltas),), weight))
    return merged.bfloat16()


PEERS: dict[str, dict[str, Work]] = {
    "naive": {
        "firm": in_memory(naive_firm, fisher=True),
        "ties": in_memory(naive_ties),
        "fulm": naive_fulm,
        "avg": in_memory(naive_avg),
        "sum": in_memory(naive_sum),
    },
    "peft": {
        "ties": in_memory(peft_ties),
        "dare": in_memory(peft_dare),
        "avg": in_memory(peft_avg),
        "sum": in_memory(peft_sum),
    },
}
if not find_spec("peft"):
    PEERS["peft"] = {}
