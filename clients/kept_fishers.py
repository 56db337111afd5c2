"""A client's own Fisher on its own disk, between the two phases of exact pooling.

A deployed client runs each message in a new process. The file is in ``$FEDFORGET_HOME/fishers``,
named by its content, and is removed once the second phase has read it; if it is gone by then, the
Fisher is computed again and its digest compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedforget.codecs.planes import as_bytes
from fedforget.files import atomic_path, home


def digest(fisher: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of names, dtypes, shapes and bytes."""
    found = hashlib.sha256()
    for name, tensor in sorted(fisher.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(as_bytes(tensor).data)
    return found.hexdigest()


def keep(fisher: Mapping[str, Tensor]) -> str:
    """Write a Fisher, and return its digest."""
    name = digest(fisher)
    with atomic_path(_path(name)) as temporary:
        save_file({key: one.detach().cpu().contiguous().clone() for key, one in fisher.items()}, temporary)
    return name


def find(name: str) -> dict[str, Tensor] | None:
    """Return the Fisher with this digest, or None where it is not there or is damaged."""
    try:
        found: dict[str, Tensor] = load_file(_path(name))
    except (OSError, SafetensorError):
        return None
    return found if digest(found) == name else None


def drop(name: str) -> None:
    """Remove the Fisher with this digest."""
    _path(name).unlink(missing_ok=True)


def _path(name: str) -> Path:
    # What comes in a message is no path: anything but a digest names a file that is not there.
    safe = name if len(name) == 64 and set(name) <= set("0123456789abcdef") else "none"
    return home() / "fishers" / f"{safe}.safetensors"
