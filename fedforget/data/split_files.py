"""Which local files hold a split: by their exact names, so that a leftover beside them is never read."""

from __future__ import annotations

import re
from pathlib import Path

from fedforget.errors import DataError, nearest

READERS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv"}
_ENDINGS = ".parquet, .json, .jsonl or .csv"
# As the hub names the parts of a split: train-00000-of-00002, in older data sets with a hash behind.
_SHARD = re.compile(r"(?P<split>.+)-(?P<number>\d+)-of-(?P<count>\d+)(-[0-9a-f]+)?")


def saved_folder(folder: Path, subset: str, own: bool) -> Path | None:
    """Return the folder of a data set saved to disk, if that is what is there."""
    candidates: list[Path] = [folder / subset] if subset else []
    if not (own and subset):
        candidates.append(folder)
    for candidate in candidates:
        if (candidate / "dataset_dict.json").is_file() or (candidate / "dataset_info.json").is_file():
            return candidate
    return None


def split_files(folder: Path, subset: str, split: str, own: bool) -> list[Path]:
    """Return the files of one split, in order.

    Parameters
    ----------
    folder : Path
        A file, which is taken whatever its name; or a directory. In it, or in its folder named after the
        configuration, or in ``data/`` below, a split is ``<split>.parquet`` (or .json, .jsonl, .csv) or all
        of ``<split>-00000-of-00002.parquet`` and so on. Or the configuration is one file,
        ``<configuration>.json`` for instance.
    subset : str
        Configuration name; empty for none, and then the split may be in the one folder that has it.
    split : str
    own : bool
        Take files of the named configuration alone, never those beside it.

    Raises
    ------
    DataError
        There is no such file or folder, a part is missing, or the split is there more than once.
    """
    if folder.is_file():
        if own and subset and folder.stem != subset:
            raise DataError(
                f"data.path: {folder} is one file, and the data set has several configurations; give the "
                f"directory that holds {subset}/ or {subset}{folder.suffix}"
            )
        if folder.suffix not in READERS:
            raise DataError(f"data.path: {folder} does not end in {_ENDINGS}")
        return [folder]
    if subset and (folder / subset).is_dir():
        folder = folder / subset
    elif subset:
        named = [file for file in _tables(folder) if file.stem == subset]
        if named:
            return _once(named, subset)
        if own:
            there = sorted({one.name if one.is_dir() else one.stem for one in folder.iterdir()})
            raise DataError(
                f"data.path: {folder} holds no folder {subset!r} and no file {subset}.parquet (or .json, "
                f".jsonl, .csv){nearest(subset, there)}"
            )
    for place in (folder, folder / "data"):
        if found := _of_split(place, split):
            return found
    if not subset and (held := _by_folder(folder, split)):
        if len(held) > 1:
            names = " and ".join(place.name for place in held)
            raise DataError(f"data.path: {folder} holds {split!r} in {names}; give one of them")
        return next(iter(held.values()))
    raise DataError(
        f"data.path: {folder} holds no {split}.parquet, .json, .jsonl or .csv, and no "
        f"{split}-00000-of-00001 with such an ending"
    )


def _by_folder(folder: Path, split: str) -> dict[Path, list[Path]]:
    """Return the files by folder: a data set with one configuration has a folder for it too."""
    places = sorted(one for one in folder.iterdir() if one.is_dir())
    return {place: found for place in places if (found := _of_split(place, split))}


def _of_split(folder: Path, split: str) -> list[Path]:
    files = _tables(folder)
    whole = [file for file in files if file.stem == split]
    numbered = [(file, shard) for file in files if (shard := _SHARD.fullmatch(file.stem))]
    parts = {file: shard for file, shard in numbered if shard["split"] == split}
    found = _once([*whole, *parts], split, at_most=max(1, len(parts)))
    numbers = sorted(int(shard["number"]) for shard in parts.values())
    counts = {int(shard["count"]) for shard in parts.values()}
    if parts and (numbers != list(range(len(parts))) or counts != {len(parts)}):
        raise DataError(
            f"data.path: {folder} does not hold all parts of split {split!r}, each once, but "
            f"{', '.join(file.name for file in parts)}"
        )
    return found


def _tables(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*") if file.suffix in READERS and file.is_file())


def _once(files: list[Path], name: str, at_most: int = 1) -> list[Path]:
    if len(files) > at_most or len({file.suffix for file in files}) > 1:
        names = " and ".join(file.name for file in files)
        raise DataError(f"data.path: {files[0].parent} holds {name!r} more than once, as {names}; keep one")
    return files
