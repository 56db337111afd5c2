"""Byte strings laid end to end in buckets: each array is an object on the wire, and many are slow to send."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedforget.errors import SummaryError

Bucket = NDArray[np.uint8]

RAW = "fedforget.raw"  # how a bucket is labelled on the wire: its bytes as they are, no NPY header
BUCKET_BYTES = 32 * 2**20
ALIGN = 16  # bytes: everything starts where any dtype may be read in place


def fill(contents: Sequence[Sequence[Bucket]], bucket_bytes: int) -> tuple[list[Bucket], list[int]]:
    """Lay byte strings out in buckets, each given in parts; what is larger than a bucket spans several.

    Returns
    -------
    buckets : list of 1-D uint8 arrays
    places : list of int
        Where each string starts in the concatenation of the buckets.
    """
    bucket_bytes = max(ALIGN, bucket_bytes // ALIGN * ALIGN)
    sizes, places = _layout([sum(part.nbytes for part in parts) for parts in contents], bucket_bytes)
    buckets = [np.zeros(size, np.uint8) for size in sizes]
    starts = bucket_starts(sizes)
    for parts, place in zip(contents, places, strict=True):
        for part in parts:
            for index, inside, first, count in _pieces(place, part.nbytes, starts):
                buckets[index][inside : inside + count] = part[first : first + count]
            place += part.nbytes
    return buckets, places


def bucket_starts(sizes: Sequence[int]) -> list[int]:
    """Where each bucket starts in the concatenation of all, and where the last one ends."""
    return [0, *np.cumsum(sizes, dtype=np.int64).tolist()]


def read(buckets: Sequence[Bucket], place: int, nbytes: int, starts: Sequence[int]) -> Bucket:
    """Return a byte string; a view of its bucket unless it spans several."""
    pieces = [buckets[i][at : at + n] for i, at, _, n in _pieces(place, nbytes, starts)]
    if not pieces:
        return np.zeros(0, np.uint8)
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def declare(buckets: Sequence[Bucket]) -> list[dict[str, Any]]:
    """Return what a manifest says of its buckets: sizes and SHA-256."""
    return [{"nbytes": b.nbytes, "sha256": hashlib.sha256(b.data).hexdigest()} for b in buckets]


def check_buckets(buckets: Sequence[Bucket], declared: Sequence[Any], who: str) -> list[int]:
    """Return the buckets' sizes once they are what was declared; raises SummaryError where they are not."""
    if len(buckets) != len(declared):
        raise SummaryError(f"{who}: {len(buckets)} buckets arrived, the manifest declares {len(declared)}")
    for index, (bucket, entry) in enumerate(zip(buckets, declared, strict=True)):
        if not isinstance(entry, dict):
            raise SummaryError(f"{who}: the manifest's entry for bucket {index} is not a JSON object")
        if not isinstance(bucket, np.ndarray) or bucket.dtype != np.uint8 or bucket.ndim != 1:
            raise SummaryError(f"{who}: bucket {index} is not a flat array of bytes")
        if type(entry.get("nbytes")) is not int or bucket.nbytes != entry["nbytes"]:
            raise SummaryError(
                f"{who}: bucket {index} has {bucket.nbytes} bytes, declared {entry.get('nbytes')}"
            )
        if hashlib.sha256(np.ascontiguousarray(bucket).data).hexdigest() != entry.get("sha256"):
            raise SummaryError(f"{who}: bucket {index} does not match its SHA-256; it was damaged on the way")
    return [bucket.nbytes for bucket in buckets]


def _layout(lengths: Sequence[int], bucket_bytes: int) -> tuple[list[int], list[int]]:
    """Sizes of the buckets, and where each tensor starts in the concatenation of them."""
    sizes: list[int] = []
    places = []
    used, total = 0, 0  # bytes in the open bucket, bytes in the closed ones
    for length in lengths:
        padded = -(-length // ALIGN) * ALIGN
        if used and used + padded > bucket_bytes:
            sizes.append(used)
            total, used = total + used, 0
        places.append(total + used)
        used += padded
        while used > bucket_bytes:
            sizes.append(bucket_bytes)
            total, used = total + bucket_bytes, used - bucket_bytes
    return [*sizes, used] if used else sizes, places


def _pieces(place: int, nbytes: int, starts: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """Yield ``(bucket, offset in it, offset in the tensor, count)`` for one tensor's bytes."""
    index = int(np.searchsorted(starts, place, side="right")) - 1
    done = 0
    while done < nbytes:
        inside = place + done - starts[index]
        count = min(nbytes - done, starts[index + 1] - starts[index] - inside)
        yield index, inside, done, count
        done += count
        index += 1
