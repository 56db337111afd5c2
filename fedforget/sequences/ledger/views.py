"""What a ledger answers: each answer is read in one transaction, as of one moment."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from fedforget.sequences.ledger import chain, inputs, rules
from fedforget.sequences.ledger.connection import Connection
from fedforget.sequences.ledger.records import Event, Head, Module, Outcome, Prefix

_MODULE = (
    "SELECT generation, prefix, data_key, sha256, path, participants, examples, phase, status FROM modules"
)


@dataclass(frozen=True)
class Request:
    """A request that was carried out.

    Parameters
    ----------
    at : str
        UTC time, ISO 8601.
    client, slice_id, records
        What it named.
    outcome : Outcome
        What was answered.
    """

    at: str
    client: str
    slice_id: int | None
    records: tuple[str, ...] | None
    outcome: Outcome


class Views(Connection):
    """The reading half of :class:`Ledger`."""

    def generation(self) -> int:
        """Return the number of the current generation, from 0."""
        with self._reading() as db:
            return rules.generation(db)

    def seed(self) -> int:
        """Return the seed that the current generation was created with."""
        with self._reading() as db:
            query = "SELECT seed FROM generations WHERE generation = ?"
            return int(db.execute(query, (rules.generation(db),)).fetchone()[0])

    def sequences(self) -> list[Prefix]:
        """Return the current generation's orders of groups."""
        with self._reading() as db:
            return rules.sequences(db)

    def groups(self) -> list[list[tuple[str, int, int]]]:
        """Return the current generation's groups of (client, slice, size at its beginning)."""
        with self._reading() as db:
            rows = db.execute(
                "SELECT group_id, client, slice_id, size FROM slices WHERE generation = ? "
                "ORDER BY group_id, client, slice_id",
                (rules.generation(db),),
            )
            found: dict[int, list[tuple[str, int, int]]] = {}
            for group, *item in rows:
                found.setdefault(group, []).append((item[0], item[1], item[2]))
            return [found[group] for group in sorted(found)]

    def deleted_groups(self) -> frozenset[int]:
        """Return the current generation's groups that are out of service, repaired ones left out."""
        with self._reading() as db:
            return rules.groups_with(db, "deleted")

    def remaining_slices(self) -> list[tuple[str, int, int]]:
        """Return (client, slice, records left) of every slice that has data left, in order."""
        with self._reading() as db:
            return sorted((*key, size) for key, size in rules.remaining(db).items())

    def deleted_records(self, client: str, slice_id: int) -> tuple[str, ...] | None:
        """Return which records of a slice were deleted, sorted; None if all of the slice was.

        This is what a client leaves out when it trains, in this generation and every later one.
        """
        with self._reading() as db:
            key = (inputs.name(client, "the client"), inputs.integer(slice_id, "the slice"))
            whole = "SELECT 1 FROM deleted_slices WHERE client = ? AND slice_id = ?"
            if db.execute(whole, key).fetchone():
                return None
            return tuple(rules.deleted_records(db, key))

    def data_key(self, prefix: Sequence[int]) -> str:
        """Return the fingerprint of the data that a module of this prefix may be trained on now.

        Ask for it before training and hand it to :meth:`Ledger.record_module` after: a deletion
        in between changes it, and the module is refused.

        Raises
        ------
        LedgerError
            A group of the prefix is unknown, or deleted and not repaired.
        """
        with self._reading() as db:
            return rules.data_key(db, inputs.prefix(prefix))

    def modules(self, status: str | None = None) -> list[Module]:
        """Return every module on record, of all generations, or those ``"active"`` or ``"off"``."""
        with self._reading() as db:
            rows = db.execute(f"{_MODULE} WHERE ?1 IS NULL OR status = ?1 ORDER BY event", (status,))
            return [_module_of(row) for row in rows]

    def live_modules(self) -> dict[Prefix, Module]:
        """Return the active modules by prefix, shortest first."""
        found = {module.prefix: module for module in self.modules("active")}
        return dict(sorted(found.items(), key=lambda item: (len(item[0]), item[0])))

    def served_prefixes(self) -> list[Prefix]:
        """Return, for each sequence, the longest prefix that has all its modules active."""
        with self._reading() as db:
            active = rules.active_prefixes(db)
            served = []
            for order in rules.sequences(db):
                length = 0
                while length < len(order) and order[: length + 1] in active:
                    length += 1
                served.append(order[:length])
            return served

    def requests(self) -> list[Request]:
        """Return the requests that were carried out, in order."""
        with self._reading() as db:
            rows = db.execute("SELECT at, client, slice_id, records, outcome FROM requests ORDER BY event")
            return [
                Request(
                    at,
                    client,
                    slice_id,
                    None if records is None else tuple(json.loads(records)),
                    Outcome.from_dict(json.loads(outcome)),
                )
                for at, client, slice_id, records, outcome in rows
            ]

    def history(self) -> list[Event]:
        """Return every event, in order."""
        with self._reading() as db:
            return list(chain.events(db))

    def head(self) -> Head:
        """Return the last event's number and hash, to be noted outside the ledger."""
        with self._reading() as db:
            return chain.head(db)

    @staticmethod
    def _module(db: sqlite3.Connection, prefix: Prefix, data_key: str) -> Module | None:
        row = db.execute(
            f"{_MODULE} WHERE generation = ? AND prefix = ? AND data_key = ?",
            (rules.generation(db), rules.prefix_text(prefix), data_key),
        ).fetchone()
        return None if row is None else _module_of(row)


def _module_of(row: tuple[int, str, str, str, str, str, int, int, str]) -> Module:
    generation, prefix, data_key, sha256, path, participants, examples, phase, status = row
    groups, clients = tuple(json.loads(prefix)), tuple(json.loads(participants))
    return Module(generation, groups, data_key, sha256, path, clients, examples, phase, status)
