"""How a tensor is cut into blocks, and how the blocks are worked on: in threads, results in order."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

# Coordinates per block: 256 KiB in fp32, so that the handful of buffers a merge needs stay in a core's
# cache. The blocks of a tensor depend on its shape alone, so every sum over blocks runs in the same
# order on every machine and with any number of threads.
BLOCK = 1 << 16

# Blocks that a thread takes at a time; what they were read from is released after them.
_STRIPE = 8

R = TypeVar("R")
Block = tuple[int, int]


class Readable(Protocol):
    """Something that blocks are read from."""

    def open(self) -> None:
        """Get ready to be read, by several threads."""

    def release(self, start: int, stop: int) -> None:
        """Give the memory of some coordinates back."""


@dataclass(frozen=True)
class Layout:
    """A tensor seen as a flat vector, cut into blocks.

    Attributes
    ----------
    shape : tuple of int
        The tensor's own shape.
    """

    shape: tuple[int, ...]

    @property
    def rows(self) -> int:
        """The first dimension; 1 for a scalar."""
        return self.shape[0] if self.shape else 1

    @property
    def width(self) -> int:
        """Coordinates in one row."""
        return math.prod(self.shape[1:])

    @property
    def size(self) -> int:
        """Coordinates in all."""
        return self.rows * self.width

    @cached_property
    def blocks(self) -> list[Block]:
        """Ranges ``(start, stop)`` of the flattened tensor, each at most :data:`BLOCK` long.

        A block is made of whole rows, or, where a row is longer than a block, is a part of one row.
        """
        if not self.size:
            return []
        if self.width > BLOCK:
            return [
                (row * self.width + start, row * self.width + min(start + BLOCK, self.width))
                for row in range(self.rows)
                for start in range(0, self.width, BLOCK)
            ]
        step = BLOCK // self.width * self.width
        return [(start, min(start + step, self.size)) for start in range(0, self.size, step)]

    def map(self, sources: Sequence[Readable], function: Callable[[int, int], R]) -> list[R]:
        """Apply a function to every block.

        Parameters
        ----------
        sources : sequence of Readable
            What the function reads: opened before, and released block by block.
        function : callable
            Of a block's ``(start, stop)``; called from several threads.

        Returns
        -------
        list
            One result per block, in the order of the blocks.
        """
        for source in sources:
            source.open()

        def stripe(blocks: Sequence[Block]) -> list[R]:
            results = [function(start, stop) for start, stop in blocks]
            for source in sources:
                source.release(blocks[0][0], blocks[-1][1])
            return results

        blocks = self.blocks
        stripes = [blocks[at : at + _STRIPE] for at in range(0, len(blocks), _STRIPE)]
        return [result for part in in_threads(stripe, stripes) for result in part]

    def assemble(
        self, dtype: torch.dtype, sources: Sequence[Readable], block: Callable[[int, int], Tensor]
    ) -> Tensor:
        """Build a tensor of this shape from its flat blocks, each rounded once to ``dtype``."""
        out = torch.empty(self.shape, dtype=dtype)
        flat = out.view(-1)

        def fill(start: int, stop: int) -> None:
            flat[start:stop].copy_(block(start, stop))

        self.map(sources, fill)
        return out


A = TypeVar("A")


def in_threads(function: Callable[[A], R], arguments: Sequence[A]) -> list[R]:
    """Apply a function to each argument, in as many threads as torch is set to use.

    Each thread runs torch and its BLAS on itself alone: results do not depend on how many there are.

    Returns
    -------
    list
        Results in the order of the arguments.
    """
    threads = torch.get_num_threads()
    if threads == 1 or len(arguments) <= 1:
        return _alone(function, arguments, threads)
    pool = ThreadPoolExecutor(
        min(threads, len(arguments)),
        thread_name_prefix="merge",
        initializer=torch.set_num_threads,
        initargs=(1,),
    )
    try:
        return list(pool.map(function, arguments))
    finally:
        pool.shutdown(cancel_futures=True)
        # The setting is per thread, and its last value is what threads to come start with.
        torch.set_num_threads(threads)


def _alone(function: Callable[[A], R], arguments: Iterable[A], threads: int) -> list[R]:
    if threads == 1:
        return [function(one) for one in arguments]
    torch.set_num_threads(1)
    try:
        return [function(one) for one in arguments]
    finally:
        torch.set_num_threads(threads)


class Scratch(threading.local):
    """Buffers that one thread uses again from block to block."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._buffers: dict[object, Tensor] = {}

    def __call__(self, key: object, size: int) -> Tensor:
        """Return the buffer with this key, of ``size`` entries that hold anything."""
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < size:
            buffer = self._buffers[key] = torch.empty(max(size, BLOCK), dtype=self._dtype)
        return buffer[:size]


def squared_norm(tensor: Tensor) -> float:
    """Sum of squares in fp64, by blocks in a fixed order."""
    flat = tensor.detach().reshape(-1)
    # A flat cut, whatever the shape.
    layout = Layout((flat.numel(),))
    return sum(layout.map((), lambda start, stop: squares(flat[start:stop])), 0.0)


def squares(block: Tensor) -> float:
    """Sum of squares of one block in fp64.

    NumPy's pairwise sum, not torch's: the latter depends on the number of threads.
    """
    wide = _wide("squares", block.numel()).copy_(block).numpy()
    return float(np.add.reduce(np.multiply(wide, wide, out=wide)))


# Memory that is allocated for each block anew is cleared for each block anew.
_wide = Scratch(torch.float64)
