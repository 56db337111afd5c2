"""The deletion ledger: what it records, answers, refuses, and notices."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedforget.errors import LedgerError
from fedforget.sequences import active_prefix
from fedforget.sequences.ledger import Deletion, Ledger, Module, chain

# Four groups, three clients; sequences share the prefix (0,).
GROUPS = [
    [("ann", 0, 10), ("bob", 0, 8)],
    [("ann", 1, 10), ("cat", 0, 5)],
    [("bob", 1, 8)],
    [("cat", 1, 5)],
]
SEQUENCES = [(0, 1, 2, 3), (0, 2, 1, 3), (3, 0, 1, 2), (1, 2, 3, 0)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with Ledger.create(path, GROUPS, SEQUENCES, seed=7) as ledger:
        ledger._db.execute("PRAGMA synchronous = OFF")  # no test here cuts the power
        yield ledger


def record(ledger: Ledger, prefix: tuple[int, ...], content: str = "", data_key: str | None = None) -> Module:
    name = "-".join(map(str, prefix)) + content
    return ledger.record_module(
        prefix,
        data_key=data_key or ledger.data_key(prefix),
        sha256=hashlib.sha256(name.encode()).hexdigest(),
        path=f"modules/{name}.safetensors",
        participants=["bob", "ann"],
        examples=18 * len(prefix),
    )


def record_all(ledger: Ledger) -> set[tuple[int, ...]]:
    prefixes = {order[:i] for order in ledger.sequences() for i in range(1, len(order) + 1)}
    for prefix in sorted(prefixes):
        record(ledger, prefix)
    return prefixes


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


# --- opening, and what goes wrong -----------------------------------------------------------


def test_reopening_gives_the_same_ledger(ledger: Ledger, path: Path) -> None:
    record_all(ledger)
    outcome = ledger.request_deletion("r1", "ann", 1, ["x"])
    served, head = ledger.served_prefixes(), ledger.head()
    ledger.close()
    with Ledger(path) as again:
        assert again.served_prefixes() == served
        assert again.head() == head
        assert again.request_deletion("r1", "ann", 1, ["x"]) == outcome
        assert again.head() == head


def test_a_ledger_is_never_overwritten(ledger: Ledger, path: Path) -> None:
    with pytest.raises(LedgerError, match="exists already"):
        Ledger.create(path, GROUPS, SEQUENCES, seed=8)
    assert ledger.seed() == 7


def test_a_file_that_is_no_ledger_is_named(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="there is no ledger here"):
        Ledger(tmp_path / "ledger.sqlite")
    (tmp_path / "text").write_text("not a database at all " * 100)
    with pytest.raises(LedgerError, match="not a ledger"):
        Ledger(tmp_path / "text")
    with sqlite3.connect(tmp_path / "other.sqlite") as db:
        db.execute("CREATE TABLE t (x)")
    db.close()
    with pytest.raises(LedgerError, match="not a fedforget ledger"):
        Ledger(tmp_path / "other.sqlite")


def test_another_version_is_refused(ledger: Ledger, path: Path) -> None:
    ledger._db.execute("PRAGMA user_version = 99")
    with pytest.raises(LedgerError, match="ledger version 99"):
        Ledger(path)


def test_a_read_only_ledger_answers_and_refuses_changes(ledger: Ledger, path: Path) -> None:
    with Ledger(path, read_only=True) as reader:
        assert reader.groups() == GROUPS
        with pytest.raises(LedgerError, match="it is read-only; nothing was changed"):
            reader.request_deletion("r1", "ann", 0)
    assert ledger.requests() == []


def test_a_full_disk_is_named_and_nothing_is_half_done(ledger: Ledger) -> None:
    pages = ledger._db.execute("PRAGMA page_count").fetchone()[0]
    ledger._db.execute(f"PRAGMA max_page_count = {pages}")  # SQLite answers as for a full disk
    done = 0
    with pytest.raises(LedgerError, match="the disk is full; nothing was changed"):  # noqa: PT012
        for number in range(1000):
            ledger.request_deletion(f"r{number}", "ann", 0, [f"{number} {'x' * 500}"])
            done += 1
    assert [request.outcome.request_id for request in ledger.requests()] == [f"r{i}" for i in range(done)]
    ledger._db.execute("PRAGMA max_page_count = 100000")
    assert ledger.problems() == []
    assert ledger.request_deletion("after", "bob", 0).status == "deleted"


def test_a_second_writer_waits_its_time_and_is_told(ledger: Ledger, path: Path) -> None:
    with Ledger(path, timeout_s=0.05) as other:
        ledger._db.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match=r"another process kept it locked for over 0\.05 s"):
            other.request_deletion("r1", "ann", 0)
        assert other.requests() == []  # reading goes on
        ledger._db.execute("ROLLBACK")
        assert other.request_deletion("r1", "ann", 0).status == "deleted"
    assert ledger.deleted_groups() == {0}


def test_writers_at_once_all_get_their_turn(ledger: Ledger, path: Path) -> None:
    errors: list[BaseException] = []

    def delete(writer: int) -> None:
        try:
            with Ledger(path) as own:
                for number in range(5):
                    own.request_deletion(f"{writer}-{number}", "ann", writer % 2, [f"{writer}-{number}"])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=delete, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(ledger.requests()) == 20
    assert ledger.problems() == []


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


# --- tampering ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def worn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("worn") / "ledger.sqlite"
    with Ledger.create(path, GROUPS, SEQUENCES, seed=7) as ledger:
        record_all(ledger)
        ledger.request_deletion("r1", "ann", 1, ["x", "y"])
        ledger.request_deletion("r2", "bob", 1)
        ledger.repair([1])
        record(ledger, (1,), content="again")
    return path


@pytest.fixture
def used(worn: Path, path: Path) -> Iterator[Ledger]:
    shutil.copy(worn, path)
    with Ledger(path) as ledger:
        yield ledger


def tamper(ledger: Ledger, statement: str) -> list[str]:
    """Alter the file as someone with SQLite would: guards taken away, then put back."""
    guards = ledger._db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    ledger._db.execute("PRAGMA foreign_keys = OFF")
    for name, _ in guards:
        ledger._db.execute(f"DROP TRIGGER {name}")
    assert ledger._db.execute(statement).rowcount > 0
    for _, sql in guards:
        ledger._db.execute(sql)
    with pytest.raises(LedgerError, match="cannot be trusted"):
        Ledger(ledger.path)
    return ledger.problems()


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (
            "UPDATE modules SET status = 'active' WHERE prefix = '[0,1]'",
            "status is 'active', the events make it 'off'",
        ),
        (
            "UPDATE modules SET sha256 = 'f' WHERE prefix = '[0]'",
            "table modules, row generation 0, prefix '[0]'",
        ),
        ("DELETE FROM modules WHERE prefix = '[0]'", "it is missing, though the events made it"),
        ("UPDATE groups SET status = 'intact' WHERE group_id = 2", "group_id 2: status is 'intact'"),
        (
            "UPDATE slices SET group_id = 3 WHERE client = 'ann'",
            "table slices, row generation 0, client 'ann'",
        ),
        (
            "UPDATE sequences SET groups = '[0]' WHERE position = 1",
            "table sequences, row generation 0, position 1",
        ),
        ("UPDATE generations SET seed = 8", "table generations, row generation 0: seed is 8"),
        ("DELETE FROM deleted_records WHERE record = 'x'", "record 'x': it is missing"),
        ("DELETE FROM deleted_slices", "table deleted_slices, row client 'bob', slice_id 1: it is missing"),
        ("INSERT INTO deleted_records VALUES ('ann', 0, 'q', 'r1')", "record 'q': no event made it"),
        (
            "UPDATE requests SET at = '' WHERE request_id = 'r1'",
            "table requests, row request_id 'r1': at is ''",
        ),
        ("UPDATE events SET at = 'x' WHERE number = 1", "event 1 (create, x) was altered"),
        (
            "UPDATE events SET payload = replace(payload, '\"x\"', '\"z\"') WHERE kind = 'deletion'",
            "(deletion",
        ),
        ("UPDATE events SET payload = payload || ' ' WHERE number = 3", "event 3 (module"),
        ("UPDATE events SET previous = sha256 WHERE number = 3", "event 3 (module) does not follow event 2"),
        ("DELETE FROM events WHERE number = 4", "event 4 is missing"),
        ("DELETE FROM events", "there is no event"),
    ],
)
def test_any_alteration_is_noticed_and_named(used: Ledger, statement: str, words: str) -> None:
    found = tamper(used, statement)
    assert any(words in sentence or "refers to a missing row" in sentence for sentence in found), found


def test_taking_a_guard_away_is_noticed(used: Ledger) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="table events is append-only"):
        used._db.execute("DELETE FROM events")
    with pytest.raises(sqlite3.IntegrityError, match="a module that is off stays off"):
        used._db.execute("UPDATE modules SET status = 'active'")
    used._db.execute("DROP TRIGGER modules_stay_off")
    assert used.problems() == ["the ledger's trigger modules_stay_off is missing"]


def test_an_outcome_that_does_not_follow_is_noticed_even_under_a_new_hash(used: Ledger) -> None:
    # Rewrite the last deletion so that it takes no group, under a hash that matches.
    used.request_deletion("r3", "cat", 1)
    event = used.history()[-1]
    payload = {**event.payload, "outcome": {**event.payload["outcome"], "groups": []}}
    forged = chain.digest([event.number, event.kind, event.at, payload, event.previous])
    found = tamper(
        used,
        f"UPDATE events SET payload = '{chain.canonical(payload).replace(chr(39), chr(39) * 2)}', "
        f"sha256 = '{forged}' WHERE number = {event.number}",
    )
    assert found == [
        f"event {event.number} (deletion) does not follow from those before it: "
        "its outcome is another than its request comes to"
    ]


def test_a_ledger_set_back_is_noticed_by_a_head_kept_elsewhere(used: Ledger, tmp_path: Path) -> None:
    used._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(used.path, tmp_path / "old.sqlite")
    used.request_deletion("r3", "cat", 1)
    head = used.head()
    used.check(head)
    with Ledger(tmp_path / "old.sqlite") as old:
        assert old.problems() == []
        with pytest.raises(LedgerError, match=f"event {head.number}, noted earlier, is gone"):
            old.check(head)
        old.request_deletion("r4", "cat", 1)
        with pytest.raises(LedgerError, match="is not the one noted earlier"):
            old.check(head)


def test_a_damaged_file_is_named(used: Ledger) -> None:
    used.close()
    content = bytearray(used.path.read_bytes())
    content[4096:8192] = b"\xff" * 4096  # the second page
    used.path.write_bytes(bytes(content))
    with pytest.raises(LedgerError, match=r"ledger\.sqlite: "):
        Ledger(used.path)


def test_the_file_alone_is_whole_once_a_writer_has_closed_it(
    ledger: Ledger, path: Path, tmp_path: Path
) -> None:
    with Ledger(path, read_only=True):  # keeps SQLite from tidying up after the writer
        with Ledger(path) as writer:
            writer.request_deletion("r", "ann")
        copy = tmp_path / "copy.sqlite"
        shutil.copyfile(path, copy)
    with Ledger(copy) as restored:
        assert [event.kind for event in restored.history()] == ["create", "deletion"]


def test_it_can_be_read_where_nothing_can_be_written(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Ledger.create(path, GROUPS, SEQUENCES, seed=7).close()
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    monkeypatch.setattr("os.access", lambda *_: False)  # tests run as root, whom permissions do not stop
    with Ledger(path, read_only=True) as found:
        assert found.groups() == GROUPS
        assert [file.name for file in tmp_path.iterdir()] == [path.name]
