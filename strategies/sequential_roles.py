"""Which node trains which client of a FedSGT run, and what slices the clients declare."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from logging import INFO

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log
from numpy.typing import NDArray

from fedforget import protocol
from fedforget.data.holdings import client_names
from fedforget.errors import RunError, nearest
from fedforget.presets import to_yaml
from fedforget.protocol import Description
from fedforget.sequences import Slice
from fedforget.sequential import protocol as words
from fedforget.sequential.config import SequentialRunConfig
from strategies.dispatch import Task, dispatch, raise_failures
from strategies.nodes import check_compatible, check_nodes, describe, wait_for_nodes

Embeddings = dict[tuple[str, int], NDArray[np.float64]]


@dataclass(frozen=True)
class Declared:
    """What the clients declare: slices, their mean embeddings, and who has data of its own."""

    slices: list[Slice]
    embeddings: Embeddings
    own_data: list[str]


def discover_clients(
    grid: Grid,
    config: SequentialRunConfig,
    fingerprint: str,
    *,
    timeout: float,
    poll: float = 0.2,
    wait: Callable[[Grid, int, float, float], list[int]] = wait_for_nodes,
    departed: Collection[str] = (),
) -> dict[str, int]:
    """Wait for the nodes, check that they can take part, and give every client its node.

    Clients in ``departed`` have nothing left in the run, and may be gone.

    Returns
    -------
    dict of str to int
        Node id by client id, ordered by client id.

    Raises
    ------
    RunError
        A node is missing, has another backbone or version, or the declared clients do not fit; see
        also :func:`strategies.nodes.check_nodes`.
    """
    nodes = wait(grid, max(1, config.simulation.nodes - len(departed)), timeout, poll)
    descriptions, failed = describe(grid, nodes, config, timeout=timeout, poll=poll)
    raise_failures(failed, "asking the nodes for their clients")
    check_compatible(descriptions, fingerprint)
    check_nodes(descriptions, config.deployment)
    clients = place(descriptions, client_names(config.data), departed)
    log(INFO, "%d clients on %d nodes", len(clients), len(descriptions))
    return clients


def place(
    descriptions: Mapping[int, Description], names: Sequence[str], departed: Collection[str] = ()
) -> dict[str, int]:
    """Map clients onto nodes.

    A deployed node declares its client (``client-id``). Simulated nodes declare none, and the
    clients go round them in the order of their partition ids.

    Raises
    ------
    RunError
        No node; a client that two nodes declare, that is not one of the run's, or that is not there.
    """
    if not descriptions:
        raise RunError("no node is connected; start at least one SuperNode")
    if not any(d.client_id for d in descriptions.values()):
        order = sorted(descriptions, key=lambda node: (descriptions[node].partition, node))
        return {name: order[i % len(order)] for i, name in enumerate(sorted(names))}
    found: dict[str, int] = {}
    for node, description in sorted(descriptions.items()):
        name = description.client_id
        if not name:
            raise RunError(
                f"node {node} declares no client while others do; "
                "start it with --node-config 'client-id=\"...\"'"
            )
        if name in found:
            raise RunError(
                f"client id {name!r} is declared by the nodes {[found[name], node]}; "
                "give each node its own client-id"
            )
        if name not in names:
            raise RunError(
                f"node {node} declares the client {name!r}, which is not in this run{nearest(name, names)}; "
                f"data.clients is {len(names)}"
            )
        found[name] = node
    absent = sorted(set(names) - set(found) - set(departed))
    if absent:
        raise RunError(
            f"{len(absent)} of {len(names)} clients are not connected: {', '.join(absent)}; "
            "start their SuperNodes, or lower data.clients"
        )
    return dict(sorted(found.items()))


def ask_slices(
    grid: Grid,
    clients: Mapping[str, int],
    config: SequentialRunConfig,
    run_id: str,
    *,
    without: Mapping[str, words.Without] | None = None,
    embeddings: bool = False,
    timeout: float,
    poll: float = 0.2,
) -> Declared:
    """Ask every client for its slices: numbers and sizes, and mean embeddings where they are wanted.

    Raises
    ------
    RunError
        A client does not answer, or declares what cannot be; names each and why.
    """
    slices: list[Slice] = []
    points: Embeddings = {}
    own: list[str] = []

    def keep(name: str, reply: Message) -> None:
        info = protocol.record_in(reply.content, protocol.INFO, ConfigRecord) or ConfigRecord()
        declared = words.slices_from_json(str(info.get(words.DECLARED)), name)
        if embeddings:
            vectors = _vectors(str(info.get(words.EMBEDDINGS)))
            lacking = [item.slice_id for item in declared if item.slice_id not in vectors]
            if lacking:
                raise RunError(f"it sent no embedding of its slice {lacking[0]}")
            points.update({(name, item.slice_id): vectors[item.slice_id] for item in declared})
        if not declared:
            raise RunError("it has no records; give it data, or lower data.clients")
        if info.get(words.OWN):
            own.append(name)
        slices.extend(declared)

    text = to_yaml(config)
    tasks = [
        Task(
            name,
            request(
                node,
                words.SLICES,
                "slices",
                text,
                name,
                run_id,
                (without or {}).get(name, {}),
                {words.EMBEDDINGS: embeddings},
            ),
        )
        for name, node in clients.items()
    ]
    log(INFO, "Asking %d clients for their slices", len(tasks))
    failed = dispatch(grid, tasks, keep, timeout=timeout, poll=poll)
    raise_failures(failed, "asking the clients for their slices")
    return Declared(sorted(slices), points, sorted(own))


def request(
    node: int,
    kind: str,
    group: str,
    text: str,
    client_id: str,
    run_id: str,
    without: words.Without,
    further: Mapping[str, str | int | bool],
) -> Message:
    """Return a message to one client of a FedSGT run."""
    record = ConfigRecord(
        {
            protocol.RUN_CONFIG: text,
            words.CLIENT_ID: client_id,
            words.RUN_ID: run_id,
            words.WITHOUT: words.without_to_json(without),
            **further,
        }
    )
    return Message(RecordDict({protocol.CONFIG: record}), dst_node_id=node, message_type=kind, group_id=group)


def _vectors(text: str) -> dict[int, NDArray[np.float64]]:
    try:
        found = {int(i): np.asarray(vector, dtype=np.float64) for i, vector in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise RunError(f"its embeddings cannot be read ({type(error).__name__})") from error
    return found
