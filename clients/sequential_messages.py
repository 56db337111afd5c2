"""FedSGT's messages on the client's side: what they ask of a SequentialClient, and the replies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from clients.identity import run_record
from clients.progress import told
from fedforget import protocol
from fedforget.codecs import RAW
from fedforget.errors import FedForgetError, RunError
from fedforget.presets import from_yaml_sequential
from fedforget.sequential import protocol as words
from fedforget.sequential.config import KIND, SequentialRunConfig

# Imported where it is used: FIRM's clients need none of its models.
if TYPE_CHECKING:
    from clients.sequential import SequentialClient


class SequentialClientError(Exception):
    """What a client could not do; names the client."""


def concerns(message: Message) -> bool:
    """Tell whether a message's configuration is that of a FedSGT run."""
    record = protocol.record_in(message.content, protocol.CONFIG, ConfigRecord) or ConfigRecord()
    try:
        raw = yaml.safe_load(str(record.get(protocol.RUN_CONFIG, "")))
    except yaml.YAMLError:
        return False
    return isinstance(raw, dict) and raw.get("kind") == KIND


def describe(message: Message, context: Context) -> Message:
    """Say who this node is; a deployed node declares its client id, a simulated one its number."""
    from clients.sequential import describe_sequential

    config, _ = _request(message)
    partition = int(context.node_config.get("partition-id", -1))
    declared = str(context.node_config.get("client-id", ""))
    if context.node_config.get("data") and not declared:
        raise RunError(
            f"node {context.node_id}: its node configuration gives data but no client-id; "
            'start the SuperNode with --node-config \'client-id="..." data="/path"\''
        )
    description = describe_sequential(config, partition, declared)
    return Message(
        RecordDict({protocol.INFO: ConfigRecord(dict(description.to_properties()))}), reply_to=message
    )


def slices(message: Message, context: Context) -> Message:
    """Declare the client's slices, with their embeddings where they are asked for."""
    with _client(message, context) as (client, record):
        properties = client.get_properties(dict(record))
    return Message(RecordDict({protocol.INFO: ConfigRecord(properties)}), reply_to=message)


def train(message: Message, context: Context) -> Message:
    """Train the client's share of a round; modules travel as raw bytes, one array each."""
    from clients.sequential import SequentialClient

    return _fit(message, context, SequentialClient)


def ascend(message: Message, context: Context) -> Message:
    """Unlearn by gradient ascent."""
    from clients.ascent import AscentClient

    return _fit(message, context, AscentClient)


def _fit(message: Message, context: Context, make: type[SequentialClient]) -> Message:
    arrays = protocol.record_in(message.content, protocol.ARRAYS, ArrayRecord) or ArrayRecord()
    with _client(message, context, make) as (client, record), told(client.client_id, context, "training"):
        modules = [np.frombuffer(array.data, np.uint8) for array in arrays.values()]
        buckets, count, metrics = client.fit(modules, dict(record))
    seconds = float(metrics.pop("train-seconds", 0.0))
    sent = {f"{i:05d}": Array("uint8", b.shape, RAW, b.tobytes()) for i, b in enumerate(buckets)}
    content: dict[str, Any] = {
        protocol.ARRAYS: ArrayRecord(sent),
        protocol.METRICS: MetricRecord({"num-examples": count, "train-seconds": seconds}),
        protocol.INFO: ConfigRecord(metrics),
    }
    return Message(RecordDict(content), reply_to=message)


def release(message: Message, context: Context) -> Message:
    """Drop what the client cached for the run."""
    with _client(message, context) as (client, _):
        client.release()
    return Message(RecordDict({protocol.INFO: ConfigRecord()}), reply_to=message)


@contextlib.contextmanager
def _client(
    message: Message, context: Context, make: type[SequentialClient] | None = None
) -> Iterator[tuple[SequentialClient, Mapping[str, Any]]]:
    """Make the client that a message is for, and name it in whatever is raised inside."""
    from clients.sequential import SequentialClient

    config, record = _request(message)
    name = str(record.get(words.CLIENT_ID, ""))
    declared = str(context.node_config.get("client-id", ""))
    if declared and declared != name:
        raise RunError(f"node {context.node_id} holds the data of client {declared!r}, not of {name!r}")
    who = f"client {name!r}"
    try:
        without = words.without_from_json(str(record.get(words.WITHOUT, "{}")))
        data = str(context.node_config.get("data", ""))
        yield (
            (make or SequentialClient)(config, name, str(record.get(words.RUN_ID, "")), without, data),
            record,
        )
    except Exception as error:
        text = str(error)
        kind = "" if isinstance(error, FedForgetError) else f"{type(error).__name__}: "
        raise SequentialClientError(f"{kind}{text if who in text else f'{who}: {text}'}") from error


def _request(message: Message) -> tuple[SequentialRunConfig, Mapping[str, Any]]:
    record = run_record(message)
    config = from_yaml_sequential(str(record[protocol.RUN_CONFIG]), source="the server's configuration")
    return config, record
