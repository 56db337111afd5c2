"""Grouping: sizes, budgets against brute force, determinism, and barycentre-aware centring."""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedforget.errors import PlanError
from fedforget.sequences import Slice, balanced_groups, barycentre_groups, barycentre_objective
from fedforget.sequences.participation import (
    exact_counts,
    group_sizes,
    keep_within,
    misplaced,
    packed_counts,
)


def declare(*per_client: int) -> list[Slice]:
    return [Slice(f"c{i}", j, 10 + j) for i, number in enumerate(per_client) for j in range(number)]


def groups_of_clients(groups) -> dict[str, int]:
    found = defaultdict(set)
    for g, members in enumerate(groups):
        for item in members:
            found[item[0]].add(g)
    return {client: len(where) for client, where in found.items()}


def is_feasible(per_client: list[int], sizes: list[int], budget: list[int]) -> bool:
    """Try every table of counts, client by client."""
    free = {tuple(sorted(sizes))}
    for number, limit in zip(per_client, budget, strict=True):
        after = set()
        for room in free:
            for counts in itertools.product(*(range(min(number, r) + 1) for r in room)):
                if sum(counts) == number and sum(c > 0 for c in counts) <= limit:
                    after.add(tuple(sorted(r - c for r, c in zip(room, counts, strict=True))))
        free = after
    return bool(free)


def assert_balanced(groups, slices, num_groups):
    assert len(groups) == num_groups
    assert sorted(item for members in groups for item in members) == sorted(slices)
    small = len(slices) // num_groups
    assert sorted(map(len, groups)) == sorted(
        [small] * (num_groups - len(slices) % num_groups) + [small + 1] * (len(slices) % num_groups)
    )


small_cases = st.lists(st.integers(1, 5), min_size=1, max_size=4).flatmap(
    lambda per_client: st.tuples(
        st.just(per_client),
        st.integers(1, min(4, sum(per_client))),
        st.lists(st.integers(1, 3), min_size=len(per_client), max_size=len(per_client)),
        st.integers(0, 2**32),
    )
)


@settings(max_examples=80, deadline=None)
@given(small_cases)
def test_a_grouping_is_found_exactly_where_brute_force_finds_one(case):
    per_client, num_groups, limits, seed = case
    slices = declare(*per_client)
    budget = {f"c{i}": limit for i, limit in enumerate(limits)}
    sizes = group_sizes(len(slices), num_groups).tolist()
    if not is_feasible(per_client, sizes, limits):
        with pytest.raises(PlanError, match=r"client 'c[0-3]'"):
            balanced_groups(slices, num_groups, seed, budget)
        return
    groups = balanced_groups(slices, num_groups, seed, budget)
    assert_balanced(groups, slices, num_groups)
    assert all(number <= budget[client] for client, number in groups_of_clients(groups).items())


@settings(max_examples=40, deadline=None)
@given(small_cases)
def test_the_integer_program_alone_agrees_with_brute_force(case):
    # balanced_groups reaches the integer program only when its heuristics fail, so it is tried by itself.
    per_client, num_groups, limits, _ = case
    sizes = group_sizes(sum(per_client), num_groups)
    budget = np.minimum(limits, num_groups)
    names = [f"c{i}" for i in range(len(per_client))]
    if not is_feasible(per_client, sizes.tolist(), limits):
        with pytest.raises(PlanError, match="client_budget"):
            exact_counts(np.array(per_client), sizes, budget, names)
        return
    counts = exact_counts(np.array(per_client), sizes, budget, names)
    assert counts.sum(axis=1).tolist() == per_client
    assert counts.sum(axis=0).tolist() == sizes.tolist()
    assert not misplaced(counts, budget).any()


@settings(max_examples=80, deadline=None)
@given(small_cases)
def test_what_is_packed_fits(case):
    per_client, num_groups, limits, seed = case
    sizes = group_sizes(sum(per_client), num_groups)
    counts = packed_counts(np.array(per_client), sizes, np.array(limits), np.random.default_rng(seed))
    if counts is None:  # which decides nothing, but must not happen where clients need not be cut
        assert num_groups > 1
        return
    assert counts.sum(axis=1).tolist() == per_client
    assert counts.sum(axis=0).tolist() == sizes.tolist()
    assert not misplaced(counts, np.array(limits)).any()


