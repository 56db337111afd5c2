"""Seeded stretches of code that leave torch's global random state as they found it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def seeded(seed: int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Seed torch's global generators inside the block and restore them after it.

    Parameters
    ----------
    seed : int
        In ``[0, 2**63)``.
    device : torch.device or str
        The accelerator whose generator is saved besides the CPU's.
    """
    kind = torch.device(device).type
    devices = list(range(torch.cuda.device_count())) if kind == "cuda" else []
    if kind == "mps":
        state = torch.mps.get_rng_state()
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                yield
        finally:
            torch.mps.set_rng_state(state)
        return
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
