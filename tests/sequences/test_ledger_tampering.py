"""The deletion ledger notices what was altered behind its back."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from ledger_plans import GROUPS, SEQUENCES, record, record_all

from fedforget.errors import LedgerError
from fedforget.sequences.ledger import Ledger, chain


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
