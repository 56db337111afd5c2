"""How a client summary travels: bytes in a few flat buckets, and a manifest that declares them.

The manifest is JSON: for each tensor its name, kind, dtype, shape, place and codec, for each bucket
its size and SHA-256, and which entries of the Fisher were sent. Task vectors travel as they are,
LoRA factors as factors, little-endian; a Fisher in the codec that the client was told to use.

What arrives is not trusted. Every declared size is checked against the buckets that are really
there, and against what the receiver can hold, before memory is taken; everything wrong is a
:class:`SummaryError` that names the client.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fedforget.codecs import log8, planes, top
from fedforget.codecs.buckets import BUCKET_BYTES, Bucket, bucket_starts, check_buckets, declare, fill, read
from fedforget.codecs.fidelity import Fidelity
from fedforget.codecs.instructions import Instruction
from fedforget.codecs.manifest import (
    FORMAT,
    KINDS,
    LOG8,
    NAMES,
    PLANES,
    RAW_CODEC,
    TOP,
    Entry,
    Manifest,
    check_ranges,
    parse,
)
from fedforget.errors import SummaryError
from fedforget.merging.selection import kept_count
from fedforget.sparse_fisher import Fisher, SparseFisher
from fedforget.summaries import ClientSummary, Delta, LoraFactors, Role

# Memory that compressed tensors may take once decoded, where the receiver does not say what it expects.
DECODED_LIMIT = 2**30
_DENSE = Instruction(RAW_CODEC)


def pack(
    summary: ClientSummary, bucket_bytes: int = BUCKET_BYTES, fisher: Instruction = _DENSE
) -> tuple[list[Bucket], str]:
    """Lay a summary out for the wire.

    Parameters
    ----------
    summary : ClientSummary
        LoRA factors stay factors, dtypes are kept.
    bucket_bytes : int
        Largest size of a bucket. What is larger spans several.
    fisher : Instruction
        How whole Fishers are sent, dense by default; a sparse one travels as it is.

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
    fidelity = Fidelity(fisher.alpha) if fisher.approximate else None
    entries: list[dict[str, Any]] = []
    contents: list[list[Bucket]] = []
    for name, kind, part in _parts(summary):
        if part.dtype not in NAMES:
            raise SummaryError(
                f"client {summary.client_id!r}: tensor {name!r} has dtype {part.dtype}; "
                f"send one of {', '.join(NAMES.values())}"
            )
        if kind == "fisher":
            parts, more = _encode(part, fisher, fidelity)
        else:
            parts, more = [planes.as_bytes(cast(Tensor, part))], {}
        contents.append(parts)
        entries.append(
            {
                "name": name,
                "kind": kind,
                "dtype": NAMES[part.dtype],
                "shape": list(part.shape),
                "nbytes": sum(one.nbytes for one in parts),
                **more,
            }
        )
    buckets, places = fill(contents, bucket_bytes)
    held = summary.coverage if summary.coverage.kind != "whole" or not summary.fisher else fisher.coverage
    manifest = {
        "format": FORMAT,
        "client_id": summary.client_id,
        "role": summary.role,
        "domain": summary.domain,
        "num_examples": summary.num_examples,
        "coverage": held.to_plain(),
        "codec": fisher.name if summary.fisher else "none",
        "errors": fidelity.result() if fidelity else {},
        "scales": {n: d.scale for n, d in summary.deltas.items() if isinstance(d, LoraFactors)},
        "buckets": declare(buckets),
        "tensors": [{**one, "offset": place} for one, place in zip(entries, places, strict=True)],
    }
    return buckets, json.dumps(manifest)


