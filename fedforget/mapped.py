"""Tensors of a safetensors file mapped into memory: read as they are touched, given back when done with."""

from __future__ import annotations

import json
import math
import mmap
import struct
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedforget.errors import SummaryError

V_co = TypeVar("V_co", covariant=True)

# Gives the memory of coordinates start:stop of a flattened tensor back; they can still be read.
Release = Callable[[int, int], None]

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "BOOL": torch.bool,
}  # fmt: skip


class Openable(Mapping[str, V_co]):
    """A mapping whose values can also be opened together with a way to give their memory back."""

    @abstractmethod
    def open(self, name: str) -> tuple[V_co, Release]:
        """Return the value and a function that releases a range of its coordinates."""


def open_value(values: Mapping[str, V_co], name: str) -> tuple[V_co, Release]:
    """Return a value, and how to release parts of it where the mapping knows a way."""
    if isinstance(values, Openable):
        opened: tuple[V_co, Release] = values.open(name)
        return opened
    return values[name], _keep


def _keep(start: int, stop: int) -> None:
    """Release nothing: the memory belongs to someone else."""


@dataclass(frozen=True)
class _Entry:
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int


class MappedTensors(Openable[Tensor]):
    """The tensors of one safetensors file.

    Each access maps the file anew, so no change to a tensor reaches the file or another access. Pages
    count as resident from the first touch until they are released or the tensor is dropped.

    Parameters
    ----------
    path : Path

    Raises
    ------
    SummaryError
        The file cannot be read as safetensors.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with safe_open(path, framework="pt") as file:
                self.names = list(file.keys())
            self._entries = _entries(path)
        except (OSError, SafetensorError) as error:
            raise SummaryError(f"{path}: cannot be read as safetensors ({error})") from error

    def open(self, name: str) -> tuple[Tensor, Release]:
        """Map one tensor.

        Returns
        -------
        tuple of (Tensor, callable)
            The tensor, and a function ``(start, stop)`` that drops these coordinates from memory; they
            are read from the file again where they are touched again.
        """
        entry = self._entries[name]
        count = math.prod(entry.shape)
        if not count:
            return torch.empty(entry.shape, dtype=entry.dtype), _keep
        try:
            with open(self._path, "rb") as file:
                # A private mapping: torch wants writable memory, the file stays as it is.
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError as error:
            raise SummaryError(
                f"{self._path}: was there and cannot be opened now ({error.strerror}); restore it, "
                "or give the machine that merges access to it under this path"
            ) from error
        except ValueError as error:  # there is nothing to map
            raise SummaryError(self._shorter()) from error
        if len(mapped) < entry.offset + count * entry.dtype.itemsize:
            raise SummaryError(self._shorter())
        flat = torch.frombuffer(mapped, dtype=entry.dtype, count=count, offset=entry.offset)
        return flat.view(entry.shape), _releasing(mapped, entry)

    def _shorter(self) -> str:
        return f"{self._path}: is shorter than it was when its tensors were listed; restore it"

    def __getitem__(self, name: str) -> Tensor:
        return self.open(name)[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def _entries(path: Path) -> dict[str, _Entry]:
    """Read where each tensor lies; the file has passed the library's own checks already."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header: dict[str, Any] = json.loads(file.read(length))
    entries = {}
    for name, one in header.items():
        if name == "__metadata__":
            continue
        if one["dtype"] not in _DTYPES:
            raise SummaryError(f"{path}: tensor {name!r} has dtype {one['dtype']}, which is not supported")
        entries[name] = _Entry(
            _DTYPES[one["dtype"]], tuple(one["shape"]), 8 + length + one["data_offsets"][0]
        )
    return entries


def _releasing(mapped: mmap.mmap, entry: _Entry) -> Release:
    def release(start: int, stop: int) -> None:
        first = (entry.offset + start * entry.dtype.itemsize) // mmap.PAGESIZE * mmap.PAGESIZE
        # The page that the range ends in holds what comes next.
        last = (entry.offset + stop * entry.dtype.itemsize) // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first:
            mapped.madvise(mmap.MADV_DONTNEED, first, last - first)

    return release if hasattr(mmap, "MADV_DONTNEED") else _keep
