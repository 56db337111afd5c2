"""Approximate: every value as one of 255 that are evenly spaced in their logarithm, or zero.

The table of values travels with the codes, so that decoding is a look-up and gives the same bits
on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedforget.codecs import planes
from fedforget.codecs.buckets import Bucket
from fedforget.codecs.frames import compress, decompress

LEVELS = 256


def encode(fisher: Tensor) -> tuple[list[Bucket], Tensor]:
    """Return the frames (codes, then the table), and what they decode to."""
    values = fisher.detach().cpu().reshape(-1).to(torch.float64).numpy()
    codes = np.zeros(values.size, np.uint8)
    table = np.zeros(LEVELS)
    positive = values > 0.0
    if positive.any():
        logs = np.log(values[positive])
        low, high = float(logs.min()), float(logs.max())
        step = (high - low) / (LEVELS - 2) or 1.0
        codes[positive] = 1 + np.rint((logs - low) / step).astype(np.uint8)
        table[1:] = np.exp(low + step * np.arange(LEVELS - 1))
        # The largest value normalises all others: keep it and the smallest as they are.
        table[1] = values[positive].min()
        last = int(codes.max())
        table[last] = values.max()
        table[last + 1 :] = 0.0
    rounded = torch.from_numpy(table).to(fisher.dtype)
    decoded = rounded[torch.from_numpy(codes).long()].reshape(fisher.shape)
    return [compress(codes), compress(planes.as_bytes(rounded))], decoded


def decode(frames: Sequence[Bucket], shape: tuple[int, ...], dtype: torch.dtype, what: str) -> Tensor:
    """Read a quantised Fisher back.

    Raises
    ------
    SummaryError
        A frame is damaged or of another size; ``what`` begins its text.
    """
    size = int(np.prod(shape, dtype=object))
    table = torch.from_numpy(decompress(frames[1], LEVELS * dtype.itemsize, what).copy()).view(dtype)
    codes = torch.from_numpy(decompress(frames[0], size, what).copy())
    return table[codes.int()].reshape(shape)
