"""Small pieces of a strategy: a stopwatch, and a merged update as a Flower record."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import torch
from flwr.app import Array, ArrayRecord

from fedforget.codecs import RAW
from fedforget.runs import RunDirectory
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
