"""The nodes behind the clients: waiting for them, asking who they are, and refusing those that do not fit."""

from __future__ import annotations

import time
from collections.abc import Mapping
from logging import INFO, WARNING
from pathlib import Path

import yaml
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from fedforget import protocol
from fedforget.config import DeploymentConfig
from fedforget.errors import RunError, nearest
from fedforget.presets import AnyConfig, to_yaml
from fedforget.protocol import Description
from strategies.dispatch import Task, dispatch


def wait_for_nodes(grid: Grid, count: int, timeout: float, poll: float = 0.5) -> list[int]:
    """Return the ids of the connected nodes once there are ``count`` of them.

    Raises
    ------
    RunError
        Fewer have connected within ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    told = None
    while True:
        nodes = sorted(grid.get_node_ids())
        if len(nodes) >= count:
            return nodes
        if told != len(nodes):
            told = len(nodes)
            log(INFO, "Waiting for nodes: %d of %d are connected", told, count)
        if time.monotonic() >= deadline:
            raise RunError(
                f"{len(nodes)} of {count} nodes connected within {timeout:g} s; "
                "start the missing SuperNodes, or lower simulation.nodes"
            )
        time.sleep(poll)


def describe(
    grid: Grid, nodes: list[int], config: AnyConfig, *, timeout: float, poll: float = 0.2
) -> tuple[dict[int, Description], dict[str, str]]:
    """Ask every node who it is.

    Returns
    -------
    descriptions : dict of int to Description
        By node id.
    failed : dict of str to str
        Why a node did not answer, or not with a description, by ``"node <id>"``.
    """
    found: dict[int, Description] = {}
    text = to_yaml(config)

    def keep(key: str, reply: Message) -> None:
        info = protocol.record_in(reply.content, protocol.INFO, ConfigRecord)
        if info is None:
            raise RunError(f"{key} answered without a description; does it run this version of fedforget?")
        found[reply.metadata.src_node_id] = Description.from_properties(info)

    tasks = [
        Task(
            f"node {node}",
            Message(
                RecordDict({protocol.CONFIG: ConfigRecord({protocol.RUN_CONFIG: text})}),
                dst_node_id=node,
                message_type=protocol.DESCRIBE,
                group_id="describe",
            ),
        )
        for node in nodes
    ]
    log(INFO, "Asking %d nodes who they are", len(tasks))
    return found, dispatch(grid, tasks, keep, timeout=timeout, poll=poll)


def check_compatible(descriptions: Mapping[int, Description], fingerprint: str) -> None:
    """Refuse nodes whose numbers could not be merged with the others'.

    Parameters
    ----------
    descriptions : mapping of node id to Description
    fingerprint : str
        The server's own backbone's.

    Raises
    ------
    RunError
        A node has another backbone or another version of fedforget.
    """
    here = protocol.installed()
    for node, description in sorted(descriptions.items()):
        who = _who(node, description)
        if description.fingerprint != fingerprint:
            raise RunError(
                f"{who} has the backbone {description.fingerprint}, the server has {fingerprint}; "
                "use the same weights and model section on every node"
            )
        if description.versions.get("fedforget") != here["fedforget"]:
            raise RunError(
                f"{who} runs fedforget {description.versions.get('fedforget')}, "
                f"the server {here['fedforget']}; install the same version on every node"
            )
        for package, version in here.items():
            if description.versions.get(package) != version:
                log(
                    WARNING,
                    "%s has %s %s, the server %s",
                    who,
                    package,
                    description.versions.get(package),
                    version,
                )


def check_nodes(descriptions: Mapping[int, Description], deployment: DeploymentConfig) -> None:
    """Refuse a node that declares another node's client.

    With node authentication a node's id belongs to its key for as long as that is registered, so that the
    list ties a client to a key.

    Parameters
    ----------
    descriptions : mapping of node id to Description
    deployment : DeploymentConfig
        Where it lists nothing, every node may declare any client.

    Raises
    ------
    RunError
        A client that the list does not have, or has with another node; or the list cannot be read.
    """
    allowed = deployment.nodes
    if deployment.nodes_file:
        allowed = _listed(Path(deployment.nodes_file))
    elif not allowed:
        return
    where = deployment.nodes_file or "deployment.nodes"
    for node, description in sorted(descriptions.items()):
        name = description.client_id
        if name not in allowed:
            raise RunError(
                f"node {node} declares the client {name!r}, which {where} does not list"
                f"{nearest(name, allowed)}; add it there, or unregister the node"
            )
        if allowed[name] != node:
            raise RunError(
                f"client {name!r} is declared by node {node}, and {where} has node "
                f"{allowed[name]} for it; another key claims to be this client: unregister that node"
            )


def _listed(path: Path) -> dict[str, int]:
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise RunError(f"deployment.nodes_file: {path} cannot be read ({error})") from error
    if not isinstance(found, dict) or not all(type(node) is int for node in found.values()):
        raise RunError(f"deployment.nodes_file: {path} is not a list of `client: node id`")
    return {str(name): node for name, node in found.items()}


def _who(node: int, description: Description) -> str:
    return f"client {description.client_id!r}" if description.client_id else f"node {node}"
