"""How a client summary travels: raw bytes in a few flat buckets, and a manifest that declares them.

Many small arrays are slow to send (each is an object of its own on the wire) and bf16 does not
pass through NumPy, so the tensors are laid end to end, as little-endian bytes, in ``uint8``
buckets of some tens of MiB. The manifest is JSON: for each tensor its name, kind, dtype, shape
and place, and for each bucket its size and SHA-256.

What arrives is not trusted. Every declared size is checked against the buckets that are really
there before memory is taken, and everything wrong is a :class:`SummaryError` that names the client.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedforget.errors import SummaryError
from fedforget.summaries import ClientSummary, Delta, LoraFactors, Role

Bucket = NDArray[np.uint8]

RAW = "fedforget.raw"  # how a bucket is labelled on the wire: its bytes as they are, no NPY header
BUCKET_BYTES = 32 * 2**20

_FORMAT = 1
_ALIGN = 16  # bytes: every tensor starts where any dtype may be read in place
_KINDS = ("delta", "lora_A", "lora_B", "fisher")
_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def pack(summary: ClientSummary, bucket_bytes: int = BUCKET_BYTES) -> tuple[list[Bucket], str]:
    """Lay a summary out for the wire.

    Parameters
    ----------
    summary : ClientSummary
        LoRA factors stay factors, dtypes are kept.
    bucket_bytes : int
        Largest size of a bucket. A tensor that is larger spans several.

    Returns
    -------
    buckets : list of 1-D uint8 arrays
    manifest : str
        JSON; see the module's description.

    Raises
    ------
    SummaryError
        The summary is not valid, or holds a dtype that does not travel.
    """
    summary.validate()
    bucket_bytes = max(_ALIGN, bucket_bytes // _ALIGN * _ALIGN)
    parts = [(name, kind, part.detach().cpu().contiguous()) for name, kind, part in _parts(summary)]
    for name, _, part in parts:
        if part.dtype not in _NAMES:
            raise SummaryError(
                f"client {summary.client_id!r}: tensor {name!r} has dtype {part.dtype}; "
                f"send one of {', '.join(_DTYPES)}"
            )
    sizes, places = _layout([part.nbytes for _, _, part in parts], bucket_bytes)
    buckets = [np.zeros(size, np.uint8) for size in sizes]
    starts = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    for (_, _, part), place in zip(parts, places, strict=True):
        raw = part.reshape(-1).view(torch.uint8).numpy()
        for index, inside, first, count in _pieces(place, part.nbytes, starts):
            buckets[index][inside : inside + count] = raw[first : first + count]
    manifest = {
        "format": _FORMAT,
        "client_id": summary.client_id,
        "role": summary.role,
        "domain": summary.domain,
        "num_examples": summary.num_examples,
        "scales": {n: d.scale for n, d in summary.deltas.items() if isinstance(d, LoraFactors)},
        "buckets": [{"nbytes": b.nbytes, "sha256": hashlib.sha256(b.data).hexdigest()} for b in buckets],
        "tensors": [
            {
                "name": name,
                "kind": kind,
                "dtype": _NAMES[part.dtype],
                "shape": list(part.shape),
                "offset": place,
                "nbytes": part.nbytes,
            }
            for (name, kind, part), place in zip(parts, places, strict=True)
        ],
    }
    return buckets, json.dumps(manifest)


def unpack(buckets: Sequence[Bucket], manifest: str, client: str = "") -> ClientSummary:
    """Read back what :func:`pack` laid out.

    Tensors are views of the buckets, without a copy, except those that span several.

    Parameters
    ----------
    buckets : sequence of 1-D uint8 arrays
    manifest : str
    client : str
        Who is thought to have sent it, for messages about a manifest that cannot be read.

    Returns
    -------
    ClientSummary
        Not yet validated: call :meth:`ClientSummary.validate` (``save`` does).

    Raises
    ------
    SummaryError
        The manifest is not what it should be, or does not describe these buckets.
    """
    declared = _parse(manifest, client)
    who = f"client {declared.client_id!r}"
    sizes = _check_buckets(buckets, declared.buckets, who)
    tensors = [_Entry.read(raw, who) for raw in declared.tensors]
    _check_ranges(tensors, sum(sizes), who)
    found: dict[str, dict[str, Tensor]] = {kind: {} for kind in _KINDS}
    starts = [0, *np.cumsum(sizes, dtype=np.int64).tolist()]
    for entry in tensors:
        if entry.name in found[entry.kind]:
            raise SummaryError(f"{who}: {entry.kind} of tensor {entry.name!r} is declared twice")
        found[entry.kind][entry.name] = _tensor(buckets, entry, starts)
    return ClientSummary(
        client_id=declared.client_id,
        role=cast(Role, declared.role),
        domain=declared.domain,
        num_examples=declared.num_examples,
        deltas=_deltas(found, declared.scales, who),
        fisher=found["fisher"],
    )


def _parts(summary: ClientSummary) -> Iterator[tuple[str, str, Tensor]]:
    for name, delta in sorted(summary.deltas.items()):
        if isinstance(delta, LoraFactors):
            yield name, "lora_A", delta.A
            yield name, "lora_B", delta.B
        else:
            yield name, "delta", delta
    for name, fisher in sorted(summary.fisher.items()):
        yield name, "fisher", fisher


def _layout(lengths: Sequence[int], bucket_bytes: int) -> tuple[list[int], list[int]]:
    """Sizes of the buckets, and where each tensor starts in the concatenation of them."""
    sizes: list[int] = []
    places = []
    used, total = 0, 0  # bytes in the open bucket, bytes in the closed ones
    for length in lengths:
        padded = -(-length // _ALIGN) * _ALIGN
        if used and used + padded > bucket_bytes:
            sizes.append(used)
            total, used = total + used, 0
        places.append(total + used)
        used += padded
        while used > bucket_bytes:
            sizes.append(bucket_bytes)
            total, used = total + bucket_bytes, used - bucket_bytes
    return [*sizes, used] if used else sizes, places


def _pieces(place: int, nbytes: int, starts: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """Yield ``(bucket, offset in it, offset in the tensor, count)`` for one tensor's bytes."""
    index = int(np.searchsorted(starts, place, side="right")) - 1
    done = 0
    while done < nbytes:
        inside = place + done - starts[index]
        count = min(nbytes - done, starts[index + 1] - starts[index] - inside)
        yield index, inside, done, count
        done += count
        index += 1


