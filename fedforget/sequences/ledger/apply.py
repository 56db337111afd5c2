"""Carry an event out on the tables. The store and the audit's replay both go through here."""

from __future__ import annotations

import sqlite3
from typing import Any

from fedforget.sequences.ledger.chain import canonical
from fedforget.sequences.ledger.records import Event
from fedforget.sequences.ledger.rules import prefix_text


def apply(db: sqlite3.Connection, event: Event) -> None:
    """Change the tables as the event says, in the open transaction."""
    _KINDS[event.kind](db, event, event.payload)


def _generation(db: sqlite3.Connection, event: Event, payload: dict[str, Any]) -> None:
    number = payload["generation"]
    db.execute("UPDATE modules SET status = 'off', off_event = ? WHERE status = 'active'", (event.number,))
    db.execute("INSERT INTO generations VALUES (?, ?, ?)", (number, payload["seed"], event.number))
    for group, slices in enumerate(payload["groups"]):
        db.execute("INSERT INTO groups VALUES (?, ?, 'intact')", (number, group))
        db.executemany(
            "INSERT INTO slices VALUES (?, ?, ?, ?, ?)",
            [(number, client, slice_id, size, group) for client, slice_id, size in slices],
        )
    db.executemany(
        "INSERT INTO sequences VALUES (?, ?, ?)",
        [(number, position, prefix_text(order)) for position, order in enumerate(payload["sequences"])],
    )


def _module(db: sqlite3.Connection, event: Event, payload: dict[str, Any]) -> None:
    db.execute(
        "INSERT INTO modules VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'active', ?, NULL)",
        (
            payload["generation"],
            prefix_text(payload["prefix"]),
            payload["data_key"],
            payload["sha256"],
            payload["path"],
            canonical(payload["participants"]),
            payload["examples"],
            len(payload["prefix"]),
            event.number,
        ),
    )


def _deletion(db: sqlite3.Connection, event: Event, payload: dict[str, Any]) -> None:
    content, outcome = payload["content"], payload["outcome"]
    request_id, current = outcome["request_id"], outcome["generation"]
    records = content["records"]
    db.execute(
        "INSERT INTO requests VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            request_id,
            content["client"],
            content["slice"],
            None if records is None else canonical(records),
            outcome["status"],
            canonical(outcome),
            event.at,
            event.number,
        ),
    )
    db.executemany(
        "INSERT INTO deleted_slices VALUES (?, ?, ?)", [(*key, request_id) for key in payload["slices"]]
    )
    db.executemany(
        "INSERT INTO deleted_records VALUES (?, ?, ?, ?)",
        [(*record, request_id) for record in payload["records"]],
    )
    db.executemany(
        "UPDATE groups SET status = 'deleted' WHERE generation = ? AND group_id = ?",
        [(current, group) for group in outcome["groups"]],
    )
    db.executemany(
        "UPDATE modules SET status = 'off', off_event = ? "
        "WHERE generation = ? AND prefix = ? AND status = 'active'",
        [(event.number, current, prefix_text(prefix)) for prefix in outcome["modules_off"]],
    )


def _repair(db: sqlite3.Connection, event: Event, payload: dict[str, Any]) -> None:
    db.executemany(
        "UPDATE groups SET status = 'repaired' WHERE generation = ? AND group_id = ?",
        [(payload["generation"], group) for group in payload["groups"]],
    )


_KINDS = {
    "create": _generation,
    "retrain": _generation,
    "module": _module,
    "deletion": _deletion,
    "repair": _repair,
}