def unpack(
    buckets: Sequence[Bucket],
    manifest: str,
    client: str = "",
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> ClientSummary:
    """Read back what :func:`pack` laid out.

    Tensors that came as they are are views of the buckets, without a copy, except those that span
    several. A Fisher that came as its largest entries stays a :class:`SparseFisher`.

    Parameters
    ----------
    buckets : sequence of 1-D uint8 arrays
    manifest : str
    client : str
        Who is thought to have sent it, for messages about a manifest that cannot be read.
    shapes : mapping of str to tuple of int, optional
        The weights that a summary can be about. Nothing of another name or shape is decompressed.
        Without it compressed tensors may take :data:`DECODED_LIMIT` bytes together.

    Returns
    -------
    ClientSummary
        Not yet validated: call :meth:`ClientSummary.validate` (``save`` does).

    Raises
    ------
    SummaryError
        The manifest is not what it should be, or does not describe these buckets.
    """
    declared = parse(manifest, client)
    who = f"client {declared.client_id!r}"
    sizes = check_buckets(buckets, declared.buckets, who)
    check_ranges(declared.tensors, sum(sizes), who)
    _check_memory(declared.tensors, shapes, who)
    _check_shares(declared, who)
    found: dict[str, dict[str, Tensor]] = {kind: {} for kind in KINDS if kind != "fisher"}
    fishers: dict[str, Fisher] = {}
    starts = bucket_starts(sizes)
    for entry in declared.tensors:
        held: Mapping[str, Any] = fishers if entry.kind == "fisher" else found[entry.kind]
        if entry.name in held:
            raise SummaryError(f"{who}: {entry.kind} of tensor {entry.name!r} is declared twice")
        raw = read(buckets, entry.offset, entry.nbytes, starts)
        if entry.kind == "fisher":
            fishers[entry.name] = _decode(raw, entry, who)
        else:
            found[entry.kind][entry.name] = _tensor(raw, entry)
    return ClientSummary(
        client_id=declared.client_id,
        role=cast(Role, declared.role),
        domain=declared.domain,
        num_examples=declared.num_examples,
        deltas=_deltas(found, declared.scales, who),
        fisher=fishers,
        coverage=declared.coverage,
    )


def _parts(summary: ClientSummary) -> Iterator[tuple[str, str, Fisher]]:
    for name, delta in sorted(summary.deltas.items()):
        if isinstance(delta, LoraFactors):
            yield name, "lora_A", delta.A
            yield name, "lora_B", delta.B
        else:
            yield name, "delta", delta
    for name, fisher in sorted(summary.fisher.items()):
        yield name, "fisher", fisher


def _encode(
    fisher: Fisher, how: Instruction, fidelity: Fidelity | None
) -> tuple[list[Bucket], dict[str, Any]]:
    if isinstance(fisher, SparseFisher) or how.codec == TOP:
        sparse = fisher if isinstance(fisher, SparseFisher) else top.sparsify(fisher, how.share)
        if fidelity and isinstance(fisher, Tensor):
            fidelity.add(fisher, sparse.dense())
        frames, gap_bytes = top.encode(sparse)
        more: dict[str, Any] = {"count": sparse.values.numel(), "gap_bytes": gap_bytes, "rest": sparse.rest}
        codec = TOP
    elif how.codec == PLANES:
        frames, more, codec = planes.encode(fisher), {}, PLANES
    elif how.codec == LOG8:
        frames, decoded = log8.encode(fisher)
        if fidelity:
            fidelity.add(fisher, decoded)
        more, codec = {}, LOG8
    else:
        return [planes.as_bytes(fisher)], {}
    return frames, {"codec": codec, "parts": [one.nbytes for one in frames], **more}


def _decode(raw: Bucket, entry: Entry, who: str) -> Fisher:
    if entry.codec == RAW_CODEC:
        return _tensor(raw, entry)
    what = f"{who}: Fisher of tensor {entry.name!r}"
    ends = np.cumsum(entry.parts).tolist()
    frames = [raw[end - n : end] for end, n in zip(ends, entry.parts, strict=True)]
    if entry.codec == TOP:
        return top.decode(frames, entry.shape, entry.count, entry.gap_bytes, entry.dtype, what, entry.rest)
    if entry.codec == LOG8:
        return log8.decode(frames, entry.shape, entry.dtype, what)
    return planes.decode(frames, entry.size, entry.dtype, what).reshape(entry.shape)


def _check_memory(tensors: Sequence[Entry], shapes: Mapping[str, tuple[int, ...]] | None, who: str) -> None:
    if shapes is None:
        total = sum(entry.decoded_bytes for entry in tensors)
        if total > DECODED_LIMIT:
            raise SummaryError(
                f"{who}: the summary declares tensors that take {total} bytes once decompressed, "
                f"more than the {DECODED_LIMIT} allowed"
            )
        return
    for entry in tensors:
        if entry.kind == "fisher" and entry.shape != tuple(shapes.get(entry.name, ())):
            expected = f"has {tuple(shapes[entry.name])}" if entry.name in shapes else "has no such weight"
            raise SummaryError(
                f"{who}: Fisher of tensor {entry.name!r} has shape {entry.shape}, the backbone {expected}"
            )


def _check_shares(declared: Manifest, who: str) -> None:
    """Refuse fewer entries than the share that is said to be whole, where others are left out."""
    for entry in declared.tensors:
        least = kept_count(entry.size, declared.coverage.share) if entry.rest > 0.0 else 0
        if entry.count < least:
            raise SummaryError(
                f"{who}: Fisher of tensor {entry.name!r} holds {entry.count} entries, and the largest "
                f"{declared.coverage.share:g} of it, as was said, are {least}"
            )


def _tensor(flat: Bucket, entry: Entry) -> Tensor:
    if not flat.nbytes:
        return torch.zeros(entry.shape, dtype=entry.dtype)
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
