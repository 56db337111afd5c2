"""Selection after deletions: Table 2 of FedSGT, and what holds for any plan."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedforget.errors import PlanError
from fedforget.sequences import active_prefix, plan_sequences, select, weight_by_prefix

# Table 2: six rotations of six groups; requests hit group 1, then 5, then 2. The red digits, which are
# the active modules, per rule and time. Its MinSeq cells do not follow from the paper's sentence on
# MinSeq ("the least overlap with the deleted groups"); they are the sequences whose set of active groups
# is contained in no other's, which is the rule implemented. Its AllSeq cells agree with truncation.
TABLE_2 = [
    ("AllSeq", {1}, ["0", "50", "450", "3450", "23450"]),
    ("AllSeq", {1, 5}, ["0", "4", "34", "234"]),
    ("AllSeq", {1, 5, 2}, ["0", "4", "34"]),
    ("MinSeq", {1}, ["23450"]),
    ("MinSeq", {1, 5}, ["0", "234"]),
    ("MinSeq", {1, 5, 2}, ["0", "34"]),
    ("LongSeq", {1}, ["23450"]),
    ("LongSeq", {1, 5}, ["234"]),
    ("LongSeq", {1, 5, 2}, ["34"]),
]


@pytest.mark.parametrize(("rule", "deleted", "active"), TABLE_2)
def test_table_2(rule, deleted, active):
    chosen = select(plan_sequences(6, 6), deleted, rule)
    assert ["".join(map(str, item.prefix)) for item in chosen] == active
    # Section 4.3: the weight is proportional to the number of active modules.
    modules = sum(map(len, active))
    assert [item.weight for item in chosen] == pytest.approx([len(word) / modules for word in active])


def test_the_index_is_the_sequence_s_place_in_the_plan():
    # After 1 and 5, the sequence 501234 (index 1) is dead and so is 123450 (index 5).
    assert [item.index for item in select(plan_sequences(6, 6), {1, 5})] == [0, 2, 3, 4]


def test_an_active_prefix_ends_before_the_first_deleted_group():
    assert active_prefix((4, 5, 0, 1), {0, 1}) == (4, 5)
    assert active_prefix((4, 5), set()) == (4, 5)
    assert active_prefix([4, 5], [4]) == ()


plans = st.integers(1, 6).flatmap(
    lambda n: st.tuples(
        st.lists(st.permutations(range(n)).map(tuple), min_size=1, max_size=10),
        st.sets(st.integers(0, n - 1)),
    )
)


@settings(max_examples=100, deadline=None)
@given(plans)
def test_no_rule_serves_a_deleted_group_and_weights_sum_to_one(plan):
    sequences, deleted = plan
    for rule in ("AllSeq", "MinSeq", "LongSeq"):
        chosen = select(sequences, deleted, rule)
        for item in chosen:
            assert item.prefix
            assert deleted.isdisjoint(item.prefix)
            assert item.prefix == active_prefix(sequences[item.index], deleted)
        if chosen:
            assert sum(item.weight for item in chosen) == pytest.approx(1.0)
        else:
            # Nothing serves only when every sequence has lost its first group.
            assert all(sequence[0] in deleted for sequence in sequences)


@settings(max_examples=100, deadline=None)
@given(plans)
def test_each_rule_chooses_among_those_of_the_wider_one(plan):
    sequences, deleted = plan
    every, few, one = (
        {item.index: item.prefix for item in select(sequences, deleted, rule)}
        for rule in ("AllSeq", "MinSeq", "LongSeq")
    )
    assert one.items() <= few.items() <= every.items()
    assert len(one) == min(1, len(every))
    assert all(len(prefix) == max(map(len, every.values())) for prefix in one.values())
    # No kept set is within another kept one, and every sequence's is within a kept one.
    kept = [frozenset(prefix) for prefix in few.values()]
    assert not any(a <= b for i, a in enumerate(kept) for j, b in enumerate(kept) if i != j)
    assert all(any(set(prefix) <= groups for groups in kept) for prefix in every.values())


def test_ties_go_to_the_first_sequence():
    sequences = [(0, 1, 2), (1, 0, 2), (3, 2, 1)]
    assert [item.index for item in select([*sequences], {2}, "LongSeq")] == [0]
    # (0, 1) and (1, 0) have seen the same groups; the first is kept.
    assert [item.index for item in select(sequences, {2}, "MinSeq")] == [0, 2]


def test_sequences_that_end_in_the_same_model_each_count():
    chosen = select([(0, 1, 2, 3), (0, 1, 3, 2)], {2, 3})
    assert [item.weight for item in chosen] == [0.5, 0.5]
    assert weight_by_prefix(chosen) == {(0, 1): 1.0}
    # (0, 1) is the active prefix of two sequences, (3,) of one: 2/5, 2/5 and 1/5.
    chosen = select([(0, 1, 2, 3, 4), (0, 1, 2, 4, 3), (3, 2, 0, 1, 4)], {2})
    assert [item.weight for item in chosen] == pytest.approx([0.4, 0.4, 0.2])
    assert weight_by_prefix(chosen) == pytest.approx({(0, 1): 0.8, (3,): 0.2})


def test_when_nothing_is_left_nothing_serves():
    for rule in ("AllSeq", "MinSeq", "LongSeq"):
        assert select(plan_sequences(3, 3), {0, 1, 2}, rule) == []
        assert select([], set(), rule) == []


def test_an_unknown_rule_suggests_the_nearest():
    with pytest.raises(PlanError, match=r"'Longseq' is not one of .*did you mean 'LongSeq'"):
        select([(0, 1)], set(), "Longseq")


def test_deleting_a_group_that_is_nowhere_is_an_error():
    with pytest.raises(PlanError, match="group 7 is in none of the sequences"):
        select([(0, 1)], {7})
