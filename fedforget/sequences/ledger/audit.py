"""The audit: the chain holds, and the tables are what the events make them."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from fedforget.errors import LedgerError
from fedforget.sequences.ledger import chain, rules, schema
from fedforget.sequences.ledger.apply import apply
from fedforget.sequences.ledger.records import Event, Head


def problems(db: sqlite3.Connection, known_head: Head | None = None) -> list[str]:
    """Return what is wrong with a ledger, one sentence each; none when it is sound.

    In order, stopping at the first kind of problem found: SQLite's own checks, the tables and
    guards, the chain of hashes, the known head, the tables against a replay of the events.

    Parameters
    ----------
    db : sqlite3.Connection
        In a transaction, so that all of it is read as of one moment.
    known_head : Head, optional
        A head noted earlier, outside the file.
    """
    return (
        _damage(db) or _schema(db) or chain.broken_links(db) or _forgotten(db, known_head) or _differences(db)
    )


def _damage(db: sqlite3.Connection) -> list[str]:
    found = [text for (text,) in db.execute("PRAGMA integrity_check") if text != "ok"]
    found += [
        f"a row of table {table} refers to a missing row of {parent}"
        for table, _, parent, _ in db.execute("PRAGMA foreign_key_check")
    ]
    return found


def _schema(db: sqlite3.Connection) -> list[str]:
    query = "SELECT type || ' ' || name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"
    with closing(schema.memory()) as fresh:
        expected = dict(fresh.execute(query))
    actual = dict(db.execute(query))
    return (
        [f"the ledger's {name} is missing" for name in expected if name not in actual]
        + [f"the ledger has a {name} that does not belong there" for name in actual if name not in expected]
        + [
            f"the ledger's {name} was altered"
            for name in expected
            if name in actual and actual[name] != expected[name]
        ]
    )


def _forgotten(db: sqlite3.Connection, known: Head | None) -> list[str]:
    if known is None or known.number == 0:
        return []
    row = db.execute("SELECT sha256 FROM events WHERE number = ?", (known.number,)).fetchone()
    if row is None:
        return [
            f"event {known.number}, noted earlier, is gone: "
            f"the ledger was set back to event {chain.head(db).number}"
        ]
    if row[0] != known.sha256:
        return [f"event {known.number} is not the one noted earlier: the chain was rewritten"]
    return []


def _differences(db: sqlite3.Connection) -> list[str]:
    with closing(schema.memory()) as replay:
        replay.execute("PRAGMA foreign_keys = ON")
        replay.execute("BEGIN")
        for event in chain.events(db):
            try:
                chain.insert(replay, event)
                _follows(replay, event)
                apply(replay, event)
            except (sqlite3.Error, LedgerError, KeyError, TypeError, ValueError) as error:
                return [f"event {event.number} ({event.kind}) does not follow from those before it: {error}"]
        return [sentence for table in schema.TABLES for sentence in _table_differences(db, replay, table)]


def _follows(replay: sqlite3.Connection, event: Event) -> None:
    """Check that the event is what the rules give on the state before it."""
    payload = event.payload
    if event.kind == "deletion":
        outcome, writes = rules.decide(replay, payload["outcome"]["request_id"], payload["content"])
        if {"outcome": outcome.as_dict(), "content": payload["content"], **writes} != payload:
            raise LedgerError("its outcome is another than its request comes to")
    elif event.kind == "module" and (
        payload["generation"] != rules.generation(replay)
        or rules.data_key(replay, payload["prefix"]) != payload["data_key"]
    ):
        raise LedgerError("its module was trained on other data than were left at the time")


def _table_differences(db: sqlite3.Connection, replay: sqlite3.Connection, table: str) -> list[str]:
    info = db.execute(f"PRAGMA table_info({table})").fetchall()
    columns = [name for _, name, *_ in info]
    keys = [name for _, name, _, _, _, position in info if position]
    query = f"SELECT * FROM {table} ORDER BY {', '.join(keys)}"
    present, due = db.execute(query).fetchall(), replay.execute(query).fetchall()
    if present == due:
        return []
    actual, expected = (
        {tuple(row[key] for key in keys): row for row in (dict(zip(columns, r, strict=True)) for r in rows)}
        for rows in (present, due)
    )
    sentences = []
    for key in sorted(actual.keys() | expected.keys(), key=repr):
        name = f"table {table}, row {', '.join(f'{k} {v!r}' for k, v in zip(keys, key, strict=True))}"
        if key not in expected:
            sentences.append(f"{name}: no event made it")
        elif key not in actual:
            sentences.append(f"{name}: it is missing, though the events made it")
        else:
            sentences += [
                f"{name}: {column} is {actual[key][column]!r}, the events make it {expected[key][column]!r}"
                for column in columns
                if actual[key][column] != expected[key][column]
            ]
    return sentences