@dataclass(frozen=True)
class _Manifest:
    client_id: str
    role: str
    domain: str
    num_examples: int
    scales: dict[str, float]
    buckets: list[Any]
    tensors: list[Any]


def _parse(manifest: str, client: str) -> _Manifest:
    who = f"client {client!r}" if client else "a client"
    try:
        raw = json.loads(manifest)
    except (ValueError, TypeError, RecursionError) as error:
        raise SummaryError(f"{who}: the manifest is not JSON ({type(error).__name__})") from error
    if not isinstance(raw, dict):
        raise SummaryError(f"{who}: the manifest is not a JSON object")
    if raw.get("format") != _FORMAT:
        raise SummaryError(
            f"{who}: manifest format {raw.get('format')!r}; this version reads format {_FORMAT}, "
            "so update the older of client and server"
        )
    client_id = _field(raw, "client_id", str, who)
    who = f"client {client_id!r}"
    scales = _field(raw, "scales", dict, who)
    for name, scale in scales.items():
        if not _is_number(scale) or not math.isfinite(scale):
            raise SummaryError(f"{who}: the scale of tensor {name!r} is not a finite number")
    return _Manifest(
        client_id=client_id,
        role=_field(raw, "role", str, who),
        domain=_field(raw, "domain", str, who),
        num_examples=_size(raw, "num_examples", who),
        scales={name: float(scale) for name, scale in scales.items()},
        buckets=_field(raw, "buckets", list, who),
        tensors=_field(raw, "tensors", list, who),
    )


def _field(raw: Mapping[str, Any], key: str, kind: type, who: str) -> Any:
    value = raw.get(key)
    if not isinstance(value, kind):
        raise SummaryError(f"{who}: the manifest's {key!r} is missing or is not a {kind.__name__}")
    return value


def _size(raw: Mapping[str, Any], key: str, who: str) -> int:
    value = raw.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise SummaryError(f"{who}: the manifest's {key!r} is missing or is not a whole number of at least 0")
    return value


def _is_number(value: Any) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 2**63
    return isinstance(value, float)


