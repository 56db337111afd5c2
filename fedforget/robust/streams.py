"""Tensors computed from clients' tensors block by block, as the merge reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedforget.factors import LoraFactors
from fedforget.mapped import Openable, Release, open_value
from fedforget.robust.scales import source_of
from fedforget.sparse_fisher import SparseFisher
from fedforget.streamed import Streamed
from fedforget.summaries import ClientSummary

# Of the members' blocks, shape [members, block], in the working dtype.
Reduce = Callable[[Tensor], Tensor]


class Reduced(Streamed):
    """One tensor made of the same tensor of several clients.

    Parameters
    ----------
    members : sequence of ClientSummary
    name : str
    of_fisher : bool
        Of the raw Fishers, not of the task vectors.
    reduce : callable
    """

    def __init__(self, members: Sequence[ClientSummary], name: str, of_fisher: bool, reduce: Reduce) -> None:
        values = [(one.fisher if of_fisher else one.deltas)[name] for one in members]
        self.shape = tuple(values[0].shape)
        self.dtype = values[0].dtype
        for value in values[1:]:
            self.dtype = torch.promote_types(self.dtype, value.dtype)
        self._sources = [source_of(one, name) for one in members]
        self._of_fisher = of_fisher
        self._reduce = reduce

    def open(self) -> None:
        """Open the members."""
        for source in self._sources:
            source.open()

    def read(self, start: int, stop: int, out: Tensor) -> None:
        """Write coordinates ``start:stop`` into ``out``."""
        blocks = [
            source.fisher(start, stop) if self._of_fisher else source.delta(start, stop)
            for source in self._sources
        ]
        out.copy_(self._reduce(torch.stack(blocks)))

    def release(self, start: int, stop: int) -> None:
        """Give the memory of some coordinates back."""
        for source in self._sources:
            source.release(start, stop)


class Derived(Openable[Any]):
    """Tensors by name, each made when it is asked for.

    Parameters
    ----------
    members : sequence of ClientSummary
        All with the same names.
    of_fisher : bool
    reduce : callable
    """

    def __init__(self, members: Sequence[ClientSummary], of_fisher: bool, reduce: Reduce) -> None:
        self._members = list(members)
        self._of_fisher = of_fisher
        self._reduce = reduce

    def open(self, name: str) -> tuple[Any, Release]:
        """Make a tensor; nothing is read yet."""
        made = Reduced(self._members, name, self._of_fisher, self._reduce)
        return made, made.release

    def __getitem__(self, name: str) -> Any:
        return self.open(name)[0]

    def __iter__(self) -> Iterator[str]:
        first = self._members[0]
        return iter(sorted(first.fisher if self._of_fisher else first.deltas))

    def __len__(self) -> int:
        return len(self._members[0].fisher if self._of_fisher else self._members[0].deltas)


class Scaled(Derived):
    """One client's tensors times a number: LoRA factors stay factors, dense ones are scaled unrounded."""

    def __init__(self, member: ClientSummary, of_fisher: bool, factor: float) -> None:
        super().__init__([member], of_fisher, partial(_times, factor=factor))
        self._factor = factor

    def open(self, name: str) -> tuple[Any, Release]:
        """Scale the factors, or make a tensor that is scaled as it is read."""
        values: Mapping[str, Any] = self._members[0].fisher if self._of_fisher else self._members[0].deltas
        value, release = open_value(values, name)
        if isinstance(value, LoraFactors):
            return LoraFactors(value.A, value.B, value.scale * self._factor), release
        if isinstance(value, SparseFisher):
            wide = value.values.to(torch.promote_types(value.dtype, torch.float32)) * self._factor
            return SparseFisher(value.shape, value.indices, wide, value.rest * self._factor), release
        return super().open(name)


def _times(blocks: Tensor, factor: float) -> Tensor:
    return blocks[0] * factor
