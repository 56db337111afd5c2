"""Small pieces of a strategy: a stopwatch, an update as a Flower record, what clients sent and measured."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord

from fedforget import protocol
from fedforget.codecs import RAW
from fedforget.runs import RunDirectory
from fedforget.summaries import ClientSummary
from fedforget.updates import load_update


@contextlib.contextmanager
def timed(timings: dict[str, float], name: str) -> Iterator[None]:
    """Put a block's wall time, in seconds, in ``timings``."""
    started = time.monotonic()
    try:
        yield
    finally:
        timings[name] = time.monotonic() - started


def update_record(run: RunDirectory) -> ArrayRecord:
    """Return a run's merged update as one raw array per weight, bf16 included."""
    arrays = {}
    for name, tensor in load_update(run.merged).items():
        raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        arrays[name] = Array(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), RAW, raw)
    return ArrayRecord(arrays)


def mean_losses(replies: Iterable[Message], roles: Mapping[int, str]) -> MetricRecord | None:
    """Return the clients' mean loss per role, weighted by the number of examples; None without a reply.

    Parameters
    ----------
    replies : iterable of Message
        To evaluate messages; those with an error are left out.
    roles : mapping of int to str
        Role of each node, for replies that do not state theirs.
    """
    totals: dict[str, tuple[float, int]] = {}
    for reply in replies:
        if reply.has_error():
            continue
        record = reply.content[protocol.METRICS]
        info = protocol.record_in(reply.content, protocol.INFO, ConfigRecord) or ConfigRecord()
        role = str(info.get("role", roles.get(reply.metadata.src_node_id, "")))
        count, loss = int(record["num-examples"]), float(record["loss"])  # type: ignore[arg-type]
        total, seen = totals.get(role, (0.0, 0))
        totals[role] = (total + loss * count, seen + count)
    if not totals:
        return None
    return MetricRecord(
        {f"{role}-loss": total / max(seen, 1) for role, (total, seen) in sorted(totals.items())}
    )


def sent(
    record: Mapping[str, Any],
    summaries: Sequence[ClientSummary],
    update: int,
) -> dict[str, Any]:
    """Return the sections ``clients`` and ``bytes`` of ``run.json``.

    Parameters
    ----------
    record : mapping
        ``run.json`` as it is; its section ``received`` has what was written when a summary came, in this
        attempt at the round or an earlier one.
    summaries : sequence of ClientSummary
    update : int
        Bytes of the merged update's file.
    """
    known = record.get("received", {})
    received = {s.client_id: known[s.client_id] for s in summaries if s.client_id in known}
    clients = {
        s.client_id: {
            "role": s.role,
            "domain": s.domain,
            "num_examples": s.num_examples,
            **received.get(s.client_id, {}),
        }
        for s in summaries
    }
    total = sum(int(facts["bytes"]) for facts in received.values())
    dense = sum(int(f["fisher_dense_bytes"]) + int(f["delta_dense_bytes"]) for f in received.values())
    fishers = [int(sum(f[key] for f in received.values())) for key in ("fisher_bytes", "fisher_dense_bytes")]
    sizes: dict[str, Any] = {"received": total, "update": update}
    if dense:
        sizes |= {"dense": dense, "of_dense": round(total / dense, 4)}
    if fishers[1]:
        sizes["fishers_of_dense"] = round(fishers[0] / fishers[1], 4)
    if twice := [f for f in received.values() if "request_bytes" in f]:
        sizes["requested"] = sum(int(f["request_bytes"]) for f in twice)
        # Against the one trip that is exact as well; the clients measured what it would have taken.
        sizes["saved"] = (
            sum(int(f.get("lossless-bytes", 0)) - int(f["fisher_bytes"]) for f in twice) - sizes["requested"]
        )
    return {"clients": clients, "bytes": sizes}
