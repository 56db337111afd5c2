"""The update as a LoRA adapter that PEFT loads: an approximation, and it says how good a one."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedforget.certificates import KEY
from fedforget.errors import ExportError
from fedforget.exports.lowrank import LowRank, of_error, of_rank
from fedforget.exports.source import Source
from fedforget.exports.target import REPORT, ensure_room, new_directory
from fedforget.files import write_json
from fedforget.seeds import derive_seed
from fedforget.updates import write_update

WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."


def lora_name(rank: int | None, error: float | None) -> str:
    """Return the name of such an export: ``lora-approximate-r64`` or ``lora-approximate-error0.05``."""
    if (rank is None) == (error is None):
        raise ExportError("give either --rank or --error for a LoRA export")
    return f"lora-approximate-r{rank}" if error is None else f"lora-approximate-error{error:g}"


def export_lora(
    source: Source, target: Path, rank: int | None = None, error: float | None = None
) -> dict[str, Any]:
    """Write ``adapter_config.json``, ``adapter_model.safetensors`` and ``report.json``.

    Parameters
    ----------
    source : Source
    target : Path
        The directory to make; see :func:`lora_name` for its name.
    rank : int, optional
        At most this rank for every tensor.
    error : float, optional
        Instead: for every tensor the lowest rank whose relative error is at most this.

    Returns
    -------
    dict
        The report: per tensor and overall ``relative_error`` in the Frobenius norm, measured on the
        factors that were written.

    Raises
    ------
    ExportError
        Neither or both of rank and error, a tensor that is no matrix, the target is not empty, or
        the disk is full.
    """
    lora_name(rank, error)
    for name, shape in source.shapes.items():
        if len(shape) != 2 or not name.endswith(".weight"):
            raise ExportError(
                f"{source.file}: {name!r} of shape {shape} is no linear map, so no LoRA fits it"
            )
    with new_directory(target) as folder:
        found = {name: _approximate(name, tensor, rank, error) for name, tensor in source.tensors()}
        tensors: dict[str, Tensor] = {}
        for name, one in found.items():
            module = name.removesuffix(".weight")
            tensors[f"{_PREFIX}{module}.lora_A.weight"] = one.A
            tensors[f"{_PREFIX}{module}.lora_B.weight"] = one.B
        ensure_room(folder, sum(tensor.nbytes for tensor in tensors.values()))
        report = _report(source, found, rank, error)
        about = source.about()
        for key in ("certificates", KEY):  # they do not hold for an approximation
            about.pop(key, None)
        about |= {"approximate": "true", "relative_error": repr(report["overall"]["relative_error"])}
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        write_update(folder / WEIGHTS, sorted(tensors.items()), shapes, about)
        _write_config(folder, source, {name: one.rank for name, one in found.items()})
        write_json(folder / REPORT, report)
    return report


def _approximate(name: str, tensor: Tensor, rank: int | None, error: float | None) -> LowRank:
    seed = derive_seed(0, "export", name)
    return of_error(tensor, error, seed) if error is not None else of_rank(tensor, rank or 0, seed)


def _write_config(folder: Path, source: Source, ranks: Mapping[str, int]) -> None:
    from peft import LoraConfig, TaskType

    modules = {name.removesuffix(".weight"): rank for name, rank in ranks.items()}
    most = max(modules.values())
    fewer = {module: rank for module, rank in modules.items() if rank != most}
    path = source.run.config.model.path
    # Scale alpha / r is 1 everywhere: the factors multiply to the update itself.
    config = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=most,
        lora_alpha=most,
        rank_pattern=fewer,
        alpha_pattern=fewer,
        target_modules=list(modules),
        inference_mode=True,
        base_model_name_or_path=path if path != "tiny" and not path.startswith("package:") else None,
    )
    config.save_pretrained(str(folder))
    # PEFT keeps the modules as a set, whose order changes from process to process.
    file = folder / "adapter_config.json"
    written = json.loads(file.read_text(encoding="utf-8"))
    written["target_modules"] = sorted(written["target_modules"])
    file.write_text(json.dumps(written, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _report(
    source: Source, found: Mapping[str, LowRank], rank: int | None, error: float | None
) -> dict[str, Any]:
    lost = math.fsum(one.squared_error for one in found.values())
    norm = math.fsum(one.squared_norm for one in found.values())
    return {
        **source.facts("lora"),
        "approximate": True,
        "asked": {"rank": rank} if error is None else {"relative_error": error},
        "certificates": "are about the update as it was merged, not about this approximation",
        "overall": {"relative_error": math.sqrt(lost / norm) if norm > 0.0 else 0.0},
        "tensors": {
            name: {"rank": one.rank, "relative_error": one.relative_error} for name, one in found.items()
        },
    }
