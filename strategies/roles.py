"""Who is there, and which node trains which client."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from logging import INFO, WARNING

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from fedforget import protocol
from fedforget.config import ClientSpec, RunConfig, expand_clients
from fedforget.errors import RunError, nearest
from fedforget.presets import AnyConfig, to_yaml
from fedforget.protocol import Description
from fedforget.summaries import is_client_id
from strategies.dispatch import Task, dispatch, raise_failures


@dataclass(frozen=True)
class Assignment:
    """One logical client and the node that trains it.

    Attributes
    ----------
    spec : ClientSpec
    node_id : int
    declared : bool
        The node declares this client itself; otherwise the message says who it is.
    """

    spec: ClientSpec
    node_id: int
    declared: bool = False


def wait_for_nodes(grid: Grid, count: int, timeout: float, poll: float = 0.5) -> list[int]:
    """Return the ids of the connected nodes once there are ``count`` of them.

    Raises
    ------
    RunError
        Fewer have connected within ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        nodes = sorted(grid.get_node_ids())
        if len(nodes) >= count:
            return nodes
        if time.monotonic() >= deadline:
            raise RunError(
                f"{len(nodes)} of {count} nodes connected within {timeout:g} s; "
                "start the missing SuperNodes, or lower simulation.nodes"
            )
        time.sleep(poll)


def describe(
    grid: Grid, nodes: list[int], config: AnyConfig, *, timeout: float, poll: float = 0.2
) -> dict[int, Description]:
    """Ask every node who it is.

    Raises
    ------
    RunError
        A node does not answer, or not with a description.
    """
    found: dict[int, Description] = {}
    text = to_yaml(config)

    def keep(key: str, reply: Message) -> None:
        info = reply.content.config_records.get(protocol.INFO)
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
    raise_failures(
        dispatch(grid, tasks, keep, timeout=timeout, poll=poll), "asking the nodes for their roles"
    )
    return found


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


def assign(descriptions: Mapping[int, Description], config: RunConfig) -> list[Assignment]:
    """Map logical clients onto nodes.

    Deployed nodes declare their client (``client-id``, ``role``, ``domain``) and train that one.
    Simulated nodes declare none: the configuration's clients go round them in the order of their
    partition ids, several to a node where there are more clients than nodes.

    Returns
    -------
    list of Assignment
        Ordered by client id.

    Raises
    ------
    RunError
        No node; two nodes declare one client id; only some declare a client; a role or domain
        that the configuration asks for is not there, or one it does not know is.
    """
    if not descriptions:
        raise RunError("no node is connected; start at least one SuperNode")
    declared = {node: d.client for node, d in descriptions.items() if d.client is not None}
    if not declared:
        order = sorted(descriptions, key=lambda node: (descriptions[node].partition, node))
        specs = expand_clients(config.clients)
        return [Assignment(spec, order[i % len(order)]) for i, spec in enumerate(specs)]
    silent = sorted(set(descriptions) - set(declared))
    if silent:
        raise RunError(
            f"node {silent[0]} declares no client while others do; start it with "
            '--node-config \'client-id="..." role="..." domain="..."\''
        )
    _check_declared(declared, config)
    found = [Assignment(spec, node, declared=True) for node, spec in declared.items()]
    return sorted(found, key=lambda a: a.spec.id)


def _check_declared(declared: Mapping[int, ClientSpec], config: RunConfig) -> None:
    ids = Counter(spec.id for spec in declared.values())
    twice = sorted(name for name, count in ids.items() if count > 1)
    if twice:
        nodes = sorted(node for node, spec in declared.items() if spec.id == twice[0])
        raise RunError(
            f"client id {twice[0]!r} is declared by the nodes {nodes}; give each node its own client-id"
        )
    wanted = Counter({(g.role, g.domain): g.count for g in config.clients})
    present = Counter((spec.role, spec.domain) for spec in declared.values())
    for spec in sorted(declared.values(), key=lambda s: s.id):
        if (spec.role, spec.domain) not in wanted:
            known = [f"{role} {domain}" for role, domain in wanted]
            raise RunError(
                f"client {spec.id!r} declares role {spec.role!r} and domain {spec.domain!r}, which no group "
                f"of the configuration's clients has{nearest(f'{spec.role} {spec.domain}', known)}; "
                f"groups: {', '.join(sorted(known))}"
            )
    for (role, domain), count in sorted(wanted.items()):
        if present[role, domain] < count:
            raise RunError(
                f"{role} domain {domain!r} has {present[role, domain]} of its {count} clients; "
                "start the missing nodes, or lower the group's count"
            )


def check_roles(assignments: list[Assignment], config: RunConfig) -> None:
    """Check that the clients that are there can do what the configuration asks for.

    Raises
    ------
    RunError
        No forget client, or a finite budget without a retain client to protect.
    """
    roles = {a.spec.role for a in assignments}
    if "forget" not in roles:
        raise RunError("no connected client has the role 'forget'; there is nothing to unlearn")
    finite = config.merge.epsilon < float("inf") or config.merge.epsilon_fraction > 0
    if finite and "retain" not in roles:
        raise RunError(
            "merge.epsilon is finite and no connected client has the role 'retain'; "
            "start one, or set merge.epsilon=inf for FIRM-base"
        )


def discover(
    grid: Grid,
    config: RunConfig,
    fingerprint: str,
    *,
    timeout: float,
    poll: float = 0.2,
    wait: Callable[[Grid, int, float, float], list[int]] = wait_for_nodes,
) -> list[Assignment]:
    """Wait for the nodes, ask them who they are, and assign every logical client to one.

    Raises
    ------
    RunError
        See :func:`wait_for_nodes`, :func:`describe`, :func:`check_compatible` and :func:`assign`.
    """
    nodes = wait(grid, config.simulation.nodes, timeout, poll)
    descriptions = describe(grid, nodes, config, timeout=timeout, poll=poll)
    check_compatible(descriptions, fingerprint)
    assignments = assign(descriptions, config)
    for a in assignments:
        if not is_client_id(a.spec.id):
            raise RunError(
                f"client id {a.spec.id!r} is not 1 to 128 letters, digits, '.', '_' or '-', "
                "starting with a letter or digit; rename the client or its domain"
            )
    check_roles(assignments, config)
    log(INFO, "%d clients on %d nodes:", len(assignments), len(descriptions))
    for a in assignments:
        log(INFO, "\t%s (%s, domain %s) on node %d", a.spec.id, a.spec.role, a.spec.domain, a.node_id)
    return assignments


def _who(node: int, description: Description) -> str:
    name = description.client.id if description.client else description.client_id
    return f"client {name!r}" if name else f"node {node}"
