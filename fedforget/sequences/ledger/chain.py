"""The chain of events: each one's hash covers its content and the hash of the one before."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from fedforget.sequences.ledger.records import Event, Head

START = "0" * 64


def canonical(value: Any) -> str:
    """JSON text with one spelling per value: sorted keys, no spaces, ASCII, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical(value).encode("ascii")).hexdigest()


def head(db: sqlite3.Connection) -> Head:
    """Return the last event's number and hash; number 0 before the first."""
    row = db.execute("SELECT number, sha256 FROM events ORDER BY number DESC LIMIT 1").fetchone()
    return Head(*row) if row else Head(0, START)


def append(db: sqlite3.Connection, kind: str, payload: dict[str, Any]) -> Event:
    """Add an event to the open transaction."""
    last = head(db)
    at = datetime.now(UTC).isoformat(timespec="microseconds")
    sha256 = digest([last.number + 1, kind, at, payload, last.sha256])
    event = Event(last.number + 1, kind, at, payload, last.sha256, sha256)
    insert(db, event)
    return event


def insert(db: sqlite3.Connection, event: Event) -> None:
    """Write the event's row as it is."""
    db.execute(
        "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)",
        (event.number, event.kind, event.at, canonical(event.payload), event.previous, event.sha256),
    )


def events(db: sqlite3.Connection) -> Iterator[Event]:
    """Yield the events in order."""
    for number, kind, at, payload, previous, sha256 in db.execute("SELECT * FROM events ORDER BY number"):
        yield Event(number, kind, at, json.loads(payload), previous, sha256)


def broken_links(db: sqlite3.Connection) -> list[str]:
    """Return one sentence for the first event that does not continue the chain; none if all do."""
    expected = Head(0, START)
    for number, kind, at, payload, previous, sha256 in db.execute("SELECT * FROM events ORDER BY number"):
        if number != expected.number + 1:
            return [f"event {expected.number + 1} is missing from the chain"]
        if previous != expected.sha256:
            return [
                f"event {number} ({kind}) does not follow event {expected.number}: the chain was cut there"
            ]
        try:
            content = json.loads(payload)
            sound = canonical(content) == payload and digest([number, kind, at, content, previous]) == sha256
        except ValueError:
            sound = False
        if not sound:
            return [f"event {number} ({kind}, {at}) was altered: its content does not have its hash"]
        expected = Head(number, sha256)
    return [] if expected.number else ["there is no event: not even the creation of the ledger"]
