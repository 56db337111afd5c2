"""The bring-your-own family for tables: parquet, CSV, JSON, data sets saved to disk, or a hub id.

Rows are those of :mod:`fedforget.data.own_rows`, columns named under ``data.fields``.
"""

from __future__ import annotations

from pathlib import Path

from fedforget.data.examples import Data
from fedforget.data.jsonl import JsonlData
from fedforget.data.own_rows import OwnRows, RowReader
from fedforget.data.rows import as_list
from fedforget.data.split_files import READERS
from fedforget.data.tables import load_split
from fedforget.data_config import DataConfig, FieldsConfig


class TableData(JsonlData):
    """One table, or a directory of ``<domain>.parquet`` (or .csv, .json, .jsonl), as a source of data.

    Parameters
    ----------
    path : str
        A file, a directory of files, a data set saved to disk, or a hub id.
    fields : FieldsConfig
        Column names. Lists of choices in a CSV are written as JSON.
    seed : int
        Of the splits and orders.
    domain : str, optional
        Domain of rows that name none; by default the name of the file or of the data set.
    subset, split : str
        For a hub id or a saved data set.

    Raises
    ------
    DataError
        Names the file or hub id, and the row where one is malformed.
    """

    def __init__(
        self,
        path: str,
        fields: FieldsConfig,
        seed: int,
        domain: str = "",
        *,
        subset: str = "",
        split: str = "train",
    ) -> None:
        self._where = (path, subset, split)
        super().__init__(path, fields, seed, domain)

    def _read(self, fields: FieldsConfig, domain: str, rows: OwnRows) -> None:
        path, subset, split = self._where
        files = [] if subset else _files(self._path)
        for file in files:
            self._table(
                str(file), "", split, fields, domain if len(files) == 1 and domain else file.stem, rows
            )
        if not files:
            named = self._path.stem if self._path.is_file() else Path(path).name
            self._table(path, subset, split, fields, domain or subset or named, rows)

    @staticmethod
    def _table(path: str, subset: str, split: str, fields: FieldsConfig, domain: str, rows: OwnRows) -> None:
        reader = RowReader(Path(path), fields, domain, rows, unit="row")
        table = load_split(path, subset, split, as_text=tuple(vars(fields).values()))
        for number, row in enumerate(table.to_list()):
            if fields.choices in row:
                row[fields.choices] = as_list(row[fields.choices])
            label = row.get(fields.label)
            # In a CSV everything is text; a table may hold whole numbers as floats where some are missing.
            if (isinstance(label, float) and label.is_integer()) or str(label).isdecimal():
                row[fields.label] = int(label)
            reader.take(number, row)


def _files(path: Path) -> list[Path]:
    """Return the files of a directory of tables by domain; none where it is something else."""
    if not path.is_dir() or (path / "dataset_info.json").is_file() or (path / "dataset_dict.json").is_file():
        return []
    return sorted(file for file in path.iterdir() if file.suffix in READERS)


def own_file(path: str, cfg: DataConfig, seed: int, domain: str) -> Data:
    """Open a client's own file: JSON Lines, read line by line, or another table."""
    if Path(path).suffix in READERS and Path(path).suffix != ".jsonl":
        return TableData(path, cfg.fields, seed, domain)
    return JsonlData(path, cfg.fields, seed, domain)
