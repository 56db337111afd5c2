"""Who is there, and which node trains which client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from logging import INFO, WARNING

from flwr.serverapp import Grid
from flwr.supercore import log

from fedforget import quorum
from fedforget.client_specs import ClientSpec, expand_clients
from fedforget.codecs import Instruction
from fedforget.config import RunConfig
from fedforget.errors import RunError, nearest
from fedforget.protocol import Description
from fedforget.summaries import is_client_id
from strategies.dispatch import raise_failures
from strategies.nodes import check_compatible, check_nodes, describe, wait_for_nodes

GONE = 0
"""In place of the node of a client that has delivered and is not connected; no node has this id."""


@dataclass(frozen=True)
class Assignment:
    """One logical client and the node that trains it.

    Attributes
    ----------
    spec : ClientSpec
    node_id : int
    declared : bool
        The node declares this client itself; otherwise the message says who it is.
    codecs : tuple of str
        What the node can send a Fisher in.
    """

    spec: ClientSpec
    node_id: int
    declared: bool = False
    codecs: tuple[str, ...] = ()


def assign(
    descriptions: Mapping[int, Description], config: RunConfig, delivered: Iterable[ClientSpec] = ()
) -> list[Assignment]:
    """Map logical clients onto nodes.

    Deployed nodes declare their client (``client-id``, ``role``, ``domain``) and train that one.
    Simulated nodes declare none: the configuration's clients go round them in the order of their
    partition ids, several to a node where there are more clients than nodes.

    Parameters
    ----------
    descriptions : mapping of node id to Description
    config : RunConfig
    delivered : iterable of ClientSpec
        Clients whose summaries the run has already; as declared ones they need not be connected.

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
    declared = {node: d.clients for node, d in descriptions.items() if d.clients}
    if not declared:
        order = sorted(descriptions, key=lambda node: (descriptions[node].partition, node))
        placed = [(spec, order[i % len(order)]) for i, spec in enumerate(expand_clients(config.clients))]
        return [Assignment(spec, node, codecs=descriptions[node].codecs) for spec, node in placed]
    silent = sorted(set(descriptions) - set(declared))
    if silent:
        raise RunError(
            f"node {silent[0]} declares no client while others do; start it with "
            '--node-config \'client-id="..." role="..." domain="..."\''
        )
    found = [
        Assignment(spec, node, declared=True, codecs=descriptions[node].codecs)
        for node, specs in declared.items()
        for spec in specs
    ]
    names = {a.spec.id for a in found}
    found += [Assignment(spec, GONE, declared=True) for spec in delivered if spec.id not in names]
    _check_declared(found, config)
    return sorted(found, key=lambda a: a.spec.id)


def _check_declared(found: list[Assignment], config: RunConfig) -> None:
    ids = Counter(a.spec.id for a in found)
    twice = sorted(name for name, count in ids.items() if count > 1)
    if twice:
        nodes = sorted(a.node_id for a in found if a.spec.id == twice[0])
        raise RunError(
            f"client id {twice[0]!r} is declared by the nodes {nodes}; give each node its own client-id"
        )
    wanted = Counter({(g.role, g.domain): g.count for g in config.clients})
    specs = [a.spec for a in found]
    present = Counter((spec.role, spec.domain) for spec in specs)
    for spec in sorted(specs, key=lambda s: s.id):
        if (spec.role, spec.domain) not in wanted:
            known = [f"{role} {domain}" for role, domain in wanted]
            raise RunError(
                f"client {spec.id!r} declares role {spec.role!r} and domain {spec.domain!r}, which no group "
                f"of the configuration's clients has{nearest(f'{spec.role} {spec.domain}', known)}; "
                f"groups: {', '.join(sorted(known))}"
            )
    if quorum.is_partial(config.quorum):
        short = quorum.shortfalls(config.quorum, config.clients, specs)
        if short:
            raise RunError(f"{'; '.join(short)}; start the missing nodes")
        return
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


def check_codecs(assignments: Iterable[Assignment], asked: Mapping[str, Instruction]) -> None:
    """Refuse a client that cannot send its Fisher as it will be asked to.

    Raises
    ------
    RunError
        Names the client, the codec and those that it has.
    """
    for a in assignments:
        codec = asked[a.spec.id].codec
        if a.node_id != GONE and codec not in a.codecs:
            raise RunError(
                f"client {a.spec.id!r} cannot send its Fisher as {codec!r}, only as {', '.join(a.codecs)}; "
                "install the server's version of fedforget there, or set communication.fisher=raw"
            )


def discover(
    grid: Grid,
    config: RunConfig,
    fingerprint: str,
    *,
    timeout: float,
    poll: float = 0.2,
    wait: Callable[[Grid, int, float, float], list[int]] = wait_for_nodes,
    delivered: Collection[ClientSpec] = (),
) -> tuple[list[Assignment], dict[str, str]]:
    """Wait for the nodes, ask them who they are, and assign every logical client to one.

    Returns
    -------
    assignments : list of Assignment
    silent : dict of str to str
        Nodes that gave no description, and why, and clients that are not there, by role and domain, where
        the quorum allows that; empty otherwise.

    Raises
    ------
    RunError
        See :func:`wait_for_nodes`, :func:`check_compatible`, :func:`check_nodes` and :func:`assign`.
    """
    nodes = wait(grid, max(1, config.simulation.nodes - len(delivered)), timeout, poll)
    descriptions, silent = describe(grid, nodes, config, timeout=timeout, poll=poll)
    if not quorum.is_partial(config.quorum):
        raise_failures(silent, "asking the nodes for their roles")
    check_compatible(descriptions, fingerprint)
    check_nodes(descriptions, config.deployment)
    assignments = assign(descriptions, config, delivered)
    if any(a.declared for a in assignments):
        silent = {**silent, **quorum.absent(config.clients, [a.spec for a in assignments])}
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
    return assignments, silent


def without_failed(
    config: RunConfig, assignments: Iterable[Assignment], failed: Mapping[str, str]
) -> list[Assignment]:
    """Return the clients that a round goes on with, where the quorum allows that.

    Parameters
    ----------
    config : RunConfig
    assignments : iterable of Assignment
    failed : mapping of str to str
        Why a client failed, by client id.

    Raises
    ------
    RunError
        It does not; names every client that failed, and why.
    """
    left = [a for a in assignments if a.spec.id not in failed]
    if not failed:
        return left
    what = "the round cannot be completed"
    if quorum.is_partial(config.quorum):
        short = quorum.shortfalls(config.quorum, config.clients, [a.spec for a in left])
        if not short:
            for name, reason in sorted(failed.items()):
                log(WARNING, "\t%s is left out: %s", name, reason, extra={"client": name})
            return left
        what = f"{what}: {'; '.join(short)}"
    raise_failures(dict(failed), what)
    return left
