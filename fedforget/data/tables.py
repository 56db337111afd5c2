"""Tables through ``datasets``: a split of a hub data set, or local files of the same schema."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedforget.data.split_files import READERS, saved_folder, split_files
from fedforget.errors import DataError, nearest
from fedforget.files import is_path
from fedforget.progress import quieted


def check_columns(names: Iterable[str], wanted: Iterable[str], where: str, mend: str = "") -> None:
    """Raise a :class:`DataError` that names the first missing column, the nearest one, and what is there."""
    known = list(names)
    for column in wanted:
        if column not in known:
            raise DataError(
                f"{where}: there is no column {column!r}{nearest(column, known)}; it has "
                f"{', '.join(known)}{mend}"
            )


def load_split(
    path: str, subset: str, split: str, *, own: bool = False, as_text: Collection[str] = ()
) -> Any:
    """Load one split as a ``datasets.Dataset``.

    Parameters
    ----------
    path : str
        A hub id; or a local file or directory, see :func:`fedforget.data.split_files.split_files`; or
        what ``Dataset.save_to_disk`` wrote, in it or in a folder named after the configuration.
    subset : str
        Configuration name; empty for none.
    split : str
    own : bool
        Take local files of the named configuration alone, never those beside it.
    as_text : collection of str
        Columns of a CSV file that are taken as they are written; see :func:`read_files`.

    Raises
    ------
    DataError
        There is no such directory, split or file; or ``datasets`` cannot read it.
    """
    local = Path(path).expanduser()
    if not local.exists() and is_path(path):
        raise DataError(f"data.path: there is no directory {path!r}; give a local directory or a hub id")
    if local.exists():
        saved = saved_folder(local, subset, own)
        if saved is not None:
            return _read_saved(saved, split)
        files = split_files(local, subset, split, own)
        return _load(path, "", split, files, as_text)
    return _load(path, subset, split, [], ())


def read_files(files: list[Path], split: str = "train", as_text: Collection[str] = ()) -> Any:
    """Read files of one kind into memory, as one ``datasets.Dataset``; no copy is left behind.

    The columns ``as_text`` of a CSV file are what is written there, and nothing where nothing is:
    otherwise ``007`` is the number 7, and the text ``NA`` is nothing. Raises whatever ``datasets``
    raises, a ValueError where a text is not UTF-8; the cause says what is wrong with a file.
    """
    from datasets import Dataset
    from pyarrow import ArrowInvalid

    # Not load_dataset: even for local files it calls the hub, to count. And a cache of its own that
    # goes at once: a copy elsewhere would outlive the deletion of a row.
    kind = READERS[files[0].suffix]
    how: dict[str, Any] = {}
    if kind == "csv" and as_text:
        how = {"converters": dict.fromkeys(as_text, _cell), "na_filter": False}
    read = getattr(Dataset, f"from_{kind}")
    with _quiet(), tempfile.TemporaryDirectory() as cache:
        found = read([str(file) for file in files], split=split, cache_dir=cache, keep_in_memory=True, **how)
    # Arrow's reader of JSON takes any bytes for a text.
    try:
        found.data.validate(full=True)
    except ArrowInvalid as error:
        raise ValueError(f"{str(error).rstrip('.')}; save the file as UTF-8") from None
    return found


def no_rows(files: Sequence[Path]) -> bool:
    """Tell whether the files are empty, or CSV files of a header each: datasets has no good words for it."""
    least = {".csv": 1}
    return all(
        file.suffix != ".parquet"
        and len([line for line in file.read_bytes().splitlines() if line.strip()])
        <= least.get(file.suffix, 0)
        for file in files
    )


def _cell(text: str) -> str | None:
    return text or None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    from datasets.utils.logging import disable_progress_bar, enable_progress_bar

    disable_progress_bar()
    try:
        # What it logs of a file that it cannot read is in its error too.
        with quieted("datasets", logging.CRITICAL):
            yield
    finally:
        enable_progress_bar()


def first_line(error: Exception) -> str:
    """Return what went wrong in one line: datasets wraps the error that says it."""
    cause = error.__cause__ or error
    return (str(cause).strip() or type(cause).__name__).splitlines()[0]


def _load(path: str, subset: str, split: str, files: list[Path], as_text: Collection[str]) -> Any:
    from datasets import load_dataset

    try:
        if files:
            return read_files(files, split, as_text)
        with _quiet():
            return load_dataset(path, name=subset or None, split=split)
    except Exception as error:  # datasets raises many kinds; none of them says what to do
        where = f"{path}, {f'configuration {subset!r}, ' if subset else ''}split {split!r}"
        if files and no_rows(files):
            raise DataError(f"{where}: holds no row") from error
        mend = (
            "check the file"
            if files
            else "check the name and the network, or give data.path=<a local directory that holds the data "
            "set's files>"
        )
        raise DataError(f"{where}: cannot be loaded ({first_line(error)}); {mend}") from error


def _read_saved(folder: Path, split: str) -> Any:
    from datasets import DatasetDict, load_from_disk

    try:
        loaded = load_from_disk(str(folder))
    except Exception as error:  # as above
        raise DataError(f"{folder}: cannot be loaded as a saved data set ({first_line(error)})") from error
    if not isinstance(loaded, DatasetDict):
        return loaded
    if split not in loaded:
        raise DataError(
            f"{folder}: there is no split {split!r}{nearest(split, loaded)}; it has {', '.join(loaded)}"
        )
    return loaded[split]
