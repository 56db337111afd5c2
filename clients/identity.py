"""Which client a message is for, and what a node says of itself."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from flwr.app import Context, Message

from fedforget import protocol
from fedforget.config import ClientSpec, RunConfig
from fedforget.errors import RunError
from fedforget.presets import from_yaml

_KEYS = ("client-id", "role", "domain", "data", "shard", "num-shards", "max-examples")


def request(message: Message) -> tuple[RunConfig, ClientSpec | None, Mapping[str, Any]]:
    """Read a request: the run's configuration, the client it names if any, and the whole record.

    Raises
    ------
    RunError
        The message carries no configuration.
    ConfigError
        The configuration is not one that this version reads.
    """
    record = message.content.config_records.get(protocol.CONFIG)
    if record is None or not isinstance(record.get(protocol.RUN_CONFIG), str):
        raise RunError(
            "the message carries no run configuration; does the server run this version of fedforget?"
        )
    config = _parsed(str(record[protocol.RUN_CONFIG]))
    text = record.get(protocol.CLIENT)
    return config, protocol.spec_from_json(str(text)) if text else None, record


@functools.lru_cache(maxsize=2)
def _parsed(text: str) -> RunConfig:
    """Read a configuration; clients of one run in one process share it and leave it as it is."""
    return from_yaml(text, source="the server's configuration")


def declared(context: Context) -> ClientSpec | None:
    """Return the client that a deployed node declares in its node configuration.

    ``client-id``, ``role`` and ``domain`` are required together; ``data`` is the node's own
    JSONL file, and ``shard``, ``num-shards`` and ``max-examples`` are optional. A simulated node
    declares none.

    Raises
    ------
    RunError
        The declaration is incomplete or holds an unusable value.
    """
    node: Mapping[str, Any] = context.node_config
    given = [key for key in _KEYS if key in node]
    if not given:
        return None
    missing = [key for key in ("client-id", "role", "domain") if not str(node.get(key, ""))]
    if missing:
        raise RunError(
            f"node {context.node_id}: its node configuration gives {', '.join(given)} but no {missing[0]}; "
            'start the SuperNode with --node-config \'client-id="..." role="..." domain="..."\''
        )
    numbers = {}
    for key, default in (("shard", 0), ("num-shards", 1), ("max-examples", 0)):
        value = node.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < (1 if key == "num-shards" else 0):
            raise RunError(
                f"client {node['client-id']!r}: {key} in its node configuration is {value!r}, not a count"
            )
        numbers[key] = value
    if numbers["shard"] >= numbers["num-shards"]:
        raise RunError(
            f"client {node['client-id']!r}: shard {numbers['shard']} of {numbers['num-shards']}; "
            "shards count from 0"
        )
    return ClientSpec(
        id=str(node["client-id"]),
        role=str(node["role"]),
        domain=str(node["domain"]),
        shard=numbers["shard"],
        num_shards=numbers["num-shards"],
        path=str(node.get("data", "")),
        max_examples=numbers["max-examples"],
        retain_domain=str(node.get("retain-domain", "")),
    )


def resolve(message: Message, context: Context) -> tuple[RunConfig, ClientSpec, Mapping[str, Any]]:
    """Return the configuration and the client that a train or evaluate message is for.

    A client named in the message is taken as it is, and the node's own declaration is ignored
    as a whole: merging the two would lend one client's domain or data to another.

    Raises
    ------
    RunError
        Neither the message nor the node says which client this is.
    """
    config, spec, record = request(message)
    spec = spec or declared(context)
    if spec is None:
        raise RunError(
            f"node {context.node_id}: neither the message nor the node's configuration names a client"
        )
    return config, spec, record
