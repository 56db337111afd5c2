"""The ledger's file: tables, connection settings, and what SQLite's errors mean to a user."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from fedforget.errors import LedgerError

VERSION = 1
APPLICATION_ID = 0x46464C47  # "FFLG"

TABLES = {
    "events": """(
        number INTEGER PRIMARY KEY, kind TEXT NOT NULL, at TEXT NOT NULL, payload TEXT NOT NULL,
        previous TEXT NOT NULL, sha256 TEXT NOT NULL UNIQUE) STRICT""",
    "generations": """(
        generation INTEGER PRIMARY KEY, seed INTEGER NOT NULL,
        event INTEGER NOT NULL REFERENCES events(number)) STRICT""",
    "groups": """(
        generation INTEGER NOT NULL REFERENCES generations(generation), group_id INTEGER NOT NULL,
        status TEXT NOT NULL CHECK (status IN ('intact', 'deleted', 'repaired')),
        PRIMARY KEY (generation, group_id)) STRICT""",
    "slices": """(
        generation INTEGER NOT NULL, client TEXT NOT NULL, slice_id INTEGER NOT NULL,
        size INTEGER NOT NULL CHECK (size > 0), group_id INTEGER NOT NULL,
        PRIMARY KEY (client, slice_id, generation),
        FOREIGN KEY (generation, group_id) REFERENCES groups(generation, group_id)) STRICT""",
    "sequences": """(
        generation INTEGER NOT NULL REFERENCES generations(generation), position INTEGER NOT NULL,
        groups TEXT NOT NULL, PRIMARY KEY (generation, position)) STRICT""",
    "modules": """(
        generation INTEGER NOT NULL REFERENCES generations(generation), prefix TEXT NOT NULL,
        data_key TEXT NOT NULL, sha256 TEXT NOT NULL, path TEXT NOT NULL, participants TEXT NOT NULL,
        examples INTEGER NOT NULL, phase INTEGER NOT NULL,
        status TEXT NOT NULL CHECK (status IN ('active', 'off')),
        event INTEGER NOT NULL REFERENCES events(number), off_event INTEGER REFERENCES events(number),
        PRIMARY KEY (generation, prefix, data_key)) STRICT""",
    "requests": """(
        request_id TEXT PRIMARY KEY, client TEXT NOT NULL, slice_id INTEGER, records TEXT,
        status TEXT NOT NULL, outcome TEXT NOT NULL, at TEXT NOT NULL,
        event INTEGER NOT NULL REFERENCES events(number)) STRICT""",
    "deleted_slices": """(
        client TEXT NOT NULL, slice_id INTEGER NOT NULL,
        request_id TEXT NOT NULL REFERENCES requests(request_id), PRIMARY KEY (client, slice_id)) STRICT""",
    "deleted_records": """(
        client TEXT NOT NULL, slice_id INTEGER NOT NULL, record TEXT NOT NULL,
        request_id TEXT NOT NULL REFERENCES requests(request_id),
        PRIMARY KEY (client, slice_id, record)) STRICT""",
}

# What is never to change is guarded in the file as well, against a stray statement; the audit
# also compares the guards themselves, so taking one away shows.
_APPEND_ONLY = ("events", "requests", "deleted_slices", "deleted_records")


def create_tables(db: sqlite3.Connection) -> None:
    """Create every table and guard, and mark the file as a ledger."""
    for table, columns in TABLES.items():
        db.execute(f"CREATE TABLE {table} {columns}")
    for table in _APPEND_ONLY:
        for verb in ("UPDATE", "DELETE"):
            db.execute(
                f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, 'table {table} is append-only'); END"
            )
    db.execute(
        "CREATE TRIGGER modules_stay_off BEFORE UPDATE ON modules WHEN old.status = 'off' "
        "BEGIN SELECT RAISE(ABORT, 'a module that is off stays off'); END"
    )
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {VERSION}")


def memory() -> sqlite3.Connection:
    """Return an empty ledger in memory, to replay events into."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    create_tables(db)
    return db


def connect(path: Path, timeout_s: float, read_only: bool = False) -> sqlite3.Connection:
    """Open the file: WAL, every commit synced to disk before it returns, foreign keys on."""
    mode = "ro" if read_only else "rw"
    if read_only and not os.access(path.resolve().parent, os.W_OK) and not _in_use(path):
        # SQLite reads a file in WAL mode through a second one, which it could not make there. Nobody can
        # write to it either.
        mode += "&immutable=1"
    db = sqlite3.connect(
        f"{path.resolve().as_uri()}?mode={mode}",
        uri=True,
        timeout=timeout_s,
        isolation_level=None,  # transactions are begun and ended explicitly
        check_same_thread=False,  # the store serialises its threads with a lock
    )
    try:
        if not read_only:
            db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        db.close()
        raise
    return db


def _in_use(path: Path) -> bool:
    beside = [path.with_name(path.name + suffix) for suffix in ("-wal", "-shm")]
    return any(file.exists() for file in beside)


_MEANINGS = {
    sqlite3.SQLITE_BUSY: "another process kept it locked for over {timeout:g} s; nothing changed, try again",
    sqlite3.SQLITE_READONLY: "it is read-only; nothing was changed, make the file and its folder writable",
    sqlite3.SQLITE_FULL: "the disk is full; nothing was changed, free some space and try again",
    sqlite3.SQLITE_IOERR: "reading or writing it failed ({error}); check the disk",
    sqlite3.SQLITE_CORRUPT: "the file is damaged ({error}); restore it from a copy",
    sqlite3.SQLITE_NOTADB: "it is not a ledger, or the file is damaged; restore it from a copy",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; check that the file and its folder are there and writable",
}


@contextlib.contextmanager
def explained(path: Path, timeout_s: float) -> Iterator[None]:
    """Turn SQLite's errors into a :class:`LedgerError` that names the file and the mend."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the primary code
        meaning = _MEANINGS.get(code, "{error}")
        raise LedgerError(f"{path}: {meaning.format(error=error, timeout=timeout_s)}") from error