def test_many_uneven_clients_are_packed_one_group_each():
    # 48 clients of 2, 3, 4 or 7 slices in 16 groups of 12: budget 1 is bin packing without room to spare.
    per_client = [2, 3, 7] * 12 + [4] * 12
    groups = balanced_groups(declare(*per_client), 16, 0, 1)
    assert {len(members) for members in groups} == {12}
    assert set(groups_of_clients(groups).values()) == {1}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=12),
    st.integers(1, 10),
    st.integers(0, 2**32),
    st.randoms(),
)
def test_without_a_budget_sizes_are_balanced_and_the_input_order_does_not_matter(
    per_client, num_groups, seed, random
):
    slices = declare(*per_client)
    num_groups = min(num_groups, len(slices))
    groups = balanced_groups(slices, num_groups, seed)
    assert_balanced(groups, slices, num_groups)
    shuffled = list(slices)
    random.shuffle(shuffled)
    assert balanced_groups(shuffled, num_groups, seed) == groups


def test_the_seed_decides_the_groups():
    slices = declare(*[5] * 10)
    assert balanced_groups(slices, 10, seed=1) != balanced_groups(slices, 10, seed=2)


@pytest.mark.parametrize("budget", [1, 2, 3, 4])
def test_tight_budgets_hold_and_are_deterministic(budget):
    # 10 clients of 5 slices in 10 groups of 5: with budget 1 each group must be one client.
    slices = declare(*[5] * 10)
    groups = balanced_groups(slices, 10, 7, budget)
    assert_balanced(groups, slices, 10)
    assert max(groups_of_clients(groups).values()) <= budget
    assert balanced_groups(slices, 10, 7, budget) == groups


def test_a_budget_that_does_not_bind_changes_nothing():
    slices = declare(*[3] * 6)
    assert balanced_groups(slices, 6, 3, client_budget=3) == balanced_groups(slices, 6, 3)


def test_a_deletion_that_shrinks_a_slice_leaves_the_groups_alone():
    slices = declare(4, 4, 4)
    smaller = [item._replace(size=1) for item in slices]
    before, after = balanced_groups(slices, 3, 0), balanced_groups(smaller, 3, 0)
    assert [[item[:2] for item in members] for members in before] == [
        [item[:2] for item in members] for members in after
    ]


def test_bare_pairs_serve_as_slices():
    pairs = [("a", 0), ("a", 1), ("b", 0)]
    assert sorted(itertools.chain(*balanced_groups(pairs, 3, 0))) == pairs


def test_where_exchanges_fail_clients_are_packed_whole():
    # Clients of 4, 3, 3, 2, 2, 2 slices, budget 1, two groups of 8: 4 + 2 + 2 and 3 + 3 + 2 is the only way.
    slices = declare(4, 3, 3, 2, 2, 2)
    for seed in range(5):
        groups = balanced_groups(slices, 2, seed, 1)
        assert_balanced(groups, slices, 2)
        assert set(groups_of_clients(groups).values()) == {1}


def test_keep_within_gives_up_rather_than_loop():
    # Three clients of 2 slices cannot fill two groups of 3 with budget 1.
    client = np.array([0, 0, 1, 1, 2, 2])
    group = np.array([0, 1, 0, 1, 0, 1])
    assert not keep_within(group, client, np.array([1, 1, 1]), np.random.default_rng(0))
    assert np.bincount(group).tolist() == [3, 3]


def test_a_client_too_large_for_its_budget_is_named_with_the_reason():
    with pytest.raises(PlanError, match=r"client 'c0' has 5 slices, but 1 of 2 groups hold at most 3"):
        balanced_groups(declare(5, 1), 2, 0, {"c0": 1})


def test_budgets_that_clash_say_whose_to_raise():
    with pytest.raises(PlanError, match=r"enough to raise that of client 'c\d' from 1 to 2$"):
        balanced_groups(declare(2, 2, 2), 2, 0, 1)


