"""The clients of one merge: checked, in a fixed order, read one weight and one block at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedforget.errors import SummaryError
from fedforget.sparse_fisher import dense_fisher
from fedforget.summaries import ClientSummary, LoraFactors

# Coordinates per block: 2 MiB in fp64. The blocks of a tensor depend on its shape alone, so every
# sum over blocks runs in the same order on every machine.
BLOCK = 1 << 18


@dataclass(frozen=True)
class Layout:
    """A tensor seen as a matrix, cut into blocks of whole rows.

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
    def blocks(self) -> list[tuple[int, int]]:
        """Row ranges ``(start, stop)``, each at most :data:`BLOCK` coordinates unless one row is longer."""
        if not self.size:
            return []
        step = max(1, BLOCK // self.width)
        return [(start, min(start + step, self.rows)) for start in range(0, self.rows, step)]

    def assemble(self, dtype: torch.dtype, block: Callable[[int, int], Tensor]) -> Tensor:
        """Build a tensor of this shape from its blocks, each rounded once to ``dtype``."""
        out = torch.empty(self.shape, dtype=dtype)
        matrix = out.view(self.rows, self.width)
        for start, stop in self.blocks:
            matrix[start:stop].copy_(block(start, stop).view(stop - start, self.width))
        return out


class Source:
    """The plain mean of some clients' task vectors and raw Fishers for one weight (equation 2).

    A retain client, or a forget client that is not pooled, is a source of one member. Blocks
    come as flat fp64 tensors; what a client keeps on disk is read at the first use.
    """

    def __init__(self, members: Sequence[ClientSummary], name: str, layout: Layout) -> None:
        self._members = members
        self._name = name
        self.layout = layout

    def unread(self) -> Source:
        """Return the same source without the tensors that it has read."""
        return Source(self._members, self._name, self.layout)

    @cached_property
    def _deltas(self) -> list[Tensor | LoraFactors]:
        return [
            delta if isinstance(delta, LoraFactors) else self._matrix(delta)
            for delta in (member.deltas[self._name] for member in self._members)
        ]

    @cached_property
    def _fishers(self) -> list[Tensor]:
        return [self._matrix(dense_fisher(member.fisher[self._name])) for member in self._members]

    def _matrix(self, tensor: Tensor) -> Tensor:
        return tensor.detach().reshape(self.layout.rows, self.layout.width)

    def delta(self, start: int, stop: int) -> Tensor:
        """Mean task vector of rows ``start:stop``; fp64 of shape ``[(stop - start) * width]``."""
        return _mean(
            [
                _wide(one.rows(start, stop) if isinstance(one, LoraFactors) else one[start:stop])
                for one in self._deltas
            ]
        )

    def fisher(self, start: int, stop: int) -> Tensor:
        """Mean raw Fisher of rows ``start:stop``; fp64 of shape ``[(stop - start) * width]``."""
        return _mean([_wide(one[start:stop]) for one in self._fishers])

    def fisher_blocks(self) -> Iterator[Tensor]:
        """All blocks of :meth:`fisher`, in order."""
        return (self.fisher(start, stop) for start, stop in self.layout.blocks)


class Clients:
    """The checked summaries of one merge, ordered by client id.

    Parameters
    ----------
    summaries : iterable of ClientSummary
        In any order.
    needs_fisher : bool
        Whether every client must have sent its Fisher diagonal.

    Raises
    ------
    SummaryError
        No summary, no forget client, a repeated client id, a summary that is not valid, a
        missing Fisher, or clients whose tensors differ in name or shape. Names client and tensor.
    """

    def __init__(self, summaries: Iterable[ClientSummary], *, needs_fisher: bool) -> None:
        self.all = sorted(summaries, key=lambda summary: summary.client_id)
        if not self.all:
            raise SummaryError("there is no client summary to merge; give at least one forget client's")
        self._check_ids()
        self.layouts: dict[str, Layout] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        for summary in self.all:
            summary.validate()
            if needs_fisher and not summary.fisher:
                raise SummaryError(
                    f"client {summary.client_id!r}: sent no Fisher diagonal, which this merge method needs; "
                    "use a method without Fishers or let the client compute it"
                )
            # Only shapes and dtypes are kept of what is read here.
            kinds = {name: (tuple(delta.shape), delta.dtype) for name, delta in summary.deltas.items()}
            self._check_shapes(summary, {name: shape for name, (shape, _) in kinds.items()})
            for name, (_, dtype) in kinds.items():
                self._dtypes[name] = torch.promote_types(self._dtypes.get(name, dtype), dtype)
        self.forget = [summary for summary in self.all if summary.role == "forget"]
        self.retain = [summary for summary in self.all if summary.role == "retain"]
        if not self.forget:
            raise SummaryError(
                f"none of the {len(self.all)} clients has the role 'forget'; a merge needs at least one"
            )

    @property
    def names(self) -> list[str]:
        """Tensor names, sorted."""
        return sorted(self.layouts)

    @cached_property
    def domains(self) -> dict[str, list[ClientSummary]]:
        """Forget clients by domain, sorted."""
        return {
            domain: [summary for summary in self.forget if summary.domain == domain]
            for domain in sorted({summary.domain for summary in self.forget})
        }

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of the merged tensor: the clients' own, promoted where they differ."""
        return self._dtypes[name]

    def source(self, name: str, members: Sequence[ClientSummary]) -> Source:
        """Return the mean of some clients for one weight."""
        return Source(members, name, self.layouts[name])

    def sources(self, name: str, members: Sequence[ClientSummary]) -> list[Source]:
        """Return one source per client for one weight."""
        return [self.source(name, [member]) for member in members]

    def _check_ids(self) -> None:
        for one, other in zip(self.all, self.all[1:], strict=False):
            if one.client_id == other.client_id:
                raise SummaryError(
                    f"client {one.client_id!r}: two summaries have this id; give each client once"
                )

    def _check_shapes(self, summary: ClientSummary, shapes: dict[str, tuple[int, ...]]) -> None:
        if not self.layouts:
            self.layouts = {name: Layout(shapes[name]) for name in sorted(shapes)}
            return
        who, first = f"client {summary.client_id!r}", self.all[0].client_id
        for name in sorted(set(shapes) ^ set(self.layouts)):
            where = (
                f"is not among client {first!r}'s"
                if name in shapes
                else f"is missing; client {first!r} has it"
            )
            raise SummaryError(f"{who}: tensor {name!r} {where}; all clients must adapt the same weights")
        for name, layout in self.layouts.items():
            if shapes[name] != layout.shape:
                raise SummaryError(
                    f"{who}: tensor {name!r} has shape {shapes[name]}, client {first!r} has {layout.shape}; "
                    "all clients must adapt the same backbone"
                )


def squared_norm(tensor: Tensor) -> float:
    """Sum of squares in fp64, by blocks in a fixed order.

    NumPy's pairwise sum, not torch's: the latter depends on the number of threads.
    """
    flat = tensor.detach().reshape(-1)
    total = 0.0
    for start in range(0, flat.numel(), BLOCK):
        wide = flat[start : start + BLOCK].to(torch.float64).numpy()
        total += float(np.add.reduce(wide * wide))
    return total


def _wide(block: Tensor) -> Tensor:
    return block.to(device="cpu", dtype=torch.float64).reshape(-1)


def _mean(blocks: list[Tensor]) -> Tensor:
    if len(blocks) == 1:
        return blocks[0]
    total = blocks[0] + blocks[1]
    for block in blocks[2:]:
        total += block
    return total / len(blocks)
