"""The rows of one split of a benchmark, with their columns and values checked."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from typing import Any

from fedforget.data.items import LETTERS
from fedforget.data.tables import check_columns, load_split
from fedforget.errors import DataError


@dataclass(frozen=True)
class TableSchema:
    """One configuration of a data set.

    Attributes
    ----------
    subset : str
        Configuration name; on disk, a folder or a file of that name. Empty: there is only one.
    splits : tuple of str
        The splits that are read.
    columns, optional : tuple of str
        Columns that must, and that may, be there.
    """

    subset: str
    splits: tuple[str, ...]
    columns: tuple[str, ...]
    optional: tuple[str, ...] = ()


class Rows:
    """The rows of one split, with their columns checked.

    Parameters
    ----------
    path : str
        Hub id, or a local file or directory.
    schema : TableSchema
    split : str
        One of the schema's, or another that the configuration names.
    own : bool
        Whether the data set has several configurations, so that files outside the one that is
        asked for must not be taken for it.

    Raises
    ------
    DataError
        Names the file or hub id, the configuration and the split; a missing column with what is
        there.
    """

    def __init__(self, path: str, schema: TableSchema, split: str, *, own: bool = True) -> None:
        self.where = f"{path}, {f'configuration {schema.subset!r}, ' if schema.subset else ''}split {split!r}"
        as_text = (*schema.columns, *schema.optional)
        table = load_split(path, schema.subset, split, own=own, as_text=as_text)
        check_columns(table.column_names, schema.columns, self.where)
        kept = [name for name in (*schema.columns, *schema.optional) if name in table.column_names]
        self._rows: list[dict[str, Any]] = table.select_columns(kept).to_list()
        if not self._rows:
            raise DataError(f"{self.where}: holds no row")

    def __len__(self) -> int:
        return len(self._rows)

    def text(self, row: int, column: str) -> str:
        """Return a text, which must not be empty."""
        value = self._rows[row].get(column)
        if not isinstance(value, str) or not value.strip():
            raise self._error(row, column, value, "a text")
        return value

    def optional_text(self, row: int, column: str) -> str:
        """Return a text, empty where the column or the value is missing."""
        # MMLU's auxiliary_train has a subject that is empty everywhere.
        return "" if self._rows[row].get(column) in (None, "") else self.text(row, column)

    def choice(self, row: int) -> tuple[tuple[str, ...], int]:
        """Return the columns ``choices``, one letter each, and ``answer``, the index of the right one."""
        choices = self.texts(row, "choices", at_least=2)
        if len(choices) > len(LETTERS):
            raise self._error(row, "choices", choices, f"a list of at most {len(LETTERS)} texts")
        return choices, self.label(row, "answer", len(choices))

    def texts(self, row: int, column: str, at_least: int = 1) -> tuple[str, ...]:
        """Return a list of texts; in a CSV it may be written as JSON or as a Python list."""
        value = as_list(self._rows[row].get(column))
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self._error(row, column, value, "a list of texts")
        if len(value) < at_least:
            raise self._error(row, column, value, f"a list of at least {at_least} texts")
        return tuple(value)

    def label(self, row: int, column: str, count: int) -> int:
        """Return the index of a choice, given as a number from 0 or as a letter from A."""
        value = self._rows[row].get(column)
        found = value
        if isinstance(value, str):
            letter = value.strip()
            found = int(letter) if letter.isdecimal() else ord(letter) - ord("A") if len(letter) == 1 else -1
        if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < count:
            last = f"0 to {count - 1} or A to {chr(ord('A') + count - 1)}"
            raise self._error(row, column, value, f"the index of one of its {count} choices, {last}")
        return found

    def _error(self, row: int, column: str, value: Any, wanted: str) -> DataError:
        shown = json.dumps(value, default=str, ensure_ascii=False)
        shown = shown if len(shown) <= 60 else f"{shown[:60]}..."
        return DataError(f"{self.where}, row {row}: column {column!r} must be {wanted}, not {shown}")


def as_list(value: Any) -> Any:
    """Return the list that a text spells, as JSON or as Python; anything else as it is."""
    if not isinstance(value, str):
        return value
    for read in (json.loads, ast.literal_eval):
        try:
            found = read(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        return found if isinstance(found, list) else value
    return value
