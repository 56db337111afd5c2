"""What a folder held when it was received: one SHA-256 over its files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fedforget.errors import SummaryError

_State = tuple[str, int, int, int]

# Digests of this process, by the state of the files: a sweep and its checks read each file once.
_known: dict[tuple[_State, ...], str] = {}


def folder_digest(folder: Path) -> str:
    """Return the SHA-256 of a folder's files: their names, sizes and bytes, in the order of the names.

    The bytes are read once, in pieces.

    Parameters
    ----------
    folder : Path

    Returns
    -------
    str
        64 hexadecimal digits.

    Raises
    ------
    SummaryError
        A file cannot be read.
    """
    try:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        state = tuple(_state(file) for file in files)
        if state not in _known:
            digest = hashlib.sha256()
            for file in files:
                name = file.relative_to(folder).as_posix()
                digest.update(f"{name}\0{file.stat().st_size}\0".encode())
                with open(file, "rb") as stream:
                    digest.update(hashlib.file_digest(stream, "sha256").digest())
            _known[state] = digest.hexdigest()
        return _known[state]
    except OSError as error:
        raise SummaryError(f"{folder}: cannot be read ({error})") from error


def _state(file: Path) -> _State:
    stat = file.stat()
    return str(file), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
