"""Where blocks of task vectors and Fishers come from: one client, or the mean of several (equation 2)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedforget.errors import SummaryError
from fedforget.mapped import Release, open_value
from fedforget.merging.compiled import Addresses, compile_kernels
from fedforget.merging.layout import Layout
from fedforget.streamed import Streamed
from fedforget.summaries import ClientSummary, LoraFactors, SparseFisher, all_finite


class Part(ABC):
    """One client's task vector, or Fisher diagonal, for one weight, read block by block.

    Attributes
    ----------
    plain : Tensor or None
        The flat tensor, where the client sent one.
    release : callable
        Gives the memory of coordinates ``(start, stop)`` back, where it is a file's.
    """

    plain: Tensor | None = None

    @property
    def address(self) -> int | None:
        """Where the first number is, where the client sent dense bf16 and it is in this computer's memory."""
        return None

    def __init__(self, release: Release) -> None:
        self.release = release

    @abstractmethod
    def read(self, start: int, stop: int, out: Tensor) -> None:
        """Write coordinates ``start:stop`` into ``out``."""

    @abstractmethod
    def within(self, start: int, stop: int, least: float) -> bool:
        """Tell whether coordinates are finite and at least ``least``; some parts look at all of them."""


class Parts:
    """Some parts, read together."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    def open(self) -> None:
        """Do nothing: parts are open."""

    def release(self, start: int, stop: int) -> None:
        """Give the memory of some coordinates back, where it is a file's."""
        for part in self._parts:
            part.release(start, stop)


# From these bits on, a number of 16 bits without its sign is infinite or NaN.
_NOT_FINITE = {torch.bfloat16: 0x7F80, torch.float16: 0x7C00}


def _narrow(plain: Tensor) -> NDArray[np.uint16] | None:
    if plain.dtype not in _NOT_FINITE or plain.device.type != "cpu":
        return None
    bits: NDArray[np.uint16] = plain.view(torch.uint16).numpy()
    return bits


class _Dense(Part):
    def __init__(self, value: Tensor, release: Release) -> None:
        super().__init__(release)
        self.plain: Tensor = value.detach().reshape(-1).contiguous()
        self._narrow = _narrow(self.plain)

    @property
    def address(self) -> int | None:
        """Where the first number is, where it is bf16 and in this computer's memory."""
        bf16 = self._narrow is not None and self.plain.dtype == torch.bfloat16
        return self.plain.data_ptr() if bf16 else None

    def read(self, start: int, stop: int, out: Tensor) -> None:
        out.copy_(self.plain[start:stop])

    def within(self, start: int, stop: int, least: float) -> bool:
        if self._narrow is not None and stop > start:
            # Read as integers, what is not finite is the largest of its sign, and negative numbers are above.
            bits = self._narrow[start:stop]
            beyond = _NOT_FINITE[self.plain.dtype]
            if bits.max() < (beyond if least == 0.0 else beyond | 0x8000) and (
                least == 0.0 or bits.view(np.int16).max() < beyond
            ):
                return True
        return _within(self.plain[start:stop], least)


class _Factors(Part):
    """LoRA factors, multiplied in fp32 or better, some rows or a part of one row at a time."""

    def __init__(self, value: LoraFactors, release: Release) -> None:
        super().__init__(release)
        wide = torch.promote_types(value.dtype, torch.float32)
        # A is needed whole for every block, and is small.
        self._factors = LoraFactors(value.A.detach().cpu().to(wide), value.B.detach().cpu(), value.scale)

    def read(self, start: int, stop: int, out: Tensor) -> None:
        factors, width = self._factors, self._factors.shape[1]
        first, last = start // width, -(-stop // width)
        skip = start - first * width
        if last == first + 1 and stop - start < width:
            columns = slice(skip, skip + stop - start)
            factors, skip = LoraFactors(factors.A[:, columns], factors.B, factors.scale), 0
        out.copy_(factors.rows(first, last).view(-1)[skip : skip + stop - start])

    def within(self, start: int, stop: int, least: float) -> bool:
        return start > 0 or (all_finite(self._factors.A) and all_finite(self._factors.B))


class _Sparse(Part):
    """Some entries of a Fisher; the others are 0."""

    def __init__(self, value: SparseFisher, release: Release) -> None:
        super().__init__(release)
        self._value = value

    def read(self, start: int, stop: int, out: Tensor) -> None:
        indices = self._value.indices
        ends = torch.tensor([start, stop], dtype=indices.dtype)
        first, last = torch.searchsorted(indices, ends).tolist()
        out.zero_()
        out[indices[first:last].long() - start] = self._value.values[first:last].to(out.dtype)

    def within(self, start: int, stop: int, least: float) -> bool:
        if start > 0:
            return True
        try:
            self._value.validate("a sparse Fisher")
        except SummaryError:
            return False
        return _within(self._value.values, least)


