"""The largest entries of a Fisher diagonal, and what a summary that holds only those is good for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from fedforget.errors import SummaryError

_INT32_MOST = 2**31 - 1


@dataclass(frozen=True, eq=False)
class SparseFisher:
    """Some entries of the Fisher diagonal of one weight; the others count as 0.

    Attributes
    ----------
    shape : tuple of int
        Of the weight tensor.
    indices : Tensor
        Places in the flattened tensor, ascending, each once; shape ``[n]``, int32 or int64.
    values : Tensor
        Shape ``[n]``, a floating dtype.
    rest : float
        The largest entry that is not held, smaller than all that are; 0 where the others are 0.
    """

    shape: tuple[int, ...]
    indices: Tensor
    values: Tensor
    rest: float = 0.0

    @property
    def size(self) -> int:
        """Coordinates of the weight tensor."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The values' dtype, and that of :meth:`dense`."""
        return self.values.dtype

    def dense(self) -> Tensor:
        """Return the diagonal with zeros where no entry is held, in the weight's shape."""
        out = torch.zeros(self.size, dtype=self.dtype)
        out[self.indices.long()] = self.values
        return out.view(self.shape)

    def validate(self, what: str) -> None:
        """Check the places; the values are checked as any Fisher's are.

        Raises
        ------
        SummaryError
            ``what`` begins its text.
        """
        indices, n = self.indices, self.values.numel()
        if indices.dtype not in (torch.int32, torch.int64) or indices.ndim != 1 or self.values.ndim != 1:
            raise SummaryError(f"{what} is not a list of places and a list of values")
        if indices.numel() != n:
            raise SummaryError(f"{what} holds {n} values at {indices.numel()} places")
        if n and (int(indices[0]) < 0 or int(indices[-1]) >= self.size):
            raise SummaryError(f"{what} has places outside a tensor of shape {self.shape}")
        if not 0.0 <= self.rest < math.inf:
            raise SummaryError(f"{what} says that its other entries are at most {self.rest}")
        if n > 1 and not bool((indices[1:] > indices[:-1]).all()):
            raise SummaryError(f"{what} has places that do not ascend, or one place twice")
        if self.rest > 0.0 and (not n or float(self.values.min()) <= self.rest):
            least = f"the smallest that it holds is {float(self.values.min()):g}" if n else "it holds none"
            raise SummaryError(
                f"{what} says that an entry as large as {self.rest:g} was left out, and {least}: these are "
                "not the largest entries"
            )


Fisher = Tensor | SparseFisher


def dense_fisher(fisher: Fisher) -> Tensor:
    """Return a Fisher diagonal as a tensor, whichever way it is held."""
    return fisher.dense() if isinstance(fisher, SparseFisher) else fisher


def index_dtype(size: int) -> torch.dtype:
    """Return the dtype of places in a tensor of so many coordinates."""
    return torch.int32 if size <= _INT32_MOST else torch.int64


Kind = Literal["whole", "top", "pooled-top", "approximate"]


@dataclass(frozen=True)
class Coverage:
    """What the server may do with the Fisher that a summary holds.

    Attributes
    ----------
    kind : {"whole", "top", "pooled-top", "approximate"}
        ``whole``: every entry, to the bit. ``top``: the client's largest entries, exact where its
        Fisher is not pooled with others. ``pooled-top``: the entries that the largest of its
        domain's mean depend on, exact where it is pooled with ``members`` and nobody else.
        ``approximate``: anything else, see its codec.
    share : float
        The largest entries are complete for every share alpha up to this one, ties included.
    members : tuple of str
        With ``pooled-top``: every client of the domain, sorted.
    """

    kind: Kind = "whole"
    share: float = 1.0
    members: tuple[str, ...] = ()

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {"kind": self.kind, "share": self.share, "members": list(self.members)}

    @classmethod
    def from_plain(cls, raw: object) -> Coverage:
        """Read back what :meth:`to_plain` returned.

        Raises
        ------
        ValueError
            It is something else.
        """
        if not isinstance(raw, Mapping):
            raise ValueError("the Fisher's coverage is not a mapping")
        kind, share, members = raw.get("kind"), raw.get("share"), raw.get("members")
        if not isinstance(kind, str) or kind not in get_args(Kind):
            raise ValueError(f"the Fisher's coverage is of the unknown kind {kind!r}")
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0.0 < share <= 1.0:
            raise ValueError(f"the Fisher's coverage has share {share!r}, not a number in (0, 1]")
        if not isinstance(members, list) or not all(isinstance(one, str) for one in members):
            raise ValueError("the Fisher's coverage does not list its members")
        return cls(cast(Kind, kind), float(share), tuple(members))


WHOLE = Coverage()
