"""Labelled tables through ``datasets``: by hub id, or from local files of the same schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedforget.data.tables import check_columns, load_split
from fedforget.errors import DataError
from fedforget.sequential.config import RecordsConfig


@dataclass(frozen=True)
class HubSet:
    """Where a data set is on the hub, and what its columns are called.

    Attributes
    ----------
    path, subset : str
        Hub id, and configuration name (empty: none).
    inputs : tuple of str
        Column of the image or text; two for pairs of texts.
    label : str
        Column of the class.
    test : str
        Split that accuracy is measured on. For GLUE it is a validation split: the test labels are
        not public.
    """

    path: str
    subset: str
    inputs: tuple[str, ...]
    label: str
    test: str = "test"


@dataclass(frozen=True, eq=False)
class Table:
    """One split: ids, the input columns side by side, classes, and class names."""

    ids: tuple[str, ...]
    columns: tuple[Sequence[Any], ...]
    labels: NDArray[np.int64]


def load_tables(
    cfg: RecordsConfig, known: HubSet, inputs: tuple[str, ...]
) -> tuple[Table, Table, tuple[str, ...]]:
    """Load the training and the test split.

    Parameters
    ----------
    cfg : RecordsConfig
        ``path`` (a hub id, or a local directory of parquet, JSON or CSV files), ``subset``, the splits,
        ``columns.id`` and ``columns.label``.
    known : HubSet
        The family's own.
    inputs : tuple of str
        Names of the input columns.

    Returns
    -------
    Table, Table, tuple of str
        Training, test, and the names of the classes.

    Raises
    ------
    DataError
        The data set, a split or a column is missing; a label is absent or not a class.
    """
    path, label = cfg.path or known.path, cfg.columns.label or known.label
    splits = (cfg.train_split, cfg.test_split or known.test)
    if splits[0] == splits[1]:
        raise DataError(
            f"data.test_split: is {splits[1]!r}, the training split; accuracy needs other records"
        )
    written = (*inputs, *([cfg.columns.id] if cfg.columns.id else []))
    loaded = [load_split(path, cfg.subset or known.subset, split, as_text=written) for split in splits]
    for split, rows in zip(splits, loaded, strict=True):
        wanted = (*written, label)
        check_columns(
            rows.column_names, wanted, f"{path}, split {split!r}", "; name yours under data.columns"
        )
        if not len(rows):
            raise DataError(f"{path}, split {split!r}: holds no record")
    names = _class_names(loaded, label)
    tables = []
    for split, rows in zip(splits, loaded, strict=True):
        ids = _ids(rows, cfg, split, path, test=split == splits[1])
        labels = classes(rows, label, names, f"{path}, split {split!r}")
        tables.append(Table(ids, tuple(list(rows[column]) for column in inputs), labels))
    return tables[0], tables[1], names


def _class_names(splits: Sequence[Any], label: str) -> tuple[str, ...]:
    named = getattr(splits[0].features[label], "names", None)
    if named:
        return tuple(named)
    values = {value for rows in splits for value in rows[label]}
    values -= {None, "", -1}
    if all(isinstance(value, int) for value in values):
        return tuple(str(i) for i in range(max(values, default=0) + 1))
    return tuple(sorted(map(str, values)))


def classes(rows: Any, label: str, names: tuple[str, ...], where: str) -> NDArray[np.int64]:
    """Return each row's class: its number, or its name's place among the classes' names.

    Raises
    ------
    DataError
        A row's label is neither; names the row.
    """
    position = {name: i for i, name in enumerate(names)}
    numbers = []
    for i, value in enumerate(rows[label]):
        found = value if isinstance(value, int) else position.get(str(value), -1)
        if not 0 <= found < len(names):
            raise DataError(
                f"{where}, row {i}: its label is {value!r}; every record needs one of {', '.join(names[:12])}"
            )
        numbers.append(found)
    return np.asarray(numbers, dtype=np.int64)


def _ids(rows: Any, cfg: RecordsConfig, split: str, path: str, *, test: bool) -> tuple[str, ...]:
    prefix = f"{cfg.family}-test" if test else cfg.family
    if not cfg.columns.id:
        return tuple(f"{prefix}-{i:06d}" for i in range(len(rows)))
    ids = tuple(f"{prefix}-{value}" for value in rows[cfg.columns.id])
    if len(set(ids)) < len(ids):
        raise DataError(
            f"{path}, split {split!r}: column {cfg.columns.id!r} repeats a value; ids must be distinct"
        )
    return ids
