"""What follows from the tables: which data a module saw, and what a deletion takes with it.

Everything here only reads. The same functions decide when a request comes and when the audit
replays it, so an outcome on file that does not follow from the events before it shows.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from fedforget.errors import LedgerError, nearest
from fedforget.sequences.ledger.chain import canonical, digest
from fedforget.sequences.ledger.records import ALREADY_DELETED, DELETED, UNKNOWN, Outcome, Prefix, SliceKey


def generation(db: sqlite3.Connection) -> int:
    """Return the current generation."""
    return int(db.execute("SELECT max(generation) FROM generations").fetchone()[0])


def sequences(db: sqlite3.Connection) -> list[Prefix]:
    """Return the current generation's sequences."""
    query = "SELECT groups FROM sequences WHERE generation = ? ORDER BY position"
    return [tuple(json.loads(text)) for (text,) in db.execute(query, (generation(db),))]


def groups_with(db: sqlite3.Connection, status: str) -> frozenset[int]:
    """Return the current generation's groups of this status."""
    query = "SELECT group_id FROM groups WHERE generation = ? AND status = ?"
    return frozenset(group for (group,) in db.execute(query, (generation(db), status)))


def left_in(db: sqlite3.Connection, key: SliceKey) -> int:
    """Return how many records a slice has left of those it had when it was first declared."""
    if db.execute("SELECT 1 FROM deleted_slices WHERE client = ? AND slice_id = ?", key).fetchone():
        return 0
    first = "SELECT size FROM slices WHERE client = ? AND slice_id = ? ORDER BY generation LIMIT 1"
    gone = "SELECT count(*) FROM deleted_records WHERE client = ? AND slice_id = ?"
    return int(db.execute(first, key).fetchone()[0]) - int(db.execute(gone, key).fetchone()[0])


def remaining(db: sqlite3.Connection) -> dict[SliceKey, int]:
    """Return how many records are left in each slice ever declared, where any is."""
    keys = db.execute("SELECT DISTINCT client, slice_id FROM slices").fetchall()
    return {key: size for key in keys if (size := left_in(db, key)) > 0}


def group_slices(db: sqlite3.Connection, group: int) -> list[SliceKey]:
    """Return the slices of a group of the current generation, deleted ones included."""
    query = (
        "SELECT client, slice_id FROM slices WHERE generation = ? AND group_id = ? ORDER BY client, slice_id"
    )
    return [(client, slice_id) for client, slice_id in db.execute(query, (generation(db), group))]


def deleted_records(db: sqlite3.Connection, key: SliceKey) -> list[str]:
    """Return the records of a slice that were deleted by name, sorted."""
    query = "SELECT record FROM deleted_records WHERE client = ? AND slice_id = ? ORDER BY record"
    return [record for (record,) in db.execute(query, key)]


def data_key(db: sqlite3.Connection, prefix: Sequence[int]) -> str:
    """Return the fingerprint of the data that a module of this prefix may be trained on now.

    It covers the generation, and for each group in order its slices that are left, with the
    records deleted from them.

    Raises
    ------
    LedgerError
        A group of the prefix is unknown, or deleted and not repaired.
    """
    current, deleted = generation(db), groups_with(db, "deleted")
    content: list[Any] = [current]
    for group in prefix:
        slices = group_slices(db, group)
        if not slices:
            raise LedgerError(f"prefix {list(prefix)}: generation {current} has no group {group}")
        if group in deleted:
            raise LedgerError(
                f"prefix {list(prefix)}: group {group} was deleted; repair it first, or leave it out"
            )
        sizes = {key: left_in(db, key) for key in slices}
        content.append(
            [group, [[*key, sizes[key], deleted_records(db, key)] for key in slices if sizes[key]]]
        )
    return digest(content)


