"""The whole model: backbone plus update, as a directory that transformers loads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedforget.errors import ExportError, nearest
from fedforget.expert import starting_model
from fedforget.exports.checkpoint import INDEX, ONE, Entry, entries, shards
from fedforget.exports.source import Source
from fedforget.exports.target import REPORT, ensure_room, new_directory
from fedforget.files import read_json, write_json
from fedforget.models import checkpoint
from fedforget.summaries import Delta
from fedforget.survival import Survival, apply_delta, overall
from fedforget.updates import write_update

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

# What goes along: configuration, tokenizer, chat template, licence.
_BESIDE = ("*.json", "*.model", "*.txt", "*.jinja", "LICENSE*", "NOTICE*")
_NOT_BESIDE = ("fingerprint-*.txt", "*.index.json")
_SHARD = 5 * 1000**3


def export_model(
    source: Source, target: Path, dtype: str | None = None, *, shard_bytes: int = _SHARD
) -> dict[str, Any]:
    """Write configuration, tokenizer and sharded weights, one tensor in memory at a time.

    Each sum of weight and update is formed in fp32 or better and rounded once. What rounding left
    of the update is in ``report.json``: a certificate of the merge is about the update, not about
    these weights.

    Parameters
    ----------
    source : Source
    target : Path
        The directory to make.
    dtype : str, optional
        ``fp32``, ``bf16`` or ``fp16`` for every floating weight; by default each keeps its own.
    shard_bytes : int
        Largest size of a file, but for a tensor that is larger alone.

    Returns
    -------
    dict
        The report: per tensor and overall ``relative_error`` and ``unchanged_share``, see
        :class:`fedforget.survival.Survival`.

    Raises
    ------
    ExportError
        The target is not empty, the disk is full, or the checkpoint does not hold the weights.
    ModelError
        The backbone is not there, or no longer the one of the run.
    """
    if dtype is not None and dtype not in DTYPES:
        raise ExportError(f"--dtype: {dtype!r} is not one of {', '.join(DTYPES)}{nearest(dtype, DTYPES)}")
    with new_directory(target) as folder:
        config = source.run.config
        where, fingerprint = checkpoint(starting_model(config), config.seeds.model)
        source.run.check_backbone(fingerprint)
        survivals = add_to_checkpoint(
            where, source.shapes, source.tensor, folder, dtype=dtype, shard_bytes=shard_bytes
        )
        report = _report(source, survivals)
        write_json(folder / REPORT, report)
    return report


def add_to_checkpoint(
    where: Path,
    shapes: Mapping[str, tuple[int, ...]],
    delta: Callable[[str], Delta],
    folder: Path,
    *,
    dtype: str | None = None,
    shard_bytes: int = _SHARD,
) -> dict[str, tuple[torch.dtype, Survival]]:
    """Write a checkpoint with updates added to some of its weights, one tensor in memory at a time.

    Parameters
    ----------
    where : Path
        A transformers directory.
    shapes : mapping of str to tuple of int
        Of the weights that are updated.
    delta : callable
        Gives the update of a weight by its name.
    folder : Path
        An empty directory, for the result.
    dtype, shard_bytes
        As for :func:`export_model`.

    Returns
    -------
    dict
        Per updated weight its dtype in the result, and what rounding left of the update.

    Raises
    ------
    ExportError
        The disk is full, or the checkpoint does not hold the weights.
    """
    wanted = DTYPES[dtype] if dtype else None
    found = entries(where)
    _check(shapes, found, where)
    kinds = {name: _kind(entry, wanted) for name, entry in found.items()}
    sizes = {name: entry.bytes(kinds[name]) for name, entry in found.items()}
    ensure_room(folder, sum(sizes.values()))
    survivals: dict[str, tuple[torch.dtype, Survival]] = {}

    def stream(names: list[str]) -> Iterator[tuple[str, Tensor]]:
        for name in names:
            weight = found[name].read(name)
            if name in shapes:
                weight, survival = apply_delta(weight, delta(name), kinds[name])
                survivals[name] = (kinds[name], survival)
            yield name, weight.to(kinds[name])

    parts = shards(sizes, shard_bytes)
    index: dict[str, str] = {}
    for number, names in enumerate(parts, 1):
        file = ONE if len(parts) == 1 else f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        write_update(folder / file, stream(names), {n: found[n].shape for n in names}, {"format": "pt"})
        index |= dict.fromkeys(names, file)
    if len(parts) > 1:
        write_json(folder / INDEX, {"metadata": {"total_size": sum(sizes.values())}, "weight_map": index})
    _copy_beside(where, folder, dtype)
    return survivals


def _check(shapes: Mapping[str, tuple[int, ...]], found: dict[str, Entry], where: Path) -> None:
    for name, shape in shapes.items():
        if name not in found:
            raise ExportError(
                f"{where}: the checkpoint stores no {name!r}{nearest(name, found)}; save the backbone once "
                "with transformers' save_pretrained, and run with that directory as model.path"
            )
        if found[name].shape != shape:
            raise ExportError(
                f"{where}: {name!r} has shape {found[name].shape} there, the update has {shape}"
            )


def _kind(entry: Entry, wanted: torch.dtype | None) -> torch.dtype:
    return wanted if wanted is not None and entry.dtype.is_floating_point else entry.dtype


def _copy_beside(where: Path, folder: Path, dtype: str | None) -> None:
    left_out = {path for pattern in _NOT_BESIDE for path in where.glob(pattern)}
    for pattern in _BESIDE:
        for path in sorted(set(where.glob(pattern)) - left_out):
            shutil.copyfile(path, folder / path.name)
    if dtype:
        config = read_json(folder / "config.json")
        config.pop("torch_dtype", None)  # the key's older name
        config["dtype"] = str(DTYPES[dtype]).removeprefix("torch.")
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _report(source: Source, survivals: dict[str, tuple[torch.dtype, Survival]]) -> dict[str, Any]:
    return {
        **source.facts("model"),
        "certificates": "are about the update as it was merged, not about the rounded weights here",
        "overall": overall(survivals[name][1] for name in source.shapes).as_dict(),
        "tensors": {
            name: {"dtype": str(survivals[name][0]).removeprefix("torch."), **survivals[name][1].as_dict()}
            for name in source.shapes
        },
    }
