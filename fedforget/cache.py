"""Things that are made once and then read: converted and trained backbones, fingerprints."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

from fedforget.files import atomic_path, home


def cache_directory() -> Path:
    """Return ``cache/`` below :func:`fedforget.files.home`."""
    return home() / "cache"


def key(*parts: Any) -> str:
    """Return 16 hexadecimal digits that identify plain values (anything JSON can write)."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def file_state(path: Path) -> list[Any]:
    """Return a file's name, size and modification time: enough to notice that it was replaced."""
    stat = path.stat()
    return [path.name, stat.st_size, stat.st_mtime_ns]


def build_once(target: Path, build: Callable[[Path], None]) -> Path:
    """Return the directory ``target``, built by ``build(empty directory)`` if it is not there.

    Processes that ask at the same time wait for the one that builds. A build that fails leaves
    nothing behind.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.parent / f".{target.name}.lock"):
        if not target.is_dir():
            with atomic_path(target) as temporary:
                temporary.mkdir()
                build(temporary)
    return target
