"""What a client does or sends instead of its summary, by its domain, or while a file names it."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

Summary = Any  # fedforget's; it is imported from the app's bundle, once that is there


def _changed(summary: Summary, part: str, change: Callable[[Any], Any]) -> Summary:
    """Change the first weight's task vector or Fisher."""
    tensors = dict(getattr(summary, part))
    name = min(tensors)
    return dataclasses.replace(summary, **{part: {**tensors, name: change(tensors[name])}})


def _filled(value: float) -> Callable[[Any], Any]:
    return lambda factors: dataclasses.replace(
        factors, A=torch.full_like(factors.A, value), B=torch.ones_like(factors.B)
    )


SUMMARIES: dict[str, Callable[[Summary], Summary]] = {
    "nan": lambda summary: _changed(summary, "deltas", _filled(float("nan"))),
    "norm": lambda summary: _changed(summary, "deltas", _filled(1e6)),
    "negative": lambda summary: _changed(summary, "fisher", lambda fisher: -1.0 - fisher),
    "shape": lambda summary: _changed(summary, "fisher", lambda fisher: fisher.T.contiguous()),
}


@contextlib.contextmanager
def _dishonest(change: Callable[[Summary], Summary]) -> Iterator[None]:
    """Change a summary before it is packed, without the sender's own checks."""
    from clients import unlearning
    from fedforget.summaries import ClientSummary

    pack, validate = unlearning.pack, ClientSummary.validate
    ClientSummary.validate = lambda summary: None
    unlearning.pack = lambda summary, **how: pack(change(summary), **how)
    try:
        yield
    finally:
        unlearning.pack, ClientSummary.validate = pack, validate


def _last(reply: Message, change: Callable[[Array], Array]) -> None:
    """Change the last bucket of a reply."""
    arrays = dict(reply.content.array_records["arrays"].items())
    name = max(arrays)
    reply.content["arrays"] = ArrayRecord({**arrays, name: change(arrays[name])})


def _other_backbone(reply: Message) -> None:
    reply.content["info"] = ConfigRecord({**reply.content.config_records["info"], "fingerprint": "other"})


REPLIES: dict[str, Callable[[Message], None]] = {
    "backbone": _other_backbone,
    "truncated": lambda reply: _last(
        reply, lambda one: Array(one.dtype, (len(one.data) - 1,), one.stype, one.data[:-1])
    ),
    "dtype": lambda reply: _last(
        reply, lambda one: Array("float32", (len(one.data) // 4,), one.stype, one.data)
    ),
}


def _wait(silent: Path, client: str) -> None:
    """Say nothing for as long as the file names the client."""
    with contextlib.suppress(FileNotFoundError):
        while client in silent.read_text().split():
            time.sleep(0.5)


def install(silent: Path) -> None:
    """Let this process's ClientApp misbehave."""
    honest = ClientApp.__call__

    def call(app: ClientApp, message: Message, context: Context) -> Message:
        client = str(message.content.config_records["config"].get("declared", ""))
        if message.metadata.message_type != "train.unlearn":
            return honest(app, message, context)
        _wait(silent, client)
        fault = client.rpartition("-")[2]
        if fault == "raises":
            raise ValueError(f"{client} is out of sorts")
        with _dishonest(SUMMARIES[fault]) if fault in SUMMARIES else contextlib.nullcontext():
            reply = honest(app, message, context)
        REPLIES.get(fault, lambda reply: None)(reply)
        return reply

    ClientApp.__call__ = call
