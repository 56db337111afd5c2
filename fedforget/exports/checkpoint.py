"""A checkpoint of a transformers model on disk: which file holds which tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedforget.errors import ExportError
from fedforget.files import read_json
from fedforget.updates import DTYPE_CODES

ONE = "model.safetensors"
INDEX = "model.safetensors.index.json"

_DTYPES = {code: dtype for dtype, code in DTYPE_CODES.items()}


@dataclass(frozen=True)
class Entry:
    """One tensor of a checkpoint."""

    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]

    def bytes(self, dtype: torch.dtype | None = None) -> int:
        """Size in its own or another dtype."""
        return math.prod(self.shape) * (dtype or self.dtype).itemsize

    def read(self, name: str) -> Tensor:
        """Read the tensor."""
        with safe_open(self.file, framework="pt") as file:
            found: Tensor = file.get_tensor(name)
        return found


def entries(folder: Path) -> dict[str, Entry]:
    """List a checkpoint's tensors, without reading them, in the order of files and names.

    Raises
    ------
    ExportError
        The folder holds no safetensors checkpoint, or one with tensors that cannot be copied.
    """
    if (folder / INDEX).is_file():
        index = read_json(folder / INDEX)
        placed = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(placed, dict) or not all(isinstance(file, str) for file in placed.values()):
            raise ExportError(
                f"{folder / INDEX}: says of no tensor in which file it is; save the backbone again"
            )
        named = sorted(set(placed.values()))
    elif (folder / ONE).is_file():
        named = [ONE]
    else:
        raise ExportError(
            f"{folder}: holds no {ONE} and no {INDEX}; save the backbone once with transformers' "
            "save_pretrained, and run with that directory as model.path"
        )
    found: dict[str, Entry] = {}
    for path in (folder / name for name in named):
        try:
            with safe_open(path, framework="pt") as file:
                for name in sorted(file.keys()):
                    part = file.get_slice(name)
                    found[name] = Entry(path, _dtype(path, name, part.get_dtype()), tuple(part.get_shape()))
        except (OSError, SafetensorError) as error:
            raise ExportError(f"{path}: cannot be read as safetensors ({error})") from error
    return found


def _dtype(path: Path, name: str, code: str) -> torch.dtype:
    if code not in _DTYPES:
        raise ExportError(
            f"{path}: tensor {name!r} has dtype {code}, which cannot be exported; dequantise it"
        )
    return _DTYPES[code]


def shards(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
    """Split tensors, in their order, into runs of at most ``limit`` bytes; a larger one stands alone."""
    found: list[list[str]] = []
    room = 0
    for name, size in sizes.items():
        if not found or size > room:
            found.append([])
            room = limit
        found[-1].append(name)
        room -= size
    return found
