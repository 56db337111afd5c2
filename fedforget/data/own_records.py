"""Records that a deployed client has in files of its own, in place of its part of the configured data set.

The files hold rows with an id, a label, and a text or an image, under the names of ``data.columns``. A
record's slice is drawn from the run's data seed, the client and the record's id, and from nothing else:
removing a row from the files moves no other record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedforget.data.corpora import load_corpus
from fedforget.data.holdings import ClientRecords, Deleted, remaining
from fedforget.data.hub_sets import Table, classes
from fedforget.data.image_records import IMAGE_SETS, images
from fedforget.data.records import Records
from fedforget.data.split_files import READERS
from fedforget.data.tables import check_columns, first_line, no_rows, read_files
from fedforget.data.text_records import TEXT_SETS, texts
from fedforget.errors import DataError
from fedforget.seeds import derive_seed
from fedforget.sequential.config import RecordsConfig, SequentialRunConfig


def own_client(
    config: SequentialRunConfig,
    client_id: str,
    path: str | Path,
    *,
    slices: Collection[int] | None = None,
    without: Deleted | None = None,
) -> ClientRecords:
    """Build what a client with data of its own holds; as :func:`fedforget.data.holdings.client_records`.

    Parameters
    ----------
    config : SequentialRunConfig
        ``data.columns`` names the columns, ``data.slices`` is S, and the configured data set gives the
        classes.
    client_id : str
    path : str or Path
        A JSON Lines, CSV or parquet file, or a folder of files of one of these kinds.
    slices : collection of int, optional
        Keep these alone; all by default.
    without : mapping, optional
        Records to leave out, by slice. Those that are no longer in the files are left out already.

    Raises
    ------
    DataError
        The files cannot be read, or a row is not a record of the run's data set; names the client.
    """
    try:
        records = own_records(config, path)
    except DataError as error:
        raise DataError(f"client {client_id!r}: {error}") from error
    held = own_slices(config, client_id, records.ids)
    kept = remaining(held, slices, without or {}, client_id)
    return ClientRecords(client_id, {i: records.subset(ids) for i, ids in kept.items()})


def own_slices(config: SequentialRunConfig, client_id: str, ids: Iterable[str]) -> dict[int, tuple[str, ...]]:
    """Return which of a client's records are in which slice; some slice can be empty.

    Parameters
    ----------
    config : SequentialRunConfig
        ``data.slices`` and ``seeds.data``.
    client_id : str
    ids : iterable of str
    """
    found: dict[int, list[str]] = {i: [] for i in range(config.data.slices)}
    for name in sorted(ids):
        drawn = derive_seed(config.seeds.data, "records", "own slice", client_id, name)
        found[drawn % config.data.slices].append(name)
    return {i: tuple(names) for i, names in found.items()}


def own_records(config: SequentialRunConfig, path: str | Path) -> Records:
    """Read a client's files.

    Raises
    ------
    DataError
        No file, files of several kinds, a missing column, an id that is empty or comes twice, or a row
        whose label, text or image is unusable.
    """
    data = config.data
    corpus = load_corpus(data, config.seeds.data)
    inputs = _inputs(data, corpus.task)
    label, name = data.columns.label or "label", data.columns.id or "id"
    rows = _read(Path(path).expanduser(), (name, *inputs))
    check_columns(rows.column_names, (name, label, *inputs), str(path), "; name yours under data.columns")
    ids = tuple(str(value if value is not None else "") for value in rows[name])
    if "" in ids:
        raise DataError(f"{path}, row {ids.index('')}: its {name!r} is empty; every record needs an id")
    labels = classes(rows, label, corpus.labels, str(path))
    table = Table(ids, tuple(list(rows[column]) for column in inputs), labels)
    values: Any
    if corpus.task == "text":
        values = texts(table)
    elif data.family == "digits":
        values = _digits(table.columns[0], str(path))
    else:
        folder = Path(path).expanduser()
        values = images(table, folder if folder.is_dir() else folder.parent)
    try:
        return Records.of(ids, values, labels.tolist())
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _read(path: Path, as_text: tuple[str, ...]) -> Any:
    files = [path] if path.is_file() else sorted(f for f in path.rglob("*") if f.suffix in READERS)
    if not files:
        what = "holds no .jsonl, .json, .csv or .parquet" if path.is_dir() else "is not there"
        raise DataError(f"data of its own: {path} {what}; give a file or a folder in the node's data")
    kinds = {READERS.get(file.suffix, file.suffix) for file in files}
    if len(kinds) > 1 or not kinds <= set(READERS.values()):
        raise DataError(f"{path}: holds {' and '.join(sorted(kinds))}; keep one of json, csv and parquet")
    try:
        return read_files(files, as_text=as_text)
    except Exception as error:  # datasets raises many kinds
        if no_rows(files):
            raise DataError(f"{path}: holds no rows; give the client records, or leave it out") from error
        raise DataError(f"{path}: cannot be read as records ({first_line(error)})") from error


def _inputs(data: RecordsConfig, task: str) -> tuple[str, ...]:
    columns = data.columns
    if task == "image":
        known = IMAGE_SETS[data.family].inputs if data.family in IMAGE_SETS else ("image",)
        return (columns.image or known[0],)
    known = TEXT_SETS[data.family].inputs if data.family in TEXT_SETS else ("text",)
    second = columns.text_pair or (known[1] if len(known) > 1 else "")
    first = columns.text or known[0]
    return (first, second) if second else (first,)


def _digits(values: Sequence[Any], where: str) -> Any:
    try:
        found = np.asarray(values, dtype=np.float32) / 16.0  # as fedforget.data.digits scales them
    except (TypeError, ValueError):
        found = np.zeros(0)
    # The comparison refuses NaN as well.
    if found.shape[1:] != (8, 8) or not bool(((found >= 0) & (found <= 1)).all()):
        raise DataError(
            f"{where}: the images of digits are 8 lists of 8 numbers from 0 to 16 each; some are not"
        )
    return found
