"""The manifest of a summary: what it says is checked before any of it is believed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedforget.codecs.buckets import ALIGN
from fedforget.codecs.top import most_gap_bytes
from fedforget.errors import SummaryError
from fedforget.sparse_fisher import Coverage

RAW_CODEC, PLANES, TOP, LOG8 = "raw", "planes", "top", "log8"
CODECS = (RAW_CODEC, PLANES, TOP, LOG8)
FORMAT = 2
KINDS = ("delta", "lora_A", "lora_B", "fisher")
DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
_MOST_TENSORS = 1_000_000


@dataclass(frozen=True)
class Entry:
    """One tensor of a summary, as its manifest declares it.

    Attributes
    ----------
    name, kind : str
        The weight, and one of :data:`KINDS`.
    dtype, shape
        Of the tensor once decoded.
    offset, nbytes : int
        Where its bytes are in the concatenated buckets.
    codec : str
        One of :data:`fedforget.codecs.CODECS`.
    parts : tuple of int
        Bytes of each zstd frame; empty with ``raw``.
    count, gap_bytes : int
        With ``top``: entries, and bytes of their gaps.
    rest : float
        With ``top``: the largest entry that was not sent.
    """

    name: str
    kind: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    codec: str = RAW_CODEC
    parts: tuple[int, ...] = ()
    count: int = 0
    gap_bytes: int = 0
    rest: float = 0.0

    @property
    def size(self) -> int:
        """Coordinates of the tensor."""
        return math.prod(self.shape)

    @property
    def decoded_bytes(self) -> int:
        """Memory that decoding takes, an upper bound; 0 for what is read in place."""
        if self.codec == RAW_CODEC:
            return 0
        if self.codec == TOP:
            return self.count * (2 * self.dtype.itemsize + 24) + 9 * self.gap_bytes
        return self.size * (5 + self.dtype.itemsize)

    @classmethod
    def read(cls, raw: Any, who: str) -> Entry:
        """Read a tensor's declaration; raises SummaryError where it contradicts itself."""
        if not isinstance(raw, dict):
            raise SummaryError(f"{who}: a tensor's entry in the manifest is not a JSON object")
        name = field(raw, "name", str, who)
        kind, dtype = field(raw, "kind", str, who), field(raw, "dtype", str, who)
        if kind not in KINDS:
            raise SummaryError(f"{who}: tensor {name!r} is of the unknown kind {kind!r}")
        if dtype not in DTYPES:
            raise SummaryError(f"{who}: tensor {name!r} has the unknown dtype {dtype!r}")
        codec = raw.get("codec", RAW_CODEC)
        if codec not in CODECS or (codec != RAW_CODEC and kind != "fisher"):
            raise SummaryError(f"{who}: {kind} of tensor {name!r} comes in the unknown codec {codec!r}")
        shape, parts = field(raw, "shape", list, who), raw.get("parts", [])
        if len(shape) > 8 or any(type(d) is not int or not 0 <= d < 2**48 for d in shape):
            raise SummaryError(f"{who}: tensor {name!r} declares a shape that is not a list of sizes")
        # Strides overflow even where a size of 0 makes it empty.
        if 0 in shape and math.prod(d for d in shape if d) >= 2**62:
            raise SummaryError(f"{who}: tensor {name!r} declares the shape {shape}, which no tensor can have")
        if not isinstance(parts, list) or any(type(n) is not int or not 0 <= n < 2**48 for n in parts):
            raise SummaryError(f"{who}: tensor {name!r} declares parts that are not a list of sizes")
        count, gap_bytes = (size(raw, "count", who), size(raw, "gap_bytes", who)) if codec == TOP else (0, 0)
        entry = cls(
            name=name,
            kind=kind,
            dtype=DTYPES[dtype],
            shape=tuple(shape),
            offset=size(raw, "offset", who),
            nbytes=size(raw, "nbytes", who),
            codec=codec,
            parts=tuple(parts),
            count=count,
            gap_bytes=gap_bytes,
            rest=_number(raw.get("rest"), f"{who}: the rest of tensor {name!r}") if codec == TOP else 0.0,
        )
        entry._check(who)
        return entry

    def _check(self, who: str) -> None:
        width = self.dtype.itemsize
        expected = {RAW_CODEC: 0, PLANES: width, TOP: 1 + width, LOG8: 2}[self.codec]
        if len(self.parts) != expected:
            raise SummaryError(
                f"{who}: tensor {self.name!r} declares {len(self.parts)} parts, its codec {self.codec!r} "
                f"has {expected}"
            )
        if self.nbytes != (sum(self.parts) if expected else self.size * width):
            raise SummaryError(
                f"{who}: tensor {self.name!r} declares {self.nbytes} bytes, which its "
                f"{'parts do' if expected else f'shape {self.shape} does'} not take"
            )
        if self.codec == TOP and not (
            self.count <= self.size and self.count <= self.gap_bytes <= most_gap_bytes(self.size, self.count)
        ):
            raise SummaryError(
                f"{who}: tensor {self.name!r} declares {self.count} entries in {self.gap_bytes} gap bytes, "
                f"which a shape {self.shape} does not have"
            )


