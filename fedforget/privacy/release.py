"""Clipping and noise on what a client is about to send.

The noise comes from the operating system's entropy, number by number, and from no seed: a seed that the
server knows, or could guess, would let it subtract the noise.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from fedforget.factors import LoraFactors
from fedforget.merging.layout import squared_norm

# Normal numbers per draw, so that the bytes behind them stay small.
_CHUNK = 1 << 20


def gaussian(count: int) -> Tensor:
    """Draw standard normal numbers from the operating system's entropy; fp64 ``[count]``."""
    out = np.empty(count)
    for start in range(0, count, _CHUNK):
        size = min(_CHUNK, count - start)
        bits = np.frombuffer(os.urandom(8 * size), dtype=np.uint64) >> np.uint64(11)
        # The middle of one of 2^53 cells of (0, 1), never an end.
        out[start : start + size] = ndtri((bits.astype(np.float64) + 0.5) * 2.0**-53)
    return torch.from_numpy(out)


def private_task_vector(
    trained: Mapping[str, LoraFactors], initial: Mapping[str, LoraFactors], clip: float, noise: float
) -> dict[str, LoraFactors]:
    """Return factors of which only the clipped, noised change from the initialisation was looked at.

    The initial factors are drawn from the run's public seed, the same for all clients. What is private is
    the change of all factors, one vector of norm at most ``clip`` once scaled down; the noise has standard
    deviation ``noise`` times ``clip`` on each entry. Noise on the factors is noise on
    ``r (d_in + d_out)`` numbers per weight instead of ``d_in d_out``; their product is post-processing.

    Parameters
    ----------
    trained, initial : mapping of str to LoraFactors
    clip, noise : float
    """
    names = sorted(trained)
    changes = {
        (name, part): getattr(trained[name], part).double() - getattr(initial[name], part).double()
        for name in names
        for part in ("A", "B")
    }
    factor = _factor(changes.values(), clip)
    found = {}
    for name in names:
        parts = {}
        for part in ("A", "B"):
            start, change = getattr(initial[name], part), changes[name, part]
            moved = change * factor + noise * clip * gaussian(change.numel()).view(change.shape)
            parts[part] = (start.double() + moved).to(start.dtype)
        found[name] = LoraFactors(parts["A"], parts["B"], trained[name].scale)
    return found


def private_fisher(fisher: Mapping[str, Tensor], clip: float, noise: float) -> dict[str, Tensor]:
    """Return the clipped, noised Fisher, one vector over all tensors; negative entries become 0.

    Setting them to 0, rounding to the Fisher's dtype, and sending the largest entries alone are
    post-processing: they tell nothing more.
    """
    factor = _factor(fisher.values(), clip)
    found = {}
    for name in sorted(fisher):
        one = fisher[name]
        noised = one.double() * factor + noise * clip * gaussian(one.numel()).view(one.shape)
        found[name] = noised.clamp_(min=0.0).to(one.dtype)
    return found


def _factor(parts: Iterable[Tensor], clip: float) -> float:
    norm = math.sqrt(sum((squared_norm(one) for one in parts), 0.0))
    return min(1.0, clip / norm) if norm else 1.0