@pytest.mark.parametrize(
    ("slices", "num_groups", "budget", "message"),
    [
        (declare(2), 3, None, "3 groups cannot be formed from 2 slices"),
        (declare(2), 0, None, "num_groups: 0 is less than 1"),
        ([], 1, None, "there are none"),
        (declare(2) + declare(1), 2, None, "client 'c0': slice 0 appears twice"),
        ([Slice("a", 0, 0)], 1, None, "client 'a': slice 0 has size 0"),
        ([Slice("a", 0), Slice("a", "one")], 1, None, "cannot be put in order"),
        (["a"], 1, None, "not a Slice"),
        (declare(2, 2), 2, {"c9": 1}, "client 'c9' has no slices"),
        (declare(2, 2), 2, 0, "client 'c0' has 0"),
        (declare(2, 2), 2, {"c1": 1.5}, "client 'c1' has 1.5"),
    ],
)
def test_bad_input_is_named(slices, num_groups, budget, message):
    with pytest.raises(PlanError, match=message):
        balanced_groups(slices, num_groups, 0, budget)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=6),
    st.integers(1, 5),
    st.integers(0, 2**32),
    st.sampled_from([None, 2, 3]),
)
def test_barycentre_groups_are_balanced_within_budget_and_never_worse_than_the_random_ones(
    per_client, num_groups, seed, budget
):
    slices = declare(*per_client)
    num_groups = min(num_groups, len(slices))
    rng = np.random.default_rng(seed)
    embeddings = {item: rng.normal(size=3) + int(item.client_id[1:]) for item in slices}
    try:
        random = balanced_groups(slices, num_groups, seed, budget)
    except PlanError:
        with pytest.raises(PlanError, match="client_budget"):
            barycentre_groups(slices, embeddings, num_groups, seed, budget)
        return
    groups = barycentre_groups(slices, embeddings, num_groups, seed, budget)
    assert_balanced(groups, slices, num_groups)
    assert max(groups_of_clients(groups).values()) <= (budget or num_groups)
    assert barycentre_objective(groups, embeddings) <= barycentre_objective(random, embeddings)
    assert barycentre_groups(reversed(slices), embeddings, num_groups, seed, budget) == groups


def test_barycentre_groups_find_the_balanced_partition():
    # 0, 1, 2, 10, 11, 12 on a line have mean 6. No three of them sum to 18; the nearest is
    # 1 + 2 + 12 = 15 against 0 + 10 + 11 = 21: means 5 and 7, objective 1 + 1.
    line = {Slice("c", j): np.array([x]) for j, x in enumerate([0.0, 1.0, 2.0, 10.0, 11.0, 12.0])}
    best = min(
        barycentre_objective([first, [item for item in line if item not in first]], line)
        for first in itertools.combinations(line, 3)
    )
    groups = barycentre_groups(list(line), line, 2, seed=0)
    assert best == pytest.approx(2.0)
    assert barycentre_objective(groups, line) == pytest.approx(best)


def test_the_objective_is_that_of_problem_1():
    # Group means (1, 0) and (5, 0), global mean (3, 0): 4 + 4.
    points = {("a", 0): [0.0, 0.0], ("a", 1): [2.0, 0.0], ("b", 0): [4.0, 0.0], ("b", 1): [6.0, 0.0]}
    assert barycentre_objective([[("a", 0), ("a", 1)], [("b", 0), ("b", 1)]], points) == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({("a", 0): [1.0]}, r"client 'a', slice 1 has none"),
        ({("a", 0): [1.0], ("a", 1): [1.0, 2.0]}, r"slice 1 has shape \(2,\)"),
        ({("a", 0): [1.0], ("a", 1): [float("nan")]}, "slice 1 holds NaN"),
    ],
)
def test_bad_embeddings_are_named(broken, message):
    with pytest.raises(PlanError, match=message):
        barycentre_groups([("a", 0), ("a", 1)], broken, 2, 0)


def test_an_empty_group_has_no_objective():
    with pytest.raises(PlanError, match="empty group"):
        barycentre_objective([[("a", 0)], []], {("a", 0): [1.0]})