def decide(
    db: sqlite3.Connection, request_id: str, content: dict[str, Any]
) -> tuple[Outcome, dict[str, Any]]:
    """Decide what a deletion request comes to, without carrying it out.

    Parameters
    ----------
    db : sqlite3.Connection
        The ledger as it stands before the request.
    request_id : str
        The request.
    content : dict
        ``client``, ``slice`` (or None), ``records`` (sorted list, or None).

    Returns
    -------
    tuple
        The outcome, and what to write: ``slices`` and ``records`` newly deleted.
    """
    client, slice_id, records = content["client"], content["slice"], content["records"]
    current = generation(db)
    active = len(active_prefixes(db))

    def unchanged(status: str, message: str) -> tuple[Outcome, dict[str, Any]]:
        return Outcome(request_id, status, message, current, (), (), active), {"slices": [], "records": []}

    query = "SELECT DISTINCT slice_id FROM slices WHERE client = ? ORDER BY slice_id"
    of_client = [number for (number,) in db.execute(query, (client,))]
    if not of_client:
        clients = db.execute("SELECT DISTINCT client FROM slices ORDER BY client")
        hint = nearest(client, [name for (name,) in clients])
        return unchanged(UNKNOWN, f"client {client!r} has no data in this run{hint}; nothing was changed")
    if slice_id is not None and slice_id not in of_client:
        return unchanged(
            UNKNOWN,
            f"client {client!r} has no slice {slice_id}, only {', '.join(map(str, of_client))}; "
            "nothing was changed",
        )
    named: list[SliceKey] = [(client, number) for number in (of_client if slice_id is None else [slice_id])]
    what = f"client {client!r}" + ("" if slice_id is None else f", slice {slice_id}")
    if records is None:
        slices = [key for key in named if left_in(db, key)]
        fresh: list[str] = []
        if not slices:
            return unchanged(ALREADY_DELETED, f"{what}: all of it was deleted before; nothing was changed")
        touched = slices
    else:
        slices = []
        gone, left = set(deleted_records(db, named[0])), left_in(db, named[0])
        fresh = [record for record in records if record not in gone]
        if not fresh or not left:
            return unchanged(
                ALREADY_DELETED, f"{what}: these records were deleted before; nothing was changed"
            )
        if len(fresh) > left:
            return unchanged(
                UNKNOWN,
                f"{what} has {left} records left, and {len(fresh)} are named that were not "
                "deleted before; nothing was changed",
            )
        touched = named
    groups = _groups_of(db, current, touched)
    hit = sorted(groups - groups_with(db, "deleted"))
    off = sorted(
        (prefix for prefix in active_prefixes(db) if not groups.isdisjoint(prefix)),
        key=lambda prefix: (len(prefix), prefix),
    )
    amount = f"{len(fresh)} of its records" if records is not None else "all of it"
    message = (
        f"{what}: {amount} deleted; "
        + (
            f"groups {', '.join(map(str, hit))} out of service, "
            if hit
            else "no further group out of service, "
        )
        + f"{len(off)} modules switched off, {active - len(off)} still active"
    )
    outcome = Outcome(request_id, DELETED, message, current, tuple(hit), tuple(off), active - len(off))
    return outcome, {
        "slices": [list(key) for key in slices],
        "records": [[*named[0], record] for record in fresh],
    }


def _groups_of(db: sqlite3.Connection, current: int, keys: Sequence[SliceKey]) -> set[int]:
    query = "SELECT group_id FROM slices WHERE generation = ? AND client = ? AND slice_id = ?"
    return {group for key in keys for (group,) in db.execute(query, (current, *key))}


def active_prefixes(db: sqlite3.Connection) -> set[Prefix]:
    """Return the prefixes that have an active module. Only the current generation can have any."""
    return {
        tuple(json.loads(text))
        for (text,) in db.execute("SELECT prefix FROM modules WHERE status = 'active'")
    }


def prefix_text(prefix: Sequence[int]) -> str:
    """Return the prefix as the tables hold it."""
    return canonical(list(prefix))
