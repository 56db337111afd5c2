"""Where things are kept, and writes that are whole or not there at all."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedforget.errors import RunError


def home() -> Path:
    """Return fedforget's own folder: ``$FEDFORGET_HOME``, else ``~/.fedforget``.

    Converted backbones are cached in ``cache/`` below it, and runs that name no directory
    are written to ``runs/`` below it.
    """
    return Path(os.environ.get("FEDFORGET_HOME") or Path.home() / ".fedforget").expanduser().resolve()


@contextlib.contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """Yield a temporary sibling of ``target`` that takes its place when the block succeeds.

    The sibling may be written as a file or made a directory. A directory never replaces an
    existing one: that would lose data. On an exception the sibling is removed.
    """
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f".{target.name}.{secrets.token_hex(4)}.tmp"
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        elif temporary.exists():  # a file system that is read-only refuses to remove even what is not there
            temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON, atomically; NaN and infinities are written as strings."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(plain(value), indent=2, allow_nan=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read a JSON file that :func:`write_json` wrote.

    Raises
    ------
    RunError
        The file cannot be read or is not JSON; names it.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read as JSON ({error})") from error


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it: string keys, lists, and strings for NaN and infinities."""
    if isinstance(value, float) and not (abs(value) < float("inf")):
        return repr(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def is_path(text: str) -> bool:
    """Tell whether a text can be a path alone: hub ids are ``name`` or ``owner/name``."""
    return not text or text.startswith((".", "/", "~")) or text.count("/") > 1
