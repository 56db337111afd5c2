"""An open ledger file: transactions, and the making of a new file that is whole or not there."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fedforget.errors import LedgerError
from fedforget.sequences.ledger import audit, chain, schema
from fedforget.sequences.ledger.apply import apply
from fedforget.sequences.ledger.records import Event, Head


class Connection:
    """The part of :class:`Ledger` that knows the file; its parameters are described there."""

    def __init__(
        self, path: str | Path, timeout_s: float = 30.0, read_only: bool = False, verify: bool = True
    ) -> None:
        self.path = Path(path)
        self.timeout_s = timeout_s
        self._read_only = read_only
        self._lock = threading.RLock()
        if not self.path.is_file():
            raise LedgerError(f"{self.path}: there is no ledger here; create one for the run first")
        with schema.explained(self.path, timeout_s):
            self._db = schema.connect(self.path, timeout_s, read_only)
        try:
            with self._reading() as db:
                application = db.execute("PRAGMA application_id").fetchone()[0]
                version = db.execute("PRAGMA user_version").fetchone()[0]
            if application != schema.APPLICATION_ID:
                raise LedgerError(f"{self.path}: an SQLite file, but not a fedforget ledger")
            if version != schema.VERSION:
                raise LedgerError(
                    f"{self.path}: ledger version {version}, this fedforget reads version {schema.VERSION}; "
                    "open it with the fedforget that wrote it"
                )
            if verify:
                self.check()
        except BaseException:
            self._db.close()
            raise

    def problems(self, known_head: Head | None = None) -> list[str]:
        """Audit the ledger and return what is wrong, one sentence each; none when it is sound."""
        with self._reading() as db:
            return audit.problems(db, known_head)

    def check(self, known_head: Head | None = None) -> None:
        """Audit the chain of events, and the tables against a replay of the events.

        Parameters
        ----------
        known_head : Head, optional
            What :meth:`head` gave at some earlier time, kept elsewhere.

        Raises
        ------
        LedgerError
            Something was altered, is missing or is damaged; names the event or the row.
        """
        found = self.problems(known_head)
        if found:
            raise LedgerError(f"{self.path}: the ledger cannot be trusted: {'; '.join(found)}")

    def close(self) -> None:
        """Close the file, with everything in it: a copy of it alone must not lack the last changes."""
        with self._lock:
            if not self._read_only:
                with contextlib.suppress(sqlite3.Error):  # closed already, or a reader is at it
                    self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")
            self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _enter(self, db: sqlite3.Connection, kind: str, payload: dict[str, Any]) -> Event:
        event = chain.append(db, kind, payload)
        apply(db, event)
        return event

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._transaction("BEGIN IMMEDIATE") as db:
            yield db

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._transaction("BEGIN") as db:
            yield db

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._lock, schema.explained(self.path, self.timeout_s):
            self._db.execute(begin)
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite itself rolls back after some errors
                    self._db.execute("ROLLBACK")
                raise


def write_new(path: Path, payload: dict[str, Any], timeout_s: float) -> None:
    """Write a ledger that holds its ``create`` event.

    It is written whole under another name first, so that it is there with its plan or not at all.

    Raises
    ------
    LedgerError
        Something is there already, or it cannot be written.
    """
    if path.exists():
        raise LedgerError(f"{path}: exists already; a ledger is never overwritten")
    if not path.parent.is_dir():
        raise LedgerError(f"{path}: its folder is not there; create the run directory first")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with (
            schema.explained(path, timeout_s),
            contextlib.closing(sqlite3.connect(temporary, isolation_level=None)) as db,
        ):
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA foreign_keys = ON")
            db.execute("BEGIN")
            schema.create_tables(db)
            apply(db, chain.append(db, "create", payload))
            db.execute("COMMIT")
        _place(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _place(temporary: Path, path: Path) -> None:
    """Give the file its name without replacing what may have come there meanwhile."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise LedgerError(f"{path}: exists already; a ledger is never overwritten") from None
    except OSError:  # a file system without hard links
        if path.exists():
            raise LedgerError(f"{path}: exists already; a ledger is never overwritten") from None
        os.replace(temporary, path)
    if hasattr(os, "O_DIRECTORY"):  # the name is durable once its folder is synced
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