@dataclass(frozen=True)
class Manifest:
    """A manifest whose fields are of the right types; what they say of the bytes is still to be checked."""

    client_id: str
    role: str
    domain: str
    num_examples: int
    scales: dict[str, float]
    buckets: list[Any]
    tensors: list[Entry]
    coverage: Coverage
    codec: str
    errors: dict[str, float]


def parse(manifest: str, client: str) -> Manifest:
    """Read a manifest.

    Raises
    ------
    SummaryError
        It is not one of this version; names the client.
    """
    who = f"client {client!r}" if client else "a client"
    try:
        raw = json.loads(manifest)
    except (ValueError, TypeError, RecursionError) as error:
        raise SummaryError(f"{who}: the manifest is not JSON ({type(error).__name__})") from error
    if not isinstance(raw, dict):
        raise SummaryError(f"{who}: the manifest is not a JSON object")
    if raw.get("format") != FORMAT:
        raise SummaryError(
            f"{who}: manifest format {raw.get('format')!r}; this version reads format {FORMAT}, "
            "so update the older of client and server"
        )
    client_id = field(raw, "client_id", str, who)
    who = f"client {client_id!r}"
    tensors = field(raw, "tensors", list, who)
    if len(tensors) > _MOST_TENSORS:
        raise SummaryError(f"{who}: the manifest declares {len(tensors)} tensors")
    try:
        coverage = Coverage.from_plain(raw.get("coverage"))
    except ValueError as error:
        raise SummaryError(f"{who}: {error}") from error
    return Manifest(
        client_id=client_id,
        role=field(raw, "role", str, who),
        domain=field(raw, "domain", str, who),
        num_examples=size(raw, "num_examples", who),
        scales=_numbers(raw, "scales", "the scale of tensor", who),
        buckets=field(raw, "buckets", list, who),
        tensors=[Entry.read(one, who) for one in tensors],
        coverage=coverage,
        codec=field(raw, "codec", str, who)[:80],
        errors=_numbers(raw, "errors", "the error", who),
    )


def check_ranges(tensors: Sequence[Entry], total: int, who: str) -> None:
    """Refuse tensors that overlap, or that end beyond the bytes that arrived."""
    end = 0
    for entry in sorted(tensors, key=lambda e: (e.offset, e.nbytes)):
        if entry.offset % ALIGN:
            raise SummaryError(
                f"{who}: tensor {entry.name!r} starts at byte {entry.offset}, not a multiple of {ALIGN}"
            )
        if entry.offset < end:
            raise SummaryError(f"{who}: tensor {entry.name!r} overlaps another one")
        end = entry.offset + entry.nbytes
        if end > total:
            raise SummaryError(f"{who}: tensor {entry.name!r} ends at byte {end}; only {total} bytes arrived")


def field(raw: Mapping[str, Any], key: str, kind: type, who: str) -> Any:
    """Return a field of the right type, or raise SummaryError."""
    value = raw.get(key)
    if not isinstance(value, kind):
        raise SummaryError(f"{who}: the manifest's {key!r} is missing or is not a {kind.__name__}")
    return value


def size(raw: Mapping[str, Any], key: str, who: str) -> int:
    """Return a field that is a whole number of at least 0, or raise SummaryError."""
    value = raw.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise SummaryError(f"{who}: the manifest's {key!r} is missing or is not a whole number of at least 0")
    return value


def _numbers(raw: Mapping[str, Any], key: str, what: str, who: str) -> dict[str, float]:
    found = field(raw, key, dict, who)
    return {name: _number(value, f"{who}: {what} {name!r}") for name, value in found.items()}


def _number(value: Any, what: str) -> float:
    whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    if not (whole or isinstance(value, float)) or not math.isfinite(value):
        raise SummaryError(f"{what} is not a finite number")
    return float(value)
