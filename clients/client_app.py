"""The ClientApp: binds the clients, written as NumPyClients, to Flower's messages."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

from clients import identity, sequential_messages
from clients.progress import told
from fedforget import protocol
from fedforget.client_specs import ClientSpec
from fedforget.codecs import RAW, Bucket
from fedforget.config import RunConfig
from fedforget.sequential import protocol as sequential

# A deployed node runs each message in a new process: what only some kinds of messages need, and takes
# seconds to import, is imported by their handlers.
app = ClientApp()


@app.query(protocol.DESCRIBE.partition(".")[2])
def describe(message: Message, context: Context) -> Message:
    """Say who this node is; a deployed node declares its client, a simulated one its number."""
    if sequential_messages.concerns(message):
        return sequential_messages.describe(message, context)
    config, _, _ = identity.request(message)
    from clients.description import describe_node

    description = describe_node(
        config,
        int(context.node_config.get("partition-id", -1)),
        identity.declared(context),
        str(context.node_config.get("client-id", "")),
    )
    return Message(
        RecordDict({protocol.INFO: ConfigRecord(dict(description.to_properties()))}), reply_to=message
    )


@app.train(protocol.UNLEARN.partition(".")[2])
def unlearn(message: Message, context: Context) -> Message:
    """Train one client and send its summary."""
    from clients.unlearning import UnlearningClient

    return fit(message, context, UnlearningClient)


@app.query(protocol.VALUES.partition(".")[2])
def values(message: Message, context: Context) -> Message:
    """Send further entries of one client's Fisher."""
    from clients.unlearning import UnlearningClient

    config, spec, record = identity.resolve(message, context)
    with _naming(spec):
        buckets, info = UnlearningClient(config, spec, threads(record, config)).values(
            _buckets(message), dict(record)
        )
    content: dict[str, Any] = {protocol.ARRAYS: _arrays(buckets), protocol.INFO: ConfigRecord(info)}
    return Message(RecordDict(content), reply_to=message)


@app.query(sequential.SLICES.partition(".")[2])
def slices(message: Message, context: Context) -> Message:
    """Declare one client's slices (FedSGT)."""
    return sequential_messages.slices(message, context)


@app.train(sequential.SEQUENTIAL.partition(".")[2])
def train_sequential(message: Message, context: Context) -> Message:
    """Train one client's share of a round's modules (FedSGT)."""
    return sequential_messages.train(message, context)


@app.train(sequential.ASCENT_TRAIN.partition(".")[2])
def ascend(message: Message, context: Context) -> Message:
    """Let one client unlearn by gradient ascent (approximate)."""
    return sequential_messages.ascend(message, context)


@app.query(sequential.RELEASE.partition(".")[2])
def release(message: Message, context: Context) -> Message:
    """Drop what one client cached for a run (FedSGT)."""
    return sequential_messages.release(message, context)


Make = Callable[[RunConfig, ClientSpec, int | None], NumPyClient]


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Measure the loss on one client's own examples."""
    from clients.unlearning import UnlearningClient

    config, spec, record = identity.resolve(message, context)
    with _naming(spec):
        loss, count, metrics = UnlearningClient(config, spec, threads(record, config)).evaluate(
            _buckets(message), dict(record)
        )
    numbers, info = _split(metrics)
    content: dict[str, Any] = {
        protocol.METRICS: MetricRecord({"loss": float(loss), "num-examples": count, **numbers}),
        protocol.INFO: ConfigRecord(info),
    }
    return Message(RecordDict(content), reply_to=message)


def fit(message: Message, context: Context, make: Make) -> Message:
    """Run one NumPyClient's ``fit`` for a message and pack what it returns.

    Arrays travel as raw bytes, one Flower ``Array`` per bucket, in the order of the list.
    """
    config, spec, record = identity.resolve(message, context)
    with _naming(spec), told(spec.id, context, f"training ({spec.role}, domain {spec.domain})"):
        buckets, count, metrics = make(config, spec, threads(record, config)).fit(
            _buckets(message), dict(record)
        )
    numbers, info = _split(metrics)
    content: dict[str, Any] = {
        protocol.ARRAYS: _arrays(buckets),
        protocol.METRICS: MetricRecord({"num-examples": count, **numbers}),
        protocol.INFO: ConfigRecord(info),
    }
    return Message(RecordDict(content), reply_to=message)


class ClientError(Exception):
    """What a client could not do; names the client."""


@contextlib.contextmanager
def _naming(spec: ClientSpec) -> Iterator[None]:
    """Name the client in whatever is raised inside: Flower keeps only an error's text."""
    who = f"client {spec.id!r}"
    try:
        yield
    except Exception as error:
        text = str(error)
        raise ClientError(f"{type(error).__name__}: {text if who in text else f'{who}: {text}'}") from error


def _buckets(message: Message) -> list[Bucket]:
    record = protocol.record_in(message.content, protocol.ARRAYS, ArrayRecord) or ArrayRecord()
    return [np.frombuffer(array.data, np.uint8) for array in record.values()]


def _arrays(buckets: Sequence[Bucket]) -> ArrayRecord:
    return ArrayRecord({f"{i:05d}": Array("uint8", b.shape, RAW, b.tobytes()) for i, b in enumerate(buckets)})


def threads(record: Mapping[str, Any], config: RunConfig) -> int | None:
    """Return a simulated client's share of the CPUs; a deployed one has its machine to itself."""
    return config.simulation.cpus_per_client if record.get(protocol.CLIENT) else None


def _split(metrics: Mapping[str, Any]) -> tuple[dict[str, int | float], dict[str, Any]]:
    """Separate numbers, which a MetricRecord holds, from text, which it does not."""
    numbers: dict[str, int | float] = {}
    texts: dict[str, Any] = {}
    for key, value in metrics.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            numbers[key] = value
        else:
            texts[key] = value
    return numbers, texts
