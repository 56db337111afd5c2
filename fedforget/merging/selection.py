"""How many entries a fraction keeps, and the value of the last one kept: both exact."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedforget.merging.compiled import RUN, Addresses, compile_kernels
from fedforget.merging.layout import BLOCK, Scratch
from fedforget.merging.sources import Parts, Source

# Numbers whose order is that of the magnitudes they stand for: non-negative floating-point values, or
# the bit patterns of such values read as integers.
Keys = NDArray[Any]
R = TypeVar("R")

# A stream this short is gathered and partitioned at once, and so are candidates of a longer one.
_GATHER = 1 << 20
# The sample of a longer stream: pieces of this many neighbours, spread evenly; a sixteenth of the stream.
_PIECE, _PIECES = 1024, 256
_SAMPLED = 16
# Standard errors of the sample's quantile that the bracket spans to each side; a miss costs time and
# nothing else.
_WIDTH = 6.0


def kept_count(d: int, fraction: float) -> int:
    """Entries that a fraction keeps of ``d``: ``max(1, floor(fraction * d))``, and 0 of an empty tensor.

    The product is exact, with the fraction read as the decimal it prints as: 0.29 of 100 is 29,
    where floating-point arithmetic says 28.
    """
    if d == 0:
        return 0
    return max(1, math.floor(Fraction(repr(float(fraction))) * d))


@dataclass(frozen=True)
class Stream:
    """Magnitudes of one weight's mean task vector, or of its mean raw Fisher, block by block.

    Attributes
    ----------
    source : Source
    of_fisher : bool
    as_values : bool
        Produce fp64 values, for a selection among several weights of different dtypes.
    refuse : callable, optional
        Called where a block of a dense Fisher is not finite and non-negative; raises.
    """

    source: Source
    of_fisher: bool
    as_values: bool = False
    refuse: Callable[[], None] | None = None

    @property
    def size(self) -> int:
        """Number of entries."""
        return self.source.layout.size

    def map(self, function: Callable[[Keys], R]) -> list[R]:
        """Apply a function, which keeps no view of them, to the keys of every block; results in order."""
        source = self.source.unread()
        keys = self._reader(source)

        def block(start: int, stop: int) -> R:
            if self.refuse is not None and not _allowed(source, start, stop):
                self.refuse()
            return function(keys(start, stop))

        return source.layout.map([self._parts(source)], block)

    @property
    def compiled(self) -> bool:
        """Whether a kernel reads all of it; keys are fp32 then."""
        source = self.source.unread()
        return not self.as_values and self._addresses(source) is not None

    def scan(self, low: np.float32, high: np.float32) -> list[tuple[list[int], Any, Keys]]:
        """Do what a :meth:`map` does that ranks keys by a bracket, in one pass over each block."""
        source, local, kernels = self.source.unread(), threading.local(), compile_kernels()
        first = self._addresses(source)
        assert first is not None

        def block(start: int, stop: int) -> tuple[list[int], Any, Keys]:
            size = stop - start
            if not hasattr(local, "buffers"):
                local.buffers = (
                    np.empty(BLOCK, np.float32),
                    np.empty(RUN, np.float32),
                    np.empty(RUN, np.uint8),
                )
            inside = local.buffers[0]
            *counts, allowed, maximum = kernels.scan(size, first + 2 * start, low, high, *local.buffers)
            if self.refuse is not None and not allowed and not _allowed(source, start, stop):
                self.refuse()
            count = counts[2] - counts[1]
            return counts, np.float32(maximum), inside[: count if count <= size // 4 else 0].copy()

        return source.layout.map([self._parts(source)], block)

    def sample(self, spacing: int) -> list[Keys]:
        """Return the keys of short pieces, one in each ``spacing`` coordinates."""
        source = self.source.unread()
        keys = self._reader(source)
        pieces, parts = [], self._parts(source)
        for start in range(0, self.size, spacing):
            stop = min(start + _PIECE, self.size)
            pieces.append(keys(start, stop).copy())
            # What is read comes with its neighbours.
            parts.release(max(0, start - spacing), min(start + spacing, self.size))
        return pieces

    def kind(self) -> torch.dtype:
        """Floating dtype whose bit patterns the keys are."""
        if self.as_values:
            return torch.float64
        if self.compiled:
            return torch.float32
        plain = self._bits(self.source.unread())
        return self.source.dtype if plain is None else plain.dtype

    def _reader(self, source: Source) -> Callable[[int, int], Keys]:
        plain = None if self.as_values or self.compiled else self._bits(source)
        if plain is not None:
            bits = plain.view(torch.int16).numpy()
            return lambda start, stop: bits[start:stop] & 0x7FFF
        read, scratch = source.fisher if self.of_fisher else source.delta, Scratch(source.dtype)

        def magnitudes(start: int, stop: int) -> Tensor:
            size = stop - start
            return read(start, stop, scratch("keys", size), scratch("spare", size)).abs_()

        if self.as_values:
            return lambda start, stop: magnitudes(start, stop).to(torch.float64).numpy()
        return lambda start, stop: magnitudes(start, stop).numpy()

    def _parts(self, source: Source) -> Parts:
        return Parts(source.fishers if self.of_fisher else source.deltas)

    def _addresses(self, source: Source) -> Addresses | None:
        return source.fisher_addresses if self.of_fisher else source.delta_addresses

    def _bits(self, source: Source) -> Tensor | None:
        # Without the sign bit, 16-bit floating-point numbers sort as the integers that their bits are.
        parts = source.fishers if self.of_fisher else source.deltas
        plain = parts[0].plain if len(parts) == 1 else None
        narrow = plain is not None and plain.dtype.itemsize == 2 and plain.device.type == "cpu"
        return plain if narrow else None


def _allowed(source: Source, start: int, stop: int) -> bool:
    """Tell whether a block of every dense Fisher is finite and non-negative."""
    return all(part.within(start, stop, 0.0) for part in source.fishers if part.plain is not None)


@dataclass(frozen=True)
class Selected:
    """What :func:`select` finds.

    Attributes
    ----------
    threshold : float
        The k-th largest value.
    maximum : float
        The largest value.
    """

    threshold: float
    maximum: float


def select(streams: Sequence[Stream], k: int) -> Selected:
    """Exact k-th largest of all entries of some streams taken together, and the largest.

    A sample brackets it; one pass counts what lies above the bracket and gathers what lies inside, among
    which the k-th is found by partition. Where the bracket misses, or too much lies inside, histograms
    narrow it down 16 bits at a time. Memory does not grow with the streams.

    Parameters
    ----------
    streams : sequence of Stream
    k : int
        From 1 to the number of entries; 0 gives a threshold that keeps nothing.
    """
    if k == 0:
        return Selected(math.inf, 0.0)
    kinds = {stream.kind() for stream in streams}
    if len(kinds) > 1:
        streams = [replace(stream, as_values=True) for stream in streams]
        kinds = {torch.float64}
    (kind,) = kinds
    size = sum(stream.size for stream in streams)
    if size <= _GATHER:
        every = np.concatenate([keys for stream in streams for keys in stream.map(np.copy)])
        threshold, maximum = _kth_of(every, k), every.max()
    else:
        threshold, maximum = _bracketed(streams, size, k)
    return Selected(_value(threshold, kind), _value(maximum, kind))


def _bracketed(streams: Sequence[Stream], size: int, k: int) -> tuple[Any, Any]:
    spacing = max(size // _PIECES, _SAMPLED * _PIECE)
    low, high = _bracket([keys for stream in streams for keys in stream.sample(spacing)], 1.0 - k / size)

    def look(keys: Keys) -> tuple[Sequence[int], Any, Keys]:
        above_low, below_high = keys > low, keys < high
        counts = [
            int(np.count_nonzero(keys > high)),
            len(keys) - int(np.count_nonzero(below_high)),
            int(np.count_nonzero(above_low)),
            int(np.count_nonzero(keys >= low)),
        ]
        few = counts[2] - counts[1] <= len(keys) // 4
        return counts, keys.max(), keys[above_low & below_high] if few else keys[:0].copy()

    seen = [
        result
        for stream in streams
        for result in (stream.scan(low, high) if stream.compiled else stream.map(look))
    ]
    above_high, from_high, above_low, from_low = (sum(one[0][i] for one in seen) for i in range(4))
    maximum = max(one[1] for one in seen)
    if above_high < k <= from_high:
        return high, maximum
    if above_low < k <= from_low:
        return low, maximum
    if from_high < k <= above_low:
        inside = np.concatenate([one[2] for one in seen])
        if len(inside) == above_low - from_high:
            return _kth_of(inside, k - from_high), maximum
    return _refined(streams, k, low.dtype), maximum


def _bracket(pieces: Sequence[Keys], share: float) -> tuple[Any, Any]:
    """Bracket the key that a share of all entries lies below, by what pieces of them say.

    Neighbours resemble each other, so a piece tells less than as many entries drawn one by one: the standard
    error is that of a sample of whole pieces.
    """
    sample = np.concatenate(pieces)
    lengths = np.array([len(keys) for keys in pieces])
    middle = min(int(share * len(sample)), len(sample) - 1)
    above = np.add.reduceat(
        sample >= np.partition(sample, middle)[middle], lengths.cumsum() - lengths, dtype=int
    )
    error = math.sqrt(float(np.square(above - above.sum() / len(sample) * lengths).sum()))
    slack = _WIDTH * error + 1.0
    first, last = math.floor(share * len(sample) - slack), math.ceil(share * len(sample) + slack)
    ranks = np.clip([first, last], 0, len(sample) - 1)
    sample.partition(np.unique(ranks))
    low, high = sample[ranks]
    if last - first <= len(sample) // 8:  # beyond the sample there are few, and the key may be one of them
        kind = sample.dtype
        low = low if first >= 0 else kind.type(0)
        high = high if last < len(sample) else kind.type(math.inf if kind.kind == "f" else np.iinfo(kind).max)
    return low, high


def _refined(streams: Sequence[Stream], k: int, dtype: np.dtype[Any]) -> Any:
    """Find the key of the k-th largest by histograms of 16 bits at a time, from the leading ones down."""
    integer = np.dtype(f"i{dtype.itemsize}")
    prefix = 0
    for shift in range(8 * dtype.itemsize - 16, -1, -16):

        def count(keys: Keys, shift: int = shift, prefix: int = prefix) -> NDArray[np.int64]:
            # Non-negative floating-point numbers sort as their bit patterns do.
            bits = keys.view(integer).astype(np.int64)
            if shift < 8 * dtype.itemsize - 16:
                bits = bits[(bits >> (shift + 16)) == prefix]
            return np.bincount((bits >> shift) & 0xFFFF, minlength=1 << 16)

        counts = np.zeros(1 << 16, dtype=np.int64)
        for stream in streams:
            for one in stream.map(count):
                counts += one
        # Entries in this bin and all above it, from the top.
        above = np.cumsum(counts[::-1])
        place = int(np.searchsorted(above, k))
        bin_ = (1 << 16) - 1 - place
        k -= int(above[place]) - int(counts[bin_])
        prefix = (prefix << 16) | bin_
    return np.array(prefix, dtype=integer).view(dtype)[()]


def _kth_of(keys: Keys, k: int) -> Any:
    keys.partition(len(keys) - k)
    return keys[len(keys) - k]


def _value(key: Any, kind: torch.dtype) -> float:
    if kind.itemsize > 2:
        return float(key)
    return float(torch.tensor(int(key), dtype=torch.int16).view(kind))
