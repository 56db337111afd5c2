"""Fishers as the codecs' tests need them: log-normal, seeded, in bf16."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedforget.codecs import Bucket
from fedforget.summaries import ClientSummary


def log_normal(size: int, seed: int = 0, sigma: float = 2.0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Values whose logarithm is normal, around 1e-8: the shape of measured Fishers."""
    draw = torch.Generator().manual_seed(seed)
    return (torch.randn(size, generator=draw).mul_(sigma).exp_() * 1e-8).to(dtype)


def summary_with(
    fisher: dict[str, Tensor], client: str = "retain-c-0", role: str = "retain", seed: int = 0
) -> ClientSummary:
    draw = torch.Generator().manual_seed(seed)
    return ClientSummary(
        client_id=client,
        role=role,  # type: ignore[arg-type]
        domain=client.split("-")[1],
        num_examples=3,
        deltas={name: torch.randn(one.shape, generator=draw) for name, one in fisher.items()},
        fisher=fisher,
    )


def resealed(buckets: Sequence[Bucket], manifest: str, **changes: object) -> tuple[list[Bucket], str]:
    """Make a manifest agree with changed buckets, as an attacker would; ``changes`` go to its Fishers."""
    raw = json.loads(manifest)
    raw["buckets"] = [
        {"nbytes": b.nbytes, "sha256": hashlib.sha256(np.ascontiguousarray(b).data).hexdigest()}
        for b in buckets
    ]
    for entry in raw["tensors"]:
        if entry["kind"] == "fisher":
            entry.update(changes)
    return list(buckets), json.dumps(raw)
