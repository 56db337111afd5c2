"""The prefix tree and the cost of a plan."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedforget.errors import PlanError
from fedforget.sequences import PrefixTree, Slice, active_prefix, balanced_groups, plan_report, plan_sequences

orders = st.integers(1, 6).flatmap(
    lambda n: st.lists(st.permutations(range(n)).map(tuple), min_size=1, max_size=12)
)


@settings(max_examples=80, deadline=None)
@given(orders)
def test_every_distinct_prefix_is_a_node_once(sequences):
    tree = PrefixTree(sequences)
    prefixes = {sequence[:i] for sequence in sequences for i in range(1, len(sequence) + 1)}
    assert len(tree.nodes) == len(set(tree.nodes)) == len(tree)
    assert set(tree.nodes) == prefixes
    assert [len(node) for node in tree.nodes] == sorted(len(node) for node in tree.nodes)
    assert tuple(itertools.chain(*(tree.depth(i + 1) for i in range(tree.max_depth)))) == tree.nodes
    assert tree.nodes == PrefixTree(sequences).nodes


@settings(max_examples=60, deadline=None)
@given(orders)
def test_parents_and_children_agree(sequences):
    tree = PrefixTree(sequences)
    assert tree.children(()) == tree.depth(1)
    for node in tree.nodes:
        assert all(tree.parent(child) == node for child in tree.children(node))
        above = tree.parent(node)
        assert node in tree.children(above or ())
        assert (above is None) == (len(node) == 1)


@settings(max_examples=60, deadline=None)
@given(orders, st.sets(st.integers(0, 5)))
def test_live_nodes_are_the_active_prefixes(sequences, deleted):
    live = PrefixTree(sequences).live(deleted)
    assert all(deleted.isdisjoint(node) for node in live)
    active = {
        prefix[:i]
        for prefix in (active_prefix(sequence, deleted) for sequence in sequences)
        for i in range(1, len(prefix) + 1)
    }
    assert set(live) == active


@pytest.mark.parametrize(
    ("num_groups", "budget", "nodes"),
    [
        (6, 6, 36),  # rotations share nothing: 6 * 6
        (10, 10, 100),
        (6, 7, 36 + 5),  # 0 stays, 12345 turns: five new prefixes below (0,)
        # All orders of 4 groups: 4 + 4*3 + 4*3*2 + 4! ordered prefixes, not 24 * 4 = 96.
        (4, 24, 64),
    ],
)
def test_node_counts(num_groups, budget, nodes):
    assert len(PrefixTree(plan_sequences(num_groups, budget))) == nodes


def test_nodes_come_by_depth_then_in_the_order_of_the_sequences():
    tree = PrefixTree([(2, 0, 1), (0, 1, 2), (2, 1, 0)])
    assert tree.nodes == ((2,), (0,), (2, 0), (0, 1), (2, 1), (2, 0, 1), (0, 1, 2), (2, 1, 0))
    assert tree.children((2,)) == ((2, 0), (2, 1))
    assert (2, 1) in tree
    assert (1,) not in tree
    assert () not in tree


def test_sequences_may_differ_in_length():
    tree = PrefixTree([(0,), (1, 0)])
    assert tree.nodes == ((0,), (1,), (1, 0))
    assert tree.max_depth == 2


@pytest.mark.parametrize(
    ("sequences", "message"),
    [([], "there are none"), ([()], "is empty"), ([(0, 0)], "repeats a group"), ([(-1, 0)], "negative")],
)
def test_bad_sequences_are_named(sequences, message):
    with pytest.raises(PlanError, match=message):
        PrefixTree(sequences)


def test_nodes_outside_the_tree_are_named():
    tree = PrefixTree([(0, 1)])
    for ask in (tree.children, tree.parent):
        with pytest.raises(PlanError, match=r"\(1,\) is not a prefix"):
            ask((1,))
    with pytest.raises(PlanError, match="has no parent"):
        tree.parent(())
    for depth in (0, 3):
        with pytest.raises(PlanError, match="outside 1 to 2"):
            tree.depth(depth)


def test_a_plan_s_costs_add_up():
    groups = [[Slice("a", 0, 3)], [Slice("a", 1, 4), Slice("b", 0, 5)]]
    report = plan_report(PrefixTree([(0, 1), (1, 0)]), groups, module_bytes=10, rounds_per_phase=2)
    # Nodes (0,), (1,), (0, 1), (1, 0). Client a has data in all four, b in all but (0,); two rounds each.
    assert report.client_visits == {"a": 8, "b": 6}
    assert report.visits == 14
    assert (report.nodes, report.unshared_nodes, report.phases, report.rounds) == (4, 4, 2, 4)
    # Records per pass: 3 + 9 + 12 + 12 = 36, in two rounds.
    assert report.examples == 72
    assert report.bytes_up == 140
    # Down, per round: a gets 1 + 1 + 2 + 2 modules, b 1 + 2 + 2: 11 of 10 bytes, twice.
    assert report.bytes_down == 220
    assert report.bytes == 360
    assert report.stored_bytes == 40


@pytest.mark.parametrize("k", [1, 2, 3])
def test_mean_visits_are_the_paper_s_formula(k):
    # Section A.3: a client in k of L groups, chosen at random, is in B (L + 1) k / (k + 1) rounds.
    num_groups, budget = 5, 5
    tree = PrefixTree(plan_sequences(num_groups, budget))
    total = 0
    for mine in itertools.combinations(range(num_groups), k):
        groups = [[Slice("me" if g in mine else "other", g)] for g in range(num_groups)]
        total += plan_report(tree, groups, module_bytes=1).client_visits["me"]
    mean = total / math.comb(num_groups, k)
    assert mean == pytest.approx(budget * (num_groups + 1) * k / (k + 1))


def test_rounds_do_not_grow_with_the_number_of_sequences():
    slices = [Slice(f"c{i}", j) for i in range(4) for j in range(3)]
    groups = balanced_groups(slices, 6, 0)
    reports = [plan_report(PrefixTree(plan_sequences(6, budget)), groups, 1) for budget in (1, 6, 20)]
    assert [report.rounds for report in reports] == [6, 6, 6]


def test_bad_reports_are_named():
    tree = PrefixTree([(0, 1)])
    with pytest.raises(PlanError, match="trains on group 1, but there are only 1 groups"):
        plan_report(tree, [[Slice("a", 0)]], 1)
    with pytest.raises(PlanError, match="module_bytes: -1"):
        plan_report(tree, [[Slice("a", 0)], [Slice("a", 1)]], -1)
    with pytest.raises(PlanError, match="rounds_per_phase: 0"):
        plan_report(tree, [[Slice("a", 0)], [Slice("a", 1)]], 1, rounds_per_phase=0)
