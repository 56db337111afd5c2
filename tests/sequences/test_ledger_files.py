"""The deletion ledger's file: opened again, by several, on a full disk, where nothing can be written."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from pathlib import Path

import pytest
from ledger_plans import GROUPS, SEQUENCES, record_all

from fedforget.errors import LedgerError
from fedforget.sequences.ledger import Ledger


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