class _Computed(Part):
    def __init__(self, value: Streamed) -> None:
        super().__init__(value.release)
        value.open()
        self._value = value

    def read(self, start: int, stop: int, out: Tensor) -> None:
        self._value.read(start, stop, out)

    def within(self, start: int, stop: int, least: float) -> bool:
        out = torch.empty(stop - start, dtype=torch.promote_types(self._value.dtype, torch.float32))
        self._value.read(start, stop, out)
        return _within(out, least)


def _part(value: Tensor | LoraFactors | SparseFisher | Streamed, release: Release) -> Part:
    if isinstance(value, Streamed):
        return _Computed(value)
    if isinstance(value, LoraFactors):
        return _Factors(value, release)
    return _Sparse(value, release) if isinstance(value, SparseFisher) else _Dense(value, release)


def _within(values: Tensor, least: float) -> bool:
    if not values.numel():
        return True
    # NaN propagates through the extremes, so one pass over the data decides.
    low, high = torch.aminmax(values)
    return float(low) >= least and float(low) > -math.inf and float(high) < math.inf


class Source:
    """The plain mean of some clients' task vectors and raw Fishers for one weight (equation 2).

    A retain client, or a forget client that is not pooled, is a source of one member. Blocks are
    flat and in the working dtype: fp32, or fp64 where a client sent fp64. The mean adds its
    members in their order and divides by their number once. What a client keeps on disk is opened
    at the first use.

    Parameters
    ----------
    members : sequence of ClientSummary
    name : str
    layout : Layout
    dtype : torch.dtype
        The working dtype.
    compiled : bool
        Whether numba reads what it can; only for fp32.
    """

    def __init__(
        self,
        members: Sequence[ClientSummary],
        name: str,
        layout: Layout,
        dtype: torch.dtype,
        compiled: bool = False,
    ) -> None:
        self._members = members
        self._name = name
        self.layout = layout
        self.dtype = dtype
        self.compiled = compiled

    def unread(self) -> Source:
        """Return the same source without the tensors that it has opened."""
        return Source(self._members, self._name, self.layout, self.dtype, self.compiled)

    @cached_property
    def deltas(self) -> list[Part]:
        """The members' task vectors."""
        return [_part(*open_value(one.deltas, self._name)) for one in self._members]

    @cached_property
    def fishers(self) -> list[Part]:
        """The members' raw Fishers; none where they sent none."""
        return [_part(*open_value(one.fisher, self._name)) for one in self._members if one.fisher]

    def open(self) -> None:
        """Open everything, so that threads find it open."""
        _ = self.deltas, self.fishers

    def release(self, start: int, stop: int) -> None:
        """Give the memory of some coordinates back, where it is a file's."""
        Parts([*self.deltas, *self.fishers]).release(start, stop)

    def delta(self, start: int, stop: int, out: Tensor | None = None, spare: Tensor | None = None) -> Tensor:
        """Mean task vector of some coordinates.

        Parameters
        ----------
        start, stop : int
        out, spare : Tensor, optional
            Buffers of ``stop - start`` entries in the working dtype: for the result, and to read into.
        """
        return self._mean(self.deltas, self.delta_addresses, start, stop, out, spare)

    def fisher(self, start: int, stop: int, out: Tensor | None = None, spare: Tensor | None = None) -> Tensor:
        """Mean raw Fisher of some coordinates; see :meth:`delta`."""
        return self._mean(self.fishers, self.fisher_addresses, start, stop, out, spare)

    @cached_property
    def delta_addresses(self) -> Addresses | None:
        """Where the members' task vectors begin, in bf16, where the kernels read all of them."""
        return self._addresses(self.deltas)

    @cached_property
    def fisher_addresses(self) -> Addresses | None:
        """Where the members' raw Fishers begin; see :attr:`delta_addresses`."""
        return self._addresses(self.fishers)

    def _addresses(self, parts: Sequence[Part]) -> Addresses | None:
        addresses = [part.address for part in parts] if self.compiled else [None]
        return None if None in addresses else np.array(addresses, np.int64)

    def _mean(
        self,
        parts: Sequence[Part],
        addresses: Addresses | None,
        start: int,
        stop: int,
        out: Tensor | None,
        spare: Tensor | None,
    ) -> Tensor:
        size = stop - start
        total = torch.empty(size, dtype=self.dtype) if out is None else out
        if addresses is not None:
            compile_kernels().mean(total.numpy(), addresses + 2 * start)
            return total
        parts[0].read(start, stop, total)
        if len(parts) == 1:
            return total
        one = torch.empty(size, dtype=self.dtype) if spare is None else spare
        for part in parts[1:]:
            part.read(start, stop, one)
            total.add_(one)
        return total.div_(len(parts))
