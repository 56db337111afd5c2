"""Which client a message is for, and what a node says of itself."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from flwr.app import ConfigRecord, Context, Message

from fedforget import protocol
from fedforget.client_specs import ClientSpec
from fedforget.config import RunConfig
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
    record = run_record(message)
    config = _parsed(str(record[protocol.RUN_CONFIG]))
    text = record.get(protocol.CLIENT)
    return config, protocol.spec_from_json(str(text)) if text else None, record


def run_record(message: Message) -> ConfigRecord:
    """Return what a message says beside its arrays, with the run's configuration as YAML in it.

    Raises
    ------
    RunError
        The message carries no configuration.
    """
    record = protocol.record_in(message.content, protocol.CONFIG, ConfigRecord)
    if record is None or not isinstance(record.get(protocol.RUN_CONFIG), str):
        raise RunError(
            "the message carries no run configuration; does the server run this version of fedforget?"
        )
    return record


@functools.lru_cache(maxsize=2)
def _parsed(text: str) -> RunConfig:
    """Read a configuration; clients of one run in one process share it and leave it as it is."""
    return from_yaml(text, source="the server's configuration")


def declared(context: Context) -> list[ClientSpec]:
    """Return the clients that a deployed node declares in its node configuration.

    ``client-id``, ``role`` and ``domain`` are required together; ``data`` is the node's own
    JSONL file, and ``shard``, ``num-shards`` and ``max-examples`` are optional. A simulated node
    declares none. A node with data of several roles or domains lists them, with commas in ``role``,
    ``domain`` and, where the files differ, ``data``; each is then a client of its own, named
    ``<client-id>-<role>-<domain>``, and sends a summary of its own.

    Raises
    ------
    RunError
        The declaration is incomplete or holds an unusable value.
    """
    node: Mapping[str, Any] = context.node_config
    given = [key for key in _KEYS if key in node]
    if not given:
        return []
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
    name = str(node["client-id"])
    roles, domains = _listed(node["role"]), _listed(node["domain"])
    paths = _listed(node.get("data", ""))
    if len(domains) != len(roles) or len(paths) not in (1, len(roles)):
        raise RunError(
            f"client {name!r}: its node configuration lists {len(roles)} roles, {len(domains)} domains and "
            f"{len(paths)} data files; give as many domains as roles, and one data file or as many"
        )
    paths = paths * len(roles) if len(paths) == 1 else paths
    return [
        ClientSpec(
            id=name if len(roles) == 1 else f"{name}-{role}-{domain}",
            role=role,
            domain=domain,
            shard=numbers["shard"],
            num_shards=numbers["num-shards"],
            path=path,
            max_examples=numbers["max-examples"],
            retain_domain=str(node.get("retain-domain", "")) if role == "forget" else "",
        )
        for role, domain, path in zip(roles, domains, paths, strict=True)
    ]


def _listed(value: Any) -> list[str]:
    return [word.strip() for word in str(value).split(",")]


def resolve(message: Message, context: Context) -> tuple[RunConfig, ClientSpec, Mapping[str, Any]]:
    """Return the configuration and the client that a train or evaluate message is for.

    A client named in the message is taken as it is, and the node's own declaration is ignored
    as a whole: merging the two would lend one client's domain or data to another.

    Raises
    ------
    RunError
        Neither the message nor the node says which client this is, or the message is for a client that
        the node does not declare.
    """
    config, spec, record = request(message)
    if spec is not None:
        return config, spec, record
    own = declared(context)
    if not own:
        raise RunError(
            f"node {context.node_id}: neither the message nor the node's configuration names a client"
        )
    name = str(record.get(protocol.DECLARED, own[0].id))
    for one in own:
        if one.id == name:
            return config, one, record
    raise RunError(
        f"node {context.node_id} declares {', '.join(repr(one.id) for one in own)}, and the message is for "
        f"client {name!r}; was its node configuration changed during the run?"
    )