def _check_buckets(buckets: Sequence[Bucket], declared: list[Any], who: str) -> list[int]:
    if len(buckets) != len(declared):
        raise SummaryError(f"{who}: {len(buckets)} buckets arrived, the manifest declares {len(declared)}")
    for index, (bucket, entry) in enumerate(zip(buckets, declared, strict=True)):
        if not isinstance(entry, dict):
            raise SummaryError(f"{who}: the manifest's entry for bucket {index} is not a JSON object")
        if not isinstance(bucket, np.ndarray) or bucket.dtype != np.uint8 or bucket.ndim != 1:
            raise SummaryError(f"{who}: bucket {index} is not a flat array of bytes")
        if bucket.nbytes != _size(entry, "nbytes", who):
            raise SummaryError(f"{who}: bucket {index} has {bucket.nbytes} bytes, declared {entry['nbytes']}")
        if hashlib.sha256(np.ascontiguousarray(bucket).data).hexdigest() != entry.get("sha256"):
            raise SummaryError(f"{who}: bucket {index} does not match its SHA-256; it was damaged on the way")
    return [bucket.nbytes for bucket in buckets]


@dataclass(frozen=True)
class _Entry:
    name: str
    kind: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @classmethod
    def read(cls, raw: Any, who: str) -> _Entry:
        if not isinstance(raw, dict):
            raise SummaryError(f"{who}: a tensor's entry in the manifest is not a JSON object")
        name = _field(raw, "name", str, who)
        kind, dtype = _field(raw, "kind", str, who), _field(raw, "dtype", str, who)
        if kind not in _KINDS:
            raise SummaryError(f"{who}: tensor {name!r} is of the unknown kind {kind!r}")
        if dtype not in _DTYPES:
            raise SummaryError(f"{who}: tensor {name!r} has the unknown dtype {dtype!r}")
        shape = _field(raw, "shape", list, who)
        if len(shape) > 8 or any(type(d) is not int or not 0 <= d < 2**48 for d in shape):
            raise SummaryError(f"{who}: tensor {name!r} declares a shape that is not a list of sizes")
        entry = cls(
            name, kind, _DTYPES[dtype], tuple(shape), _size(raw, "offset", who), _size(raw, "nbytes", who)
        )
        if math.prod(shape) * entry.dtype.itemsize != entry.nbytes:
            raise SummaryError(
                f"{who}: tensor {name!r} declares {entry.nbytes} bytes, "
                f"which its shape {entry.shape} does not take"
            )
        return entry


def _check_ranges(tensors: Sequence[_Entry], total: int, who: str) -> None:
    end = 0
    for entry in sorted(tensors, key=lambda e: (e.offset, e.nbytes)):
        if entry.offset % _ALIGN:
            raise SummaryError(
                f"{who}: tensor {entry.name!r} starts at byte {entry.offset}, not a multiple of {_ALIGN}"
            )
        if entry.offset < end:
            raise SummaryError(f"{who}: tensor {entry.name!r} overlaps another one")
        end = entry.offset + entry.nbytes
        if end > total:
            raise SummaryError(f"{who}: tensor {entry.name!r} ends at byte {end}; only {total} bytes arrived")


def _tensor(buckets: Sequence[Bucket], entry: _Entry, starts: Sequence[int]) -> Tensor:
    pieces = [buckets[i][at : at + n] for i, at, _, n in _pieces(entry.offset, entry.nbytes, starts)]
    if not pieces:
        return torch.zeros(entry.shape, dtype=entry.dtype)
    flat = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    aligned = flat.ctypes.data % entry.dtype.itemsize == 0 and flat.flags.c_contiguous
    with warnings.catch_warnings():
        # Buckets off the wire are read-only; nothing writes to a summary's tensors.
        warnings.filterwarnings("ignore", message="The given (buffer|NumPy array) is not writable")
        raw = torch.from_numpy(flat if aligned else flat.copy())
    return raw.view(entry.dtype).reshape(entry.shape)


def _deltas(
    found: Mapping[str, Mapping[str, Tensor]], scales: Mapping[str, float], who: str
) -> dict[str, Delta]:
    a, b, dense = found["lora_A"], found["lora_B"], found["delta"]
    factored = set(a) | set(b) | set(scales)
    for name in sorted(factored):
        if not (name in a and name in b and name in scales):
            raise SummaryError(f"{who}: tensor {name!r} needs both LoRA factors and a scale")
        if name in dense:
            raise SummaryError(f"{who}: tensor {name!r} is declared both dense and as LoRA factors")
    deltas: dict[str, Delta] = dict(dense)
    for name in factored:
        try:
            deltas[name] = LoraFactors(a[name], b[name], scales[name])
        except SummaryError as error:
            raise SummaryError(f"{who}: tensor {name!r}: {error}") from error
    return dict(sorted(deltas.items()))
