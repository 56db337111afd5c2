"""The prefix tree of a plan: what has to be trained, and what that costs (FedSGT, section 4.2 and Figure 2c).

A module is trained after, and on, the groups of one ordered prefix, and depends on nothing else.
Sequences that begin alike share the modules of their common prefix, so the modules of a plan are
the distinct prefixes, and cost counts those.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedforget.errors import PlanError
from fedforget.sequences.slices import Slice

Node = tuple[int, ...]


class PrefixTree:
    """The distinct non-empty prefixes of the sequences.

    Parameters
    ----------
    sequences : iterable of tuple of int
        Orders of groups; need not be of one length. Repeated ones add nothing.

    Attributes
    ----------
    sequences : tuple of tuple of int
        As given.
    nodes : tuple of tuple of int
        Each prefix once: by depth, then in the order in which the sequences bring them up.

    Raises
    ------
    PlanError
        There is no sequence, or one is empty, repeats a group or holds a negative one.
    """

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        self.sequences: tuple[Node, ...] = tuple(tuple(int(g) for g in sequence) for sequence in sequences)
        if not self.sequences:
            raise PlanError("sequences: there are none; a plan has at least one")
        for sequence in self.sequences:
            if not sequence:
                raise PlanError("sequences: one of them is empty")
            if len(set(sequence)) < len(sequence) or min(sequence) < 0:
                raise PlanError(f"sequences: {sequence} repeats a group or holds a negative one")
        self._levels: list[tuple[Node, ...]] = []
        for depth in range(1, max(map(len, self.sequences)) + 1):
            level = dict.fromkeys(sequence[:depth] for sequence in self.sequences if len(sequence) >= depth)
            self._levels.append(tuple(level))
        self.nodes: tuple[Node, ...] = tuple(node for level in self._levels for node in level)
        self._children: dict[Node, list[Node]] = {(): [], **{node: [] for node in self.nodes}}
        for node in self.nodes:
            self._children[node[:-1]].append(node)

    def __len__(self) -> int:
        return len(self.nodes)

    def __contains__(self, node: object) -> bool:
        return node != () and node in self._children

    @property
    def max_depth(self) -> int:
        """The number of phases: the longest sequence's length."""
        return len(self._levels)

    def depth(self, i: int) -> tuple[Node, ...]:
        """Return the nodes of ``i`` groups, which train in the same rounds; ``i`` counts from 1.

        Raises
        ------
        PlanError
            ``i`` is below 1 or beyond the deepest node.
        """
        if not 1 <= i <= self.max_depth:
            raise PlanError(f"depth: {i} is outside 1 to {self.max_depth}")
        return self._levels[i - 1]

    def children(self, node: Node) -> tuple[Node, ...]:
        """Return the nodes one group longer than ``node``; of ``()``, the nodes of depth 1."""
        return tuple(self._children[self._known(node)])

    def parent(self, node: Node) -> Node | None:
        """Return the node whose modules are frozen below this one; None at depth 1."""
        if node == ():
            raise PlanError("node: the empty prefix is the backbone, which has no parent")
        return self._known(node)[:-1] or None

    def live(self, deleted: Iterable[int]) -> tuple[Node, ...]:
        """Return the nodes that hold none of the deleted groups, in the order of ``nodes``."""
        gone = frozenset(deleted)
        return tuple(node for node in self.nodes if gone.isdisjoint(node))

    def _known(self, node: Node) -> Node:
        if node not in self._children:
            raise PlanError(f"node: {node} is not a prefix of any sequence")
        return node


@dataclass(frozen=True)
class PlanReport:
    """What training a plan costs.

    Attributes
    ----------
    nodes : int
        Modules to train: the distinct prefixes.
    unshared_nodes : int
        Modules if no sequence shared any: the sum of the sequences' lengths.
    phases : int
        Depth of the tree. All nodes of one depth train in the same rounds.
    rounds : int
        Federated rounds: phases times rounds per phase.
    client_visits : dict of str to int
        Train messages to each client: per round, one for each node whose groups hold its data.
    examples : int
        Records passed over in one local epoch of everything.
    bytes_up : int
        From clients to the server: one module per visit.
    bytes_down : int
        From the server to clients that keep nothing between visits: the module in training and the
        frozen ones before it, per visit.
    stored_bytes : int
        One module per node, on the server.
    """

    nodes: int
    unshared_nodes: int
    phases: int
    rounds: int
    client_visits: dict[str, int]
    examples: int
    bytes_up: int
    bytes_down: int
    stored_bytes: int

    @property
    def visits(self) -> int:
        """Train messages to all clients."""
        return sum(self.client_visits.values())

    @property
    def bytes(self) -> int:
        """Traffic in both directions."""
        return self.bytes_up + self.bytes_down


def plan_report(
    tree: PrefixTree, groups: Sequence[Sequence[Slice]], module_bytes: int, rounds_per_phase: int = 1
) -> PlanReport:
    """Count what training every node of the tree costs.

    Parameters
    ----------
    tree : PrefixTree
    groups : sequence of sequences of Slice
        Slices of group 0, 1, ...
    module_bytes : int
        Size of one module, classifier head included.
    rounds_per_phase : int, default 1
        Federated rounds that train one module; the paper's setting is 1.

    Raises
    ------
    PlanError
        A number out of range, or a sequence names a group that is not there.
    """
    if module_bytes < 0:
        raise PlanError(f"module_bytes: {module_bytes} is negative")
    if rounds_per_phase < 1:
        raise PlanError(f"rounds_per_phase: {rounds_per_phase} is less than 1")
    highest = max(max(sequence) for sequence in tree.sequences)
    if highest >= len(groups):
        raise PlanError(
            f"groups: the plan trains on group {highest}, but there are only {len(groups)} groups"
        )
    clients = [frozenset(item.client_id for item in group) for group in groups]
    records = [sum(item.size for item in group) for group in groups]
    visits = dict.fromkeys(sorted(frozenset().union(*clients)), 0)
    examples = up = down = 0
    for node in tree.nodes:
        taking_part = frozenset().union(*(clients[g] for g in node))
        for client in taking_part:
            visits[client] += rounds_per_phase
        messages = rounds_per_phase * len(taking_part)
        examples += rounds_per_phase * sum(records[g] for g in node)
        up += messages * module_bytes
        down += messages * module_bytes * len(node)
    return PlanReport(
        nodes=len(tree),
        unshared_nodes=sum(map(len, tree.sequences)),
        phases=tree.max_depth,
        rounds=tree.max_depth * rounds_per_phase,
        client_visits=visits,
        examples=examples,
        bytes_up=up,
        bytes_down=down,
        stored_bytes=len(tree) * module_bytes,
    )
