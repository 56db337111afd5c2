"""Bytes compressed with zstd, and decompressed to exactly the size that was expected of them."""

from __future__ import annotations

import numpy as np
import zstandard

from fedforget.codecs.buckets import Bucket
from fedforget.errors import SummaryError

# Entropy coding does the work here, and every level has it; higher ones search for matches that
# mantissas do not have.
LEVEL = 1


def compress(raw: Bucket) -> Bucket:
    """Return one zstd frame that states its content's size; the same bytes for the same input."""
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_content_size=True, threads=0)
    return np.frombuffer(compressor.compress(raw.data if raw.nbytes else b""), np.uint8)


def decompress(frame: Bucket, nbytes: int, what: str) -> Bucket:
    """Read one frame back.

    Nothing is allocated before the size that the frame states is found to be ``nbytes``; the
    decoder itself is given that much room and not a byte more.

    Raises
    ------
    SummaryError
        The frame is damaged, or of another size; ``what`` begins its text.
    """
    data = np.ascontiguousarray(frame).data
    try:
        stated = zstandard.frame_content_size(data)
        if stated != nbytes:
            found = "an unknown number of" if stated < 0 else str(stated)
            raise SummaryError(f"{what} decompresses to {found} bytes, expected {nbytes}")
        raw = zstandard.ZstdDecompressor().decompress(data, max_output_size=nbytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise SummaryError(f"{what} is not a zstd frame ({error})") from error
    if len(raw) != nbytes:
        raise SummaryError(f"{what} decompresses to {len(raw)} bytes, expected {nbytes}")
    return np.frombuffer(raw, np.uint8)
