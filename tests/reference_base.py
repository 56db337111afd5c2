"""The merges that the engine cuts into blocks, written naively: whole tensors, the same order of operations.

Everything is rounded to fp32 after each product, sum and quotient, and once to the clients' dtype at the
end. The engine must give these bits. Clients are summaries with one dense weight ``w`` of at most 32 bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedforget.merging import kept_count
from fedforget.summaries import ClientSummary

EPS0 = 1e-8


def mean(tensors: list[Tensor]) -> Tensor:
    """Add in order, divide by the number once."""
    total = tensors[0].to(torch.float32)
    for tensor in tensors[1:]:
        total = total + tensor.to(torch.float32)
    return total / torch.tensor(float(len(tensors)))


def kept(values: Tensor, fraction: float) -> Tensor:
    """Mask of the entries that are at least the k-th largest."""
    flat = values.flatten()
    threshold = torch.topk(flat, kept_count(flat.numel(), fraction)).values[-1]
    return values >= threshold


def processed(raw: Tensor, alpha: float) -> Tensor:
    """Equation (3)."""
    scale = torch.tensor(float(raw.max()) + EPS0)
    return torch.where(kept(raw, alpha), raw / scale, torch.tensor(0.0))


def domains(clients: list[ClientSummary]) -> list[list[ClientSummary]]:
    """Forget clients by domain, then by id."""
    forget = sorted((c for c in clients if c.role == "forget"), key=lambda c: c.client_id)
    return [[c for c in forget if c.domain == name] for name in sorted({c.domain for c in forget})]


def retain(clients: list[ClientSummary]) -> list[ClientSummary]:
    """Retain clients by id."""
    return sorted((c for c in clients if c.role == "retain"), key=lambda c: c.client_id)


def firm_base(clients: list[ClientSummary], gamma: float, alpha: float) -> Tensor:
    """Equations (2) to (5)."""
    terms = []
    for groups in (domains(clients), [[c] for c in retain(clients)]):
        numerator = denominator = None
        for members in groups:
            weight = processed(mean([c.fisher["w"] for c in members]), alpha)
            product = weight * mean([c.deltas["w"] for c in members])
            numerator = product if numerator is None else numerator + product
            denominator = weight if denominator is None else denominator + weight
        if numerator is not None:
            terms.append(numerator / (denominator + torch.tensor(EPS0)))
    raw = terms[0] if len(terms) == 1 else terms[0] + terms[1]
    return (raw * torch.tensor(gamma)).to(clients[0].deltas["w"].dtype)


def ties(clients: list[ClientSummary], gamma: float, density: float) -> Tensor:
    """TIES on the forget clients."""
    vectors = [c.deltas["w"].to(torch.float32) for group in [sorted_forget(clients)] for c in group]
    trimmed = [torch.where(kept(v.abs(), density), v, torch.tensor(0.0)) for v in vectors]
    mass = trimmed[0]
    for vector in trimmed[1:]:
        mass = mass + vector
    sign = torch.where(mass < 0, -1.0, 1.0)
    total, count = torch.zeros_like(mass), torch.zeros_like(mass)
    for vector in trimmed:
        agrees = vector * sign > 0
        total = torch.where(agrees, total + vector, total)
        count = count + agrees.to(torch.float32)
    merged = total / torch.maximum(count, torch.tensor(1.0))
    return (merged * torch.tensor(gamma)).to(clients[0].deltas["w"].dtype)


def sorted_forget(clients: list[ClientSummary]) -> list[ClientSummary]:
    """Forget clients by id."""
    return sorted((c for c in clients if c.role == "forget"), key=lambda c: c.client_id)
