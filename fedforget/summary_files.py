"""The tensors of a stored summary: written whole, read one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from torch import Tensor

from fedforget.errors import SummaryError
from fedforget.factors import Delta, LoraFactors
from fedforget.mapped import MappedTensors, Openable, Release
from fedforget.sparse_fisher import Fisher, SparseFisher

# What follows a weight's name in a file whose tensors are parts of something.
A, B = "::lora_A", "::lora_B"
INDICES, VALUES = "::indices", "::values"


T = TypeVar("T")


class Lazy(Openable[T]):
    """Values built when they are asked for; what is one tensor of the file can give its memory back."""

    def __init__(
        self, tensors: MappedTensors, readers: Mapping[str, Callable[[], T]], whole: Iterable[str]
    ) -> None:
        self._tensors = tensors
        self._readers = readers
        self._names = sorted([*readers, *whole])

    def open(self, name: str) -> tuple[T, Release]:
        """Build a value, or map the tensor that it is."""
        if name not in self._names:
            raise KeyError(name)
        if name in self._readers:
            return self._readers[name](), lambda start, stop: None
        return cast(tuple[T, Release], self._tensors.open(name))

    def __getitem__(self, name: str) -> T:
        return self.open(name)[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def deltas_on_disk(path: Path, scales: Mapping[str, float]) -> Mapping[str, Delta]:
    """Open the task vectors of a stored summary; ``scales`` names those that are LoRA factors."""
    tensors = MappedTensors(path)
    factor_names = {name + suffix for name in scales for suffix in (A, B)}
    absent = sorted(factor_names - set(tensors))
    if absent:
        raise SummaryError(f"{path}: factor {absent[0]!r} is missing")
    # Taken for dense tensors, factors without their scale would be merged apart.
    loose = sorted(name for name in tensors if name.endswith((A, B)) and name not in factor_names)
    if loose:
        raise SummaryError(f"{path}: factor {loose[0]!r} has no scale in summary.json")

    def factors(name: str) -> Callable[[], Delta]:
        return lambda: LoraFactors(tensors[name + A], tensors[name + B], scales[name])

    whole = [name for name in tensors if name not in factor_names]
    return Lazy(tensors, {name: factors(name) for name in scales}, whole)


def fishers_on_disk(path: Path, sparse: Mapping[str, Any]) -> Mapping[str, Fisher]:
    """Open the Fishers of a stored summary; ``sparse`` has the shape and rest of those that are sparse."""
    tensors = MappedTensors(path)
    parts = {name + suffix for name in sparse for suffix in (INDICES, VALUES)}
    absent = sorted(parts - set(tensors))
    if absent:
        raise SummaryError(f"{path}: {absent[0]!r} of a sparse Fisher is missing")

    def largest(name: str) -> Callable[[], Fisher]:
        shape, rest = tuple(int(size) for size in sparse[name]["shape"]), float(sparse[name]["rest"])
        return lambda: SparseFisher(shape, tensors[name + INDICES], tensors[name + VALUES], rest)

    whole = [name for name in tensors if name not in parts]
    return Lazy(tensors, {name: largest(name) for name in sparse}, whole)


def owned(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous CPU tensors that share no memory, which is what safetensors writes."""
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in sorted(tensors.items())}
