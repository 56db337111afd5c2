"""Records: labelled data whose every item has an id, so that it can be named, deleted and left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedforget.errors import DataError, nearest


@dataclass(frozen=True, eq=False)
class Records:
    """Labelled records, ordered by id.

    Attributes
    ----------
    ids : tuple of str
        Distinct and sorted, so that order never depends on how a set was put together.
    inputs : array or tuple
        Images: uint8 or float32 of shape ``[n, height, width]`` or ``[n, height, width, channels]``,
        or a tuple of such arrays where sizes differ. Texts: a tuple of str, or of (str, str) pairs.
    labels : array of int64, shape [n]
        Class numbers from 0.
    """

    ids: tuple[str, ...]
    inputs: Any
    labels: NDArray[np.int64]

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.inputs) == len(self.labels):
            raise DataError(
                f"records: {len(self.ids)} ids, {len(self.inputs)} inputs and {len(self.labels)} labels; "
                "give as many of each"
            )

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def of(cls, ids: Sequence[str], inputs: Any, labels: Iterable[int]) -> Records:
        """Put records in the order of their ids.

        Raises
        ------
        DataError
            An id appears twice, or the lengths differ.
        """
        whole = cls(tuple(ids), inputs, np.asarray(list(labels), dtype=np.int64))
        order = sorted(range(len(whole)), key=whole.ids.__getitem__)
        for before, after in pairwise(order):
            if whole.ids[before] == whole.ids[after]:
                raise DataError(f"record {whole.ids[after]!r} appears twice; ids must be distinct")
        return whole._take(order)

    def subset(self, ids: Iterable[str]) -> Records:
        """Return a copy of the named records alone; nothing of the others is reachable from it.

        Raises
        ------
        DataError
            There is no such record.
        """
        position = {name: i for i, name in enumerate(self.ids)}
        wanted = sorted(set(ids))
        for name in wanted:
            if name not in position:
                raise DataError(f"there is no record {name!r}{nearest(name, self.ids)}")
        return self._take([position[name] for name in wanted])

    def without(self, ids: Iterable[str]) -> Records:
        """Return a copy of all records but the named ones; names that are not here change nothing."""
        gone = frozenset(ids)
        return self._take([i for i, name in enumerate(self.ids) if name not in gone])

    def batch(self, positions: Sequence[int]) -> tuple[Any, NDArray[np.int64]]:
        """Return inputs and labels at these positions."""
        return _pick(self.inputs, positions), self.labels[np.asarray(positions, dtype=np.int64)]

    def _take(self, positions: Sequence[int]) -> Records:
        inputs, labels = self.batch(positions)
        return Records(tuple(self.ids[i] for i in positions), inputs, labels)


def _pick(inputs: Any, positions: Sequence[int]) -> Any:
    if isinstance(inputs, np.ndarray):
        # Indexing with an array copies; a view would keep the other records alive.
        return inputs[np.asarray(positions, dtype=np.int64)]
    return tuple(inputs[i] for i in positions)


def joined(parts: Sequence[Records]) -> Records:
    """Put disjoint records together, ordered by id.

    Raises
    ------
    DataError
        There is nothing to join, or an id appears twice.
    """
    if not parts:
        raise DataError("there are no records to join")
    ids = [name for part in parts for name in part.ids]
    labels = np.concatenate([part.labels for part in parts])
    inputs: Any
    if all(isinstance(part.inputs, np.ndarray) for part in parts) and _alike(parts):
        inputs = np.concatenate([part.inputs for part in parts])
    else:
        inputs = tuple(one for part in parts for one in part.inputs)
    return Records.of(ids, inputs, labels)


def _alike(parts: Sequence[Records]) -> bool:
    return len({(part.inputs.shape[1:], part.inputs.dtype) for part in parts}) == 1


@dataclass(frozen=True, eq=False)
class Corpus:
    """A data set in three disjoint parts.

    Attributes
    ----------
    public : Records
        What a built-in classifier is pretrained on; never deleted, never held by a client. May be empty.
    federated : Records
        What the clients hold.
    test : Records
        What accuracy is measured on.
    labels : tuple of str
        Name of each class.
    task : str
        ``image`` or ``text``.
    """

    public: Records
    federated: Records
    test: Records
    labels: tuple[str, ...]
    task: str

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for name in ("public", "federated", "test"):
            part: Records = getattr(self, name)
            if not seen.isdisjoint(part.ids):
                raise DataError(f"record {min(seen & set(part.ids))!r} is in two parts of the data set")
            seen |= set(part.ids)
            if len(part) and not 0 <= int(part.labels.min()) <= int(part.labels.max()) < len(self.labels):
                raise DataError(f"the {name} records hold a label outside 0 to {len(self.labels) - 1}")
