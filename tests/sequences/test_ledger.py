"""The deletion ledger: what it records, answers and refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ledger_plans import GROUPS, SEQUENCES, record, record_all

from fedforget.errors import LedgerError
from fedforget.sequences import active_prefix
from fedforget.sequences.ledger import Deletion, Ledger

# --- what it records ------------------------------------------------------------------------


def test_a_new_ledger_holds_the_plan(ledger: Ledger) -> None:
    assert ledger.generation() == 0
    assert ledger.seed() == 7
    assert ledger.groups() == GROUPS
    assert ledger.sequences() == SEQUENCES
    assert ledger.deleted_groups() == frozenset()
    assert ledger.remaining_slices() == sorted(item for group in GROUPS for item in group)
    assert ledger.served_prefixes() == [(), (), (), ()]
    assert [event.kind for event in ledger.history()] == ["create"]
    assert ledger.problems() == []


def test_it_is_kept_in_wal_mode_and_synced_at_every_commit(path: Path) -> None:
    with Ledger.create(path, GROUPS, SEQUENCES, seed=7) as ledger:
        assert ledger._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert ledger._db.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
        assert ledger._db.execute("PRAGMA foreign_keys").fetchone() == (1,)
    assert [p.name for p in path.parent.iterdir() if p.name.endswith(".tmp")] == []


def test_modules_are_recorded_once(ledger: Ledger) -> None:
    first = record(ledger, (0, 1))
    head = ledger.head()
    assert record(ledger, (0, 1)) == first
    assert ledger.head() == head
    assert first.participants == ("ann", "bob")
    assert (first.phase, first.examples, first.status) == (2, 36, "active")
    with pytest.raises(LedgerError, match=r"module \[0, 1\]: another module is on record"):
        record(ledger, (0, 1), content="other")
    assert ledger.live_modules() == {(0, 1): first}


def test_a_prefix_is_served_once_all_its_modules_are_there(ledger: Ledger) -> None:
    record(ledger, (0, 1))
    assert ledger.served_prefixes()[0] == ()
    record(ledger, (0,))
    assert ledger.served_prefixes() == [(0, 1), (0,), (), ()]


# --- deletion -------------------------------------------------------------------------------


def test_a_deletion_takes_its_group_and_what_depends_on_it(ledger: Ledger) -> None:
    prefixes = record_all(ledger)
    outcome = ledger.request_deletion("r1", "ann", 1, ["x", "y"])
    off = {prefix for prefix in prefixes if 1 in prefix}
    assert outcome.status == "deleted"
    assert outcome.groups == (1,)
    assert set(outcome.modules_off) == off
    assert outcome.modules_left == len(prefixes - off)
    assert ledger.deleted_groups() == {1}
    assert set(ledger.live_modules()) == prefixes - off
    assert {module.prefix for module in ledger.modules("off")} == off
    assert ledger.served_prefixes() == [active_prefix(order, {1}) for order in SEQUENCES]
    assert ledger.served_prefixes() == [(0,), (0, 2), (3, 0), ()]
    assert ledger.deleted_records("ann", 1) == ("x", "y")
    assert ("ann", 1, 8) in ledger.remaining_slices()
    assert ledger.problems() == []


def test_a_stream_of_deletions_matches_the_selection_rules(ledger: Ledger) -> None:
    record_all(ledger)
    deleted: set[int] = set()
    for number, (client, slice_id, group) in enumerate(
        [("bob", 1, 2), ("ann", 0, 0), ("cat", 1, 3), ("cat", 0, 1)]
    ):
        outcome = ledger.request_deletion(f"r{number}", client, slice_id)
        deleted.add(group)
        assert ledger.deleted_groups() == deleted
        assert ledger.served_prefixes() == [active_prefix(order, deleted) for order in SEQUENCES]
    assert outcome.modules_left == 0
    assert ledger.live_modules() == {}


def test_a_whole_client_goes_from_every_group(ledger: Ledger) -> None:
    record_all(ledger)
    outcome = ledger.request_deletion("r1", "cat")
    assert outcome.groups == (1, 3)
    assert ledger.deleted_records("cat", 0) is None
    assert [item for item in ledger.remaining_slices() if item[0] == "cat"] == []
    assert ledger.served_prefixes() == [(0,), (0, 2), (), ()]


def test_records_are_compared_as_text_and_counted_once(ledger: Ledger) -> None:
    ledger.request_deletion("r1", "ann", 0, [3, "3", 4])
    assert ledger.deleted_records("ann", 0) == ("3", "4")
    assert ledger.request_deletion("r2", "ann", 0, ["4"]).status == "already deleted"


def test_further_records_of_a_deleted_group_are_deleted_too(ledger: Ledger) -> None:
    record_all(ledger)
    ledger.request_deletion("r1", "ann", 1, ["x"])
    outcome = ledger.request_deletion("r2", "ann", 1, ["x", "z"])
    assert (outcome.status, outcome.groups, outcome.modules_off) == ("deleted", (), ())
    assert "1 of its records deleted; no further group out of service" in outcome.message
    assert ledger.deleted_records("ann", 1) == ("x", "z")


def test_a_request_is_carried_out_once(ledger: Ledger) -> None:
    record_all(ledger)
    first = ledger.request_deletion("r1", "ann", 1, ["x", "y"])
    head = ledger.head()
    ledger.request_deletion("r2", "bob", 1)
    assert ledger.request_deletion("r1", "ann", 1, ["y", "x"]) == first
    assert ledger.head().number == head.number + 1
    with pytest.raises(LedgerError, match="request 'r1' was carried out before for other data"):
        ledger.request_deletion("r1", "ann", 1, ["y"])
    assert [request.outcome.request_id for request in ledger.requests()] == ["r1", "r2"]
    assert ledger.requests()[0].records == ("x", "y")


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Deletion("r", "anne"), "client 'anne' has no data in this run (did you mean 'ann'?)"),
        (Deletion("r", "ann", 5), "client 'ann' has no slice 5, only 0, 1"),
        (Deletion("r", "cat", 0, tuple("abcdef")), "has 5 records left, and 6 are named"),
    ],
)
def test_an_unknown_target_is_answered_and_changes_nothing(
    ledger: Ledger, request_: Deletion, words: str
) -> None:
    head = ledger.head()
    (outcome,) = ledger.request_deletions([request_])
    assert outcome.status == "unknown"
    assert words in outcome.message
    assert ledger.head() == head
    # The id is still free for the request as it was meant.
    assert ledger.request_deletion("r", "ann", 0).status == "deleted"


def test_data_already_gone_are_answered_so_and_change_nothing(ledger: Ledger) -> None:
    ledger.request_deletion("r1", "cat", 0)
    head = ledger.head()
    for again in (Deletion("r2", "cat", 0), Deletion("r3", "cat", 0, ("a",))):
        (outcome,) = ledger.request_deletions([again])
        assert outcome.status == "already deleted"
    assert ledger.head() == head
    assert ledger.request_deletion("r4", "cat").groups == (3,)
    assert ledger.request_deletion("r5", "cat").status == "already deleted"


def test_naming_every_record_leaves_nothing_of_the_slice(ledger: Ledger) -> None:
    ledger.request_deletion("r1", "cat", 1, range(5))
    assert ("cat", 1) not in {item[:2] for item in ledger.remaining_slices()}
    assert ledger.request_deletion("r2", "cat", 1).status == "already deleted"


def test_several_requests_are_one_transaction(ledger: Ledger) -> None:
    outcomes = ledger.request_deletions(
        [Deletion("a", "ann", 0, ("x",)), Deletion("b", "nobody"), Deletion("c", "bob", 1)]
    )
    assert [outcome.status for outcome in outcomes] == ["deleted", "unknown", "deleted"]
    head = ledger.head()
    with pytest.raises(LedgerError, match="request 'a'"):
        ledger.request_deletions([Deletion("d", "cat", 1), Deletion("a", "ann", 1)])
    assert ledger.head() == head
    assert ledger.deleted_groups() == {0, 2}


def test_a_module_trained_across_a_deletion_is_refused(ledger: Ledger) -> None:
    data_key = ledger.data_key((0, 1))
    other = ledger.data_key((3,))
    ledger.request_deletion("r1", "ann", 1, ["x"])
    with pytest.raises(LedgerError, match="group 1 was deleted"):
        record(ledger, (0, 1), data_key=data_key)
    with pytest.raises(LedgerError, match="group 1 was deleted"):
        ledger.data_key((0, 1))
    assert record(ledger, (3,), data_key=other).status == "active"  # its data are as they were


def test_recording_again_does_not_bring_a_module_back(ledger: Ledger) -> None:
    data_key = ledger.data_key((0,))
    record(ledger, (0,))
    ledger.request_deletion("r1", "ann", 0, ["x"])
    assert record(ledger, (0,), data_key=data_key).status == "off"
    assert ledger.live_modules() == {}


# --- repair and retraining ------------------------------------------------------------------


def test_a_repaired_group_serves_again_through_new_modules(ledger: Ledger) -> None:
    record_all(ledger)
    old = {module.prefix: module for module in ledger.modules()}
    stale = ledger.data_key((0, 1))
    ledger.request_deletion("r1", "ann", 1, ["x"])
    ledger.repair([1])
    assert ledger.deleted_groups() == frozenset()
    assert ledger.served_prefixes()[0] == (0,)
    assert ledger.data_key((0, 1)) != stale
    assert ledger.data_key((0,)) == old[0,].data_key
    with pytest.raises(LedgerError, match="its data changed since its training began"):
        record(ledger, (0, 1, 2), data_key=old[0, 1, 2].data_key[::-1])
    new = record(ledger, (0, 1), content="repaired")
    assert ledger.served_prefixes()[0] == (0, 1)
    assert {m.status for m in ledger.modules() if m.prefix == (0, 1)} == {"active", "off"}
    # A second deletion from the same group switches the new module off as well.
    outcome = ledger.request_deletion("r2", "ann", 1, ["y"])
    assert outcome.groups == (1,)
    assert outcome.modules_off == ((0, 1),)
    assert new.data_key in {module.data_key for module in ledger.modules("off")}
    assert ledger.problems() == []


def test_only_a_deleted_group_with_data_left_is_repaired(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="group 0 is not deleted"):
        ledger.repair([0])
    ledger.request_deletion("r1", "bob", 1)
    with pytest.raises(LedgerError, match="nothing is left of group 2"):
        ledger.repair([2])
    with pytest.raises(LedgerError, match="no group to repair"):
        ledger.repair([])


def test_a_new_generation_keeps_the_history_and_the_deletions(ledger: Ledger) -> None:
    record_all(ledger)
    ledger.request_deletion("r1", "ann", 1, ["x"])
    ledger.request_deletion("r2", "bob", 1)
    slices = ledger.remaining_slices()
    assert ledger.retrain([slices[:2], slices[2:]], [(0, 1), (1, 0)], seed=8) == 1
    assert (ledger.generation(), ledger.seed()) == (1, 8)
    assert ledger.groups() == [slices[:2], slices[2:]]
    assert ledger.deleted_groups() == frozenset()
    assert ledger.live_modules() == {}
    assert len(ledger.modules("off")) == 15  # 4 x 4 prefixes, (0,) shared
    assert ledger.deleted_records("ann", 1) == ("x",)
    record(ledger, (0,))
    assert ledger.request_deletion("r3", "ann", 1, ["x"]).status == "already deleted"
    assert ledger.request_deletion("r4", "bob", 1).status == "already deleted"
    outcome = ledger.request_deletion("r5", "ann", 1, ["y"])
    assert (outcome.generation, outcome.groups, outcome.modules_off) == (1, (0,), ((0,),))
    assert ledger.request_deletion("r1", "ann", 1, ["x"]).generation == 0
    assert ledger.problems() == []


def test_deleted_data_cannot_come_back(ledger: Ledger) -> None:
    ledger.request_deletion("r1", "bob", 1)
    ledger.request_deletion("r2", "ann", 0, ["x"])
    with pytest.raises(LedgerError, match="client 'bob', slice 1: it has no data left"):
        ledger.retrain([[("bob", 1, 8)]], [(0,)], seed=8)
    with pytest.raises(LedgerError, match="client 'ann', slice 0: 9 records are left, not 10"):
        ledger.retrain([[("ann", 0, 10)]], [(0,)], seed=8)
    ledger.retrain([[("ann", 0)]], [(0,)], seed=8)
    assert ledger.groups() == [[("ann", 0, 9)]]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: x.request_deletion("", "ann"), "the request id is ''"),
        (lambda x: x.request_deletion("r", "ann", -1), "the slice is -1"),
        (lambda x: x.request_deletion("r", "ann", None, ["a"]), "names records but no slice"),
        (lambda x: x.request_deletion("r", "ann", 0, []), "list at least one"),
        (lambda x: x.request_deletions([Deletion("r", "ann", 0, "abc")]), "list at least one"),  # type: ignore[arg-type]
        (lambda x: x.request_deletion("r", "\ud800"), "not valid Unicode"),
        (lambda x: record(x, (2, 0)), "no sequence of generation 0 begins so"),
        (lambda x: x.data_key((9,)), "generation 0 has no group 9"),
        (lambda x: x.data_key(()), "the prefix is empty"),
        (lambda x: record(x, (0,), data_key="abc"), "is not a SHA-256"),
        (lambda x: record(x, (0,), content="/../../x"), "inside it"),
        (lambda x: x.retrain([], [(0,)], seed=1), "there is no group"),
        (lambda x: x.retrain([[]], [(0,)], seed=1), "group 0 has no slice"),
        (lambda x: x.retrain([[("ann", 0)], [("ann", 0)]], [(0,)], seed=1), "slice 0 is named twice"),
        (lambda x: x.retrain([[("ann", 0)]], [], seed=1), "there is no sequence"),
        (lambda x: x.retrain([[("ann", 0)]], [(0, 1)], seed=1), "does not fit"),
        (lambda x: Ledger.create(x.path.with_name("n"), [[("ann", 0)]], [(0,)], 1), "the size is missing"),
        (lambda x: Ledger.create(x.path / "n" / "m", GROUPS, SEQUENCES, 1), "its folder is not there"),
    ],
)
def test_bad_input_is_named_and_changes_nothing(
    ledger: Ledger, call: Callable[[Ledger], object], words: str
) -> None:
    head = ledger.head()
    with pytest.raises(LedgerError, match=words):
        call(ledger)
    assert ledger.head() == head
    assert ledger.problems() == []
