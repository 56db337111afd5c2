"""The prefix tree trained in this process: the oracle of the federated run, and of ``fedforget verify``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from torch import Tensor

from fedforget.data.corpora import load_corpus
from fedforget.data.holdings import ClientRecords, client_records
from fedforget.errors import PlanError, TrainingError
from fedforget.sequential.averaging import FedAvg
from fedforget.sequential.classifiers import load_classifier
from fedforget.sequential.config import SequentialRunConfig
from fedforget.sequential.modules import PrefixModule
from fedforget.sequential.plan import Prefix, SequentialPlan
from fedforget.sequential.stack import ModuleStack
from fedforget.sequential.training import client_seed, initial_seed, train_locally

SliceKey = tuple[str, int]
Without = Mapping[SliceKey, Collection[str] | None]
"""(client, slice) -> the records deleted from it; None for all of them."""


def train_sequences_locally(
    config: SequentialRunConfig,
    plan: SequentialPlan,
    *,
    prefixes: Iterable[Prefix] | None = None,
    without: Without | None = None,
    data: Mapping[str, ClientRecords] | None = None,
    stack: ModuleStack | None = None,
    on_module: Callable[[PrefixModule], None] | None = None,
) -> dict[Prefix, PrefixModule]:
    """Train modules as a federated run does, with every client in this process.

    Parameters
    ----------
    config : SequentialRunConfig
    plan : SequentialPlan
        Groups and sequences.
    prefixes : iterable of tuple of int, optional
        Train these and their beginnings alone; every node of the tree by default.
    without : mapping, optional
        Records to leave out, by (client, slice).
    data : mapping of client id to ClientRecords, optional
        What each client holds, with what is left out gone already; by default it is built from the
        configuration, with the slices of the wanted prefixes' groups and no others.
    stack : ModuleStack, optional
        To train on; a new one by default.
    on_module : callable, optional
        Told of each module as it is ready, parents first.

    Returns
    -------
    dict of prefix to PrefixModule
        By depth, then in the order of the tree.

    Raises
    ------
    PlanError
        A prefix that no sequence begins with.
    TrainingError
        No client has data of a prefix's groups, or training fails.
    """
    nodes = _chains(plan, prefixes)
    if data is None:
        data = held_by_clients(config, plan, nodes, without or {})
    stack = stack or ModuleStack(load_classifier(config), config.module)
    trained: dict[Prefix, PrefixModule] = {}
    for node in nodes:
        frozen = [trained[node[:depth]] for depth in range(1, len(node))]
        trained[node] = train_node(config, plan, node, frozen, data, stack)
        if on_module is not None:
            on_module(trained[node])
    return trained


def train_node(
    config: SequentialRunConfig,
    plan: SequentialPlan,
    node: Prefix,
    frozen: list[PrefixModule],
    data: Mapping[str, ClientRecords],
    stack: ModuleStack,
) -> PrefixModule:
    """Train one node's module: all rounds of its phase, each averaged over the clients."""
    root = config.seeds.training
    current: dict[str, Tensor] | None = None
    for round_ in range(config.rounds_per_phase):
        average = FedAvg()
        for client_id in plan.clients(node):
            slices = plan.client_slices(node, client_id)
            if client_id not in data or not data[client_id].size(slices):
                continue
            result = train_locally(
                stack,
                frozen,
                current,
                data[client_id].records(slices),
                config.training,
                init_seed=initial_seed(config, plan, node),
                seed=client_seed(root, plan, node, round_, client_id),
            )
            average.add(client_id, result.num_examples, result.tensors)
        current = average.result()
    if current is None:
        raise TrainingError(
            f"prefix {node}: training.rounds_per_phase is less than 1, so nothing was trained"
        )
    return PrefixModule(node, current)


def held_by_clients(
    config: SequentialRunConfig, plan: SequentialPlan, nodes: Iterable[Prefix], without: Without
) -> dict[str, ClientRecords]:
    """Build what the clients hold of the nodes' groups; data of other groups are not in it.

    Parameters
    ----------
    config, plan
        As for :func:`train_sequences_locally`.
    nodes : iterable of prefix
    without : mapping
        Records that were deleted.
    """
    slices = {item[:2] for node in nodes for item in plan.slices(node)}
    federated = load_corpus(config.data, config.seeds.data).federated
    held = {}
    for client_id in sorted({client for client, _ in slices}):
        own = {i for client, i in slices if client == client_id}
        gone = {i: names for (client, i), names in without.items() if client == client_id and i in own}
        held[client_id] = client_records(config, client_id, slices=own, without=gone, federated=federated)
    return held


def _chains(plan: SequentialPlan, prefixes: Iterable[Prefix] | None) -> list[Prefix]:
    if prefixes is None:
        return list(plan.tree.nodes)
    wanted: set[Prefix] = set()
    for prefix in prefixes:
        if prefix not in plan.tree:
            raise PlanError(f"prefix {tuple(prefix)}: no sequence of the plan begins so")
        wanted |= {tuple(prefix[:depth]) for depth in range(1, len(prefix) + 1)}
    return [node for node in plan.tree.nodes if node in wanted]
