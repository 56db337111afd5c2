"""The merged update of a run: its parameters, and its file, written one tensor at a time."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedforget.certificates import Certifier
from fedforget.config import MergeConfig
from fedforget.defence_config import RobustConfig
from fedforget.errors import ModelError
from fedforget.files import atomic_path, write_json
from fedforget.merging import calibrate_epsilon, merge_tensors, methods
from fedforget.merging.registry import find
from fedforget.robust.hardening import OFF, Hardening
from fedforget.summaries import ClientSummary

UPDATE = "update.safetensors"
REPORT = "merge.json"

DTYPE_CODES = {
    torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float64: "F64",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_COMMON = ("gamma", "alpha", "epsilon", "solver", "eps0")


def merge_parameters(merge: MergeConfig, summaries: Sequence[ClientSummary]) -> dict[str, Any]:
    """Return the parameters that a configuration gives its method.

    Of the keys that MergeConfig names itself, a method receives those it knows; what stands in
    ``merge.parameters`` it must know. A relative budget (``epsilon_fraction``) becomes an absolute
    one here, from the damage that the update would do without projection.

    Raises
    ------
    ConfigError
        There is no such method.
    """
    known = {parameter.name for parameter in find(merge.method).parameters}
    found = {name: getattr(merge, name) for name in _COMMON if name in known}
    if "epsilon" in known and merge.epsilon_fraction > 0:
        found["epsilon"] = calibrate_epsilon(
            summaries, merge.epsilon_fraction, merge.epsilon_gamma, alpha=merge.alpha, eps0=merge.eps0
        )
    return found | merge.parameters


def needs_fisher(method: str) -> bool:
    """Tell whether every client must send its Fisher diagonal; raises ConfigError for an unknown method."""
    find(method)
    return methods()[method].needs_fisher


def merge_to(
    directory: Path,
    merge: MergeConfig,
    summaries: Sequence[ClientSummary],
    merge_tensors: Callable[..., Iterable[tuple[str, Tensor, dict[str, Any]]]] = merge_tensors,
    robust: RobustConfig = OFF,
) -> dict[str, Any]:
    """Merge summaries tensor by tensor and write ``update.safetensors`` and ``merge.json``.

    Parameters
    ----------
    directory : Path
    merge : MergeConfig
    summaries : sequence of ClientSummary
        Tensors may still be on disk; one name at a time is in memory.
    merge_tensors : callable
        In this process by default, or another that does the same elsewhere.
    robust : RobustConfig
        What is done about poisoned and careless clients before the merge; nothing by default.

    Returns
    -------
    dict
        What ``merge.json`` holds: method, parameters, and a report per tensor, which for FIRM
        with a finite budget includes the projection's certificate; and ``robust``, what was found
        and done.

    Raises
    ------
    SummaryError
        ``robust`` refuses a client, or cannot pool a domain; or the summaries cannot be merged.
    """
    hardening = Hardening(summaries, robust)
    hardened = hardening.for_method(merge.method)
    parameters = merge_parameters(merge, hardened)
    reports: dict[str, dict[str, Any]] = {}

    def stream() -> Iterable[tuple[str, Tensor]]:
        for name, tensor, report in merge_tensors(hardened, merge.method, **parameters):
            reports[name] = report
            certifier.add(name, tensor, report)
            yield name, tensor
            del tensor  # before the next one is made

    certifier = Certifier(merge.method, parameters, summaries)
    shapes = {name: tuple(delta.shape) for name, delta in summaries[0].deltas.items()}
    write_update(directory / UPDATE, stream(), shapes, certifier.metadata, certifier.room)
    record = {
        "method": merge.method,
        "parameters": parameters,
        "clients": [summary.client_id for summary in summaries],
        "retain_clients": [summary.client_id for summary in summaries if summary.role == "retain"],
        "robust": hardening.report,
        "tensors": reports,
    }
    write_json(directory / REPORT, record)
    return record


def write_update(
    path: Path,
    tensors: Iterable[tuple[str, Tensor]],
    shapes: Mapping[str, tuple[int, ...]],
    metadata: Mapping[str, str] | Callable[[], Mapping[str, str]] | None = None,
    room_for_metadata: int = 0,
) -> None:
    """Write a safetensors file from a stream of tensors, holding one at a time.

    The header comes first in the file but is known last, so room for it is kept and filled with
    spaces, as the format allows.

    Parameters
    ----------
    path : Path
    tensors : iterable of (name, Tensor)
    shapes : mapping of str to tuple of int
        Every tensor that will come; sizes the header.
    metadata : mapping of str to str, or a function that returns one, optional
        Written into the header. A function is called after the last tensor.
    room_for_metadata : int
        Characters that what a function returns may take.
    """

    def said() -> dict[str, Any]:
        content = metadata() if callable(metadata) else metadata
        return {"__metadata__": dict(content)} if content else {}

    widest = {n: _entry(torch.float32, s, 2**62, 2**62) | {"dtype": "BF16"} for n, s in shapes.items()}
    known = {} if callable(metadata) else said()
    room = -(-(len(_header(known | widest)) + room_for_metadata) // 8) * 8
    entries: dict[str, Any] = {}
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        file.write(struct.pack("<Q", room) + b" " * room)
        end = 0
        for name, tensor in tensors:
            raw = tensor.detach().cpu().contiguous()
            file.write(raw.reshape(-1).view(torch.uint8).numpy().data)
            entries[name] = _entry(raw.dtype, tuple(raw.shape), end, end + raw.nbytes)
            end += raw.nbytes
            del tensor, raw
        header = _header(said() | entries)
        if len(header) > room or set(entries) != set(shapes):
            raise ModelError(f"{path}: the tensors written are not those announced")
        file.seek(8)
        file.write(header)


def locate_update(path: str | Path) -> Path:
    """Return the file of a merged update, given it or the run or ``merged`` directory that holds it."""
    path = Path(path)
    if path.is_dir():
        return path / UPDATE if (path / UPDATE).is_file() else path / "merged" / UPDATE
    return path


def load_update(path: str | Path) -> dict[str, Tensor]:
    """Read a merged update, given its file or the run or ``merged`` directory that holds it.

    Raises
    ------
    ModelError
        There is no such file, or it is not readable as safetensors.
    """
    path = locate_update(path)
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path}: cannot be read as a merged update ({error})") from error


def uncertified(record: Mapping[str, Any]) -> list[str]:
    """Return the tensors whose projection carries a certificate that does not hold."""
    certificates = {name: report.get("certificate") for name, report in record["tensors"].items()}
    return sorted(name for name, one in certificates.items() if one and not one["certified"])


def _entry(dtype: torch.dtype, shape: tuple[int, ...], start: int, end: int) -> dict[str, Any]:
    return {"dtype": DTYPE_CODES[dtype], "shape": list(shape), "data_offsets": [start, end]}


def _header(entries: Mapping[str, Any]) -> bytes:
    return json.dumps(entries, separators=(",", ":")).encode()
