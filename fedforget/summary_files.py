"""The tensors of a stored summary: written whole, read one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedforget.errors import SummaryError
from fedforget.factors import Delta, LoraFactors
from fedforget.sparse_fisher import Fisher, SparseFisher

# What follows a weight's name in a file whose tensors are parts of something.
A, B = "::lora_A", "::lora_B"
INDICES, VALUES = "::indices", "::values"


class OnDisk(Mapping[str, Tensor]):
    """Tensors of one safetensors file, read one at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with safe_open(path, framework="pt") as file:
                self.names = list(file.keys())
        except (OSError, SafetensorError) as error:
            raise SummaryError(f"{path}: cannot be read as safetensors ({error})") from error

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.names:
            raise KeyError(name)
        with safe_open(self._path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


T = TypeVar("T")


class Lazy(Mapping[str, T]):
    """Values built when they are asked for."""

    def __init__(self, readers: dict[str, Callable[[], T]]) -> None:
        self._readers = readers

    def __getitem__(self, name: str) -> T:
        return self._readers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)


def deltas_on_disk(path: Path, scales: Mapping[str, float]) -> Mapping[str, Delta]:
    """Open the task vectors of a stored summary; ``scales`` names those that are LoRA factors."""
    tensors = OnDisk(path)
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

    def dense(name: str) -> Callable[[], Delta]:
        return lambda: tensors[name]

    readers = {name: factors(name) for name in scales}
    readers |= {name: dense(name) for name in tensors if name not in factor_names}
    return Lazy(dict(sorted(readers.items())))


def fishers_on_disk(path: Path, shapes: Mapping[str, list[int]]) -> Mapping[str, Fisher]:
    """Open the Fishers of a stored summary; ``shapes`` names those that are sparse."""
    tensors = OnDisk(path)
    parts = {name + suffix for name in shapes for suffix in (INDICES, VALUES)}
    absent = sorted(parts - set(tensors))
    if absent:
        raise SummaryError(f"{path}: {absent[0]!r} of a sparse Fisher is missing")

    def sparse(name: str) -> Callable[[], Fisher]:
        shape = tuple(int(size) for size in shapes[name])
        return lambda: SparseFisher(shape, tensors[name + INDICES], tensors[name + VALUES])

    def dense(name: str) -> Callable[[], Fisher]:
        return lambda: tensors[name]

    readers = {name: sparse(name) for name in shapes}
    readers |= {name: dense(name) for name in tensors if name not in parts}
    return Lazy(dict(sorted(readers.items())))


def owned(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous CPU tensors that share no memory, which is what safetensors writes."""
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in sorted(tensors.items())}
