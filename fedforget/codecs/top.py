"""The largest entries of a Fisher: the gaps between their places, and their values as byte planes.

Gaps are written in bytes: 255 says "255 places further, and go on", anything less ends the gap.
Places that are read back therefore ascend, each once, whatever the bytes were; only the last can
be out of range.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedforget.codecs import planes
from fedforget.codecs.buckets import Bucket
from fedforget.codecs.frames import compress, decompress
from fedforget.errors import SummaryError
from fedforget.merging.selection import kept_count
from fedforget.sparse_fisher import SparseFisher, index_dtype

_MORE = 255
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def sparsify(fisher: Tensor, share: float) -> SparseFisher:
    """Keep the entries that are at least the ``max(1, floor(share * d))``-th largest, ties included.

    Zeros are never kept: they count as zero without being held. For any smaller share, the
    largest entries of the result are those of the whole Fisher, to the bit.

    Parameters
    ----------
    fisher : Tensor
        Non-negative, any shape and floating dtype.
    share : float
        In (0, 1].
    """
    flat = fisher.detach().cpu().contiguous().reshape(-1)
    # Non-negative floating-point numbers sort as their bits do; -0.0 has the lowest bits of all.
    bits = flat.view(_BITS[flat.dtype.itemsize]).numpy()
    keep = kept_count(bits.size, share)
    least = int(np.partition(bits, bits.size - keep)[bits.size - keep]) if 0 < keep < bits.size else 1
    kept = bits >= max(least, 1)
    indices = torch.from_numpy(np.flatnonzero(kept))
    # The largest of what is left out, as bits: those kept are blanked.
    others = np.where(kept, bits.dtype.type(0), bits)
    rest = float(flat[int(others.argmax())]) if others.size and others.max() > 0 else 0.0
    return SparseFisher(tuple(fisher.shape), indices.to(index_dtype(bits.size)), flat[indices], rest)


def encode(fisher: SparseFisher) -> tuple[list[Bucket], int]:
    """Return the frames (gaps, then planes of values), and the number of gap bytes."""
    gaps = encode_places(fisher.indices)
    return [compress(gaps), *planes.encode(fisher.values)], gaps.size


def decode(
    frames: Sequence[Bucket],
    shape: tuple[int, ...],
    count: int,
    gap_bytes: int,
    dtype: torch.dtype,
    what: str,
    rest: float = 0.0,
) -> SparseFisher:
    """Read a sparse Fisher back.

    Raises
    ------
    SummaryError
        The frames do not hold ``count`` entries of a tensor of this shape; ``what`` begins its text.
    """
    size = int(np.prod(shape, dtype=object))
    indices = decode_places(frames[0], size, count, gap_bytes, what)
    return SparseFisher(shape, indices, planes.decode(frames[1:], count, dtype, what), rest)


def encode_places(indices: Tensor) -> NDArray[np.uint8]:
    """Write ascending places as gap bytes."""
    gaps = np.diff(indices.numpy().astype(np.int64), prepend=-1) - 1
    more, last = np.divmod(gaps, _MORE)
    ends = np.cumsum(more + 1) - 1
    stream = np.full(int(ends[-1]) + 1 if ends.size else 0, _MORE, np.uint8)
    stream[ends] = last
    return stream


def most_gap_bytes(size: int, count: int) -> int:
    """Bytes that the gaps between ``count`` places of ``size`` take at most."""
    return count + size // _MORE


def decode_places(frame: Bucket, size: int, count: int, gap_bytes: int, what: str) -> Tensor:
    """Read ascending places below ``size`` back; shape ``[count]``.

    Raises
    ------
    SummaryError
        The frame holds anything else; ``what`` begins its text.
    """
    if not 0 <= count <= size or not count <= gap_bytes <= most_gap_bytes(size, count):
        raise SummaryError(f"{what} declares {count} entries in {gap_bytes} gap bytes for {size} coordinates")
    stream = decompress(frame, gap_bytes, what)
    ends = np.flatnonzero(stream != _MORE)
    if ends.size != count or (gap_bytes and (not count or ends[-1] != gap_bytes - 1)):
        raise SummaryError(f"{what} holds {ends.size} gaps, declared {count}")
    places = np.cumsum(stream, dtype=np.int64)[ends] + np.arange(count)
    if count and places[-1] >= size:
        raise SummaryError(f"{what} has places outside its {size} coordinates")
    return torch.from_numpy(places).to(index_dtype(size))
