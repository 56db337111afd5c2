"""Where an export goes: a directory of its own, written whole or not at all."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from fedforget.errors import ExportError
from fedforget.files import atomic_path

REPORT = "report.json"

# Reports, configuration and tokenizer beside the tensors.
_BESIDE = 4 * 1024**2


@contextlib.contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """Yield an empty directory that becomes ``target`` when the block succeeds.

    Raises
    ------
    ExportError
        ``target`` is a file, or a directory that is not empty.
    """
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise ExportError(
            f"{target}: exists already and is not empty; choose another --out, or remove it first"
        )
    try:
        with atomic_path(target) as temporary:
            temporary.mkdir()
            yield temporary
    except OSError as error:
        raise ExportError(f"{target}: cannot be written ({error})") from error


def ensure_room(folder: Path, size: int) -> None:
    """Check that so many bytes fit on the disk of an existing folder.

    Raises
    ------
    ExportError
        They do not.
    """
    free = shutil.disk_usage(folder).free
    if size + _BESIDE > free:
        raise ExportError(
            f"{folder.parent}: the export takes {_shown(size)} and {_shown(free)} are free; "
            "make room, or give --out on another disk"
        )


def _shown(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
