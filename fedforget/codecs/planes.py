"""Byte planes: all first bytes of a tensor's values, then all second bytes; lossless.

The high bytes of Fisher values (sign and most of the exponent) repeat and compress well; the low
ones are mantissa and hardly compress at all. Kept apart, the entropy coder sees each for what it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedforget.codecs.buckets import Bucket
from fedforget.codecs.frames import compress, decompress


def encode(values: Tensor) -> list[Bucket]:
    """Return one frame per byte of the dtype, lowest first."""
    raw = as_bytes(values).reshape(-1, values.dtype.itemsize)
    return [compress(np.ascontiguousarray(raw[:, i])) for i in range(raw.shape[1])]


def decode(frames: Sequence[Bucket], count: int, dtype: torch.dtype, what: str) -> Tensor:
    """Read ``count`` values back; shape ``[count]``.

    Raises
    ------
    SummaryError
        A frame is damaged or of another size; ``what`` begins its text.
    """
    raw = np.empty((count, dtype.itemsize), np.uint8)
    for i, frame in enumerate(frames):
        raw[:, i] = decompress(frame, count, what)
    return torch.from_numpy(raw.reshape(-1)).view(dtype)


def as_bytes(tensor: Tensor) -> Bucket:
    """Return a tensor's bytes, flat; bf16 has no NumPy dtype of its own."""
    raw: Bucket = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return raw
