"""How many entries a fraction keeps, and the value of the last one kept: both exact."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fractions import Fraction

import numpy as np
from torch import Tensor

# Blocks of non-negative fp64 values, produced anew at each call.
Blocks = Callable[[], Iterable[Tensor]]

# Once this few candidates are left they are gathered and partitioned.
_GATHER = 1 << 22


def kept_count(d: int, fraction: float) -> int:
    """Entries that a fraction keeps of ``d``: ``max(1, floor(fraction * d))``, and 0 of an empty tensor.

    The product is exact, with the fraction read as the decimal it prints as: 0.29 of 100 is 29,
    where floating-point arithmetic says 28.
    """
    if d == 0:
        return 0
    return max(1, math.floor(Fraction(repr(float(fraction))) * d))


def kth_largest(blocks: Blocks, size: int, k: int) -> float:
    """Exact k-th largest of a stream of non-negative fp64 values.

    Non-negative floating-point numbers sort as their bit patterns do, so a histogram of the leading
    16 bits finds the bin of the k-th; its entries are gathered, or, where they are many, split by the
    next 16 bits. At most four passes over the stream, and memory that does not grow with it; a short
    stream is gathered at once.

    Parameters
    ----------
    blocks : callable
        Produces the stream; called once per pass.
    size : int
        Length of the stream.
    k : int
        From 1 to ``size``; 0 returns infinity.
    """
    if k == 0:
        return math.inf
    if size <= _GATHER:
        return _among(blocks, 63, 0, k)
    prefix = 0
    for shift in (48, 32, 16, 0):
        counts = np.zeros(1 << 16, dtype=np.int64)
        for block in blocks():
            bits = _bits(block)
            if shift < 48:
                bits = bits[(bits >> (shift + 16)) == prefix]
            counts += np.bincount((bits >> shift) & 0xFFFF, minlength=1 << 16)
        # Entries in this bin and all above it, from the top.
        above = np.cumsum(counts[::-1])
        place = int(np.searchsorted(above, k))
        bin_ = (1 << 16) - 1 - place
        inside = int(counts[bin_])
        k -= int(above[place]) - inside
        prefix = (prefix << 16) | bin_
        if shift and inside <= _GATHER:
            return _among(blocks, shift, prefix, k)
    return float(np.array(prefix, dtype=np.int64).view(np.float64))


def _among(blocks: Blocks, shift: int, prefix: int, k: int) -> float:
    """K-th largest of the values whose leading bits are ``prefix``."""
    found = []
    for block in blocks():
        bits = _bits(block)
        found.append(bits[(bits >> shift) == prefix])
    candidates = np.concatenate(found)
    candidates.partition(candidates.size - k)
    return float(candidates[candidates.size - k].view(np.float64))


def _bits(block: Tensor) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    # abs() turns -0.0, which has the sign bit set, into 0.0.
    bits: np.ndarray[tuple[int], np.dtype[np.int64]] = block.abs().numpy().view(np.int64)
    return bits
