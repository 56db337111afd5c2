"""The deletion ledger of one run: what was trained, on what, and what is no longer to be used."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedforget.errors import LedgerError
from fedforget.sequences.ledger import inputs, rules
from fedforget.sequences.ledger.connection import write_new
from fedforget.sequences.ledger.records import DELETED, Deletion, Module, Outcome
from fedforget.sequences.ledger.views import Views

Groups = Sequence[Iterable[tuple[Any, ...]]]
"""Groups of ``(client, slice, size)``: what the grouping functions return."""


class Ledger(Views):
    """An SQLite ledger: one file, one writer at a time, every change a whole transaction.

    A change is an event in a chain of hashes, and what it does to the tables; both are on
    disk before the method that makes it returns. After a crash, the file opens at the last
    whole change. Objects may be shared between threads; processes wait for each other up to
    ``timeout_s``. Keep it on a local disk: WAL needs shared memory.

    The chain shows alterations by anyone who does not recompute it; to show those too, note
    :meth:`head` elsewhere and give it to :meth:`check`.

    Parameters
    ----------
    path : Path
        An existing ledger; :meth:`create` makes one.
    timeout_s : float
        Seconds to wait for another process's change.
    read_only : bool
        Open for reading alone.
    verify : bool
        Run :meth:`check` first. It replays all events, a few milliseconds each.

    Raises
    ------
    LedgerError
        The file is missing, is no ledger, is of another version, or does not pass the check.
    """

    @classmethod
    def create(
        cls,
        path: str | Path,
        groups: Groups,
        sequences: Sequence[Sequence[int]],
        seed: int,
        timeout_s: float = 30.0,
    ) -> Ledger:
        """Write a new ledger with its first generation, and open it.

        Parameters
        ----------
        path : Path
            The file, ``ledger.sqlite`` in the run directory.
        groups : sequence of iterables of (client, slice, size)
            Group g is the g-th; every slice in one group.
        sequences : sequence of sequences of int
            The orders of groups that are trained.
        seed : int
            The run's seed.
        timeout_s : float
            As for opening.

        Raises
        ------
        LedgerError
            Something is there already, it cannot be written, or the plan does not fit together.
        """
        path = Path(path)
        payload = inputs.generation(0, groups, sequences, seed)
        write_new(path, payload, timeout_s)
        return cls(path, timeout_s)

    def record_module(
        self,
        prefix: Sequence[int],
        *,
        data_key: str,
        sha256: str,
        path: str,
        participants: Iterable[str],
        examples: int,
    ) -> Module:
        """Enter a trained module as active; entering the same again changes nothing.

        Parameters
        ----------
        prefix : sequence of int
            The ordered groups it was trained on.
        data_key : str
            What :meth:`data_key` gave for this prefix *before* the training began. If a deletion
            has come since, the module holds deleted data and is refused.
        sha256, path : str
            Hash of the module's file, and the file relative to the run directory.
        participants : iterable of str
            The clients that took part.
        examples : int
            Examples it was trained on.

        Returns
        -------
        Module
            As recorded; its status is ``"off"`` where it was recorded before and then deleted.

        Raises
        ------
        LedgerError
            The prefix belongs to no sequence, its data have changed since ``data_key`` was
            asked for, or another module is on record for the same prefix and data.
        """
        groups = inputs.prefix(prefix)
        what = f"module {list(groups)}"
        payload: dict[str, Any] = {
            "prefix": list(groups),
            "data_key": inputs.sha256(data_key, f"{what}: the data key"),
            "sha256": inputs.sha256(sha256, f"{what}: the file's hash"),
            "path": inputs.relative_path(path),
            "participants": sorted(
                {inputs.name(client, f"{what}: a participant") for client in participants}
            ),
            "examples": inputs.integer(examples, f"{what}: examples"),
        }
        with self._writing() as db:
            current = rules.generation(db)
            payload = {"generation": current, **payload}
            known = self._module(db, groups, data_key)
            if known is None:
                if not any(order[: len(groups)] == groups for order in rules.sequences(db)):
                    raise LedgerError(f"{self.path}: {what}: no sequence of generation {current} begins so")
                if rules.data_key(db, groups) != data_key:
                    raise LedgerError(
                        f"{self.path}: {what}: its data changed since its training began, by a deletion; "
                        "train it again under the present data key"
                    )
                self._enter(db, "module", payload)
                return Module(
                    current,
                    groups,
                    data_key,
                    sha256,
                    payload["path"],
                    tuple(payload["participants"]),
                    payload["examples"],
                    len(groups),
                    "active",
                )
            recorded = (known.sha256, known.path, list(known.participants), known.examples)
            if recorded != tuple(payload[key] for key in ("sha256", "path", "participants", "examples")):
                raise LedgerError(
                    f"{self.path}: {what}: another module is on record for the same prefix and data "
                    f"({known.path}); a recorded module is never replaced"
                )
            return known

    def request_deletion(
        self,
        request_id: str,
        client: str,
        slice_id: int | None = None,
        records: Iterable[str | int] | None = None,
    ) -> Outcome:
        """Delete a client's data, a slice, or records in a slice; see :class:`Deletion`.

        When it returns ``"deleted"``, the deletion is on disk: the data are marked for good,
        their groups are out of service, and every module trained on those groups is off.

        Raises
        ------
        LedgerError
            The request is malformed, its id was used for other data, or the ledger cannot be
            written. Nothing was changed then.
        """
        listed = None if records is None else tuple(records)
        return self.request_deletions([Deletion(request_id, client, slice_id, listed)])[0]

    def request_deletions(self, requests: Sequence[Deletion]) -> list[Outcome]:
        """Carry out several requests in order, in one transaction: all of them, or none on error.

        Raises
        ------
        LedgerError
            As :meth:`request_deletion`; an unknown client or slice is an outcome, not an error.
        """
        checked = [inputs.deletion(request) for request in requests]
        with self._writing() as db:
            return [self._delete(db, request_id, content) for request_id, content in checked]

    def _delete(self, db: sqlite3.Connection, request_id: str, content: dict[str, Any]) -> Outcome:
        row = db.execute(
            "SELECT client, slice_id, records, outcome FROM requests WHERE request_id = ?", (request_id,)
        ).fetchone()
        if row is not None:
            before = {"client": row[0], "slice": row[1], "records": row[2] and json.loads(row[2])}
            if before != content:
                raise LedgerError(
                    f"{self.path}: request {request_id!r} was carried out before for other data; "
                    "give a new request its own id"
                )
            return Outcome.from_dict(json.loads(row[3]))
        outcome, writes = rules.decide(db, request_id, content)
        if outcome.status == DELETED:
            self._enter(db, "deletion", {"content": content, "outcome": outcome.as_dict(), **writes})
        return outcome

    def repair(self, groups: Iterable[int]) -> None:
        """Let modules be trained again on what is left of deleted groups.

        The modules that were switched off stay off. New ones are recorded under the data key
        of what is left; until then, the sequences serve what they served before.

        Raises
        ------
        LedgerError
            A group is not deleted, or none of its data is left.
        """
        wanted = sorted({inputs.integer(group, "a group to repair") for group in groups})
        if not wanted:
            raise LedgerError("no group to repair is named; name at least one deleted group")
        with self._writing() as db:
            deleted = rules.groups_with(db, "deleted")
            for group in wanted:
                if group not in deleted:
                    raise LedgerError(
                        f"{self.path}: group {group} is not deleted; only a deleted group is repaired"
                    )
                if not any(rules.left_in(db, key) for key in rules.group_slices(db, group)):
                    raise LedgerError(f"{self.path}: nothing is left of group {group}; it cannot be repaired")
            self._enter(db, "repair", {"generation": rules.generation(db), "groups": wanted})

    def retrain(self, groups: Groups, sequences: Sequence[Sequence[int]], seed: int) -> int:
        """Begin a new generation over the remaining slices and return its number.

        Every module of the generation before goes off; the history stays. Deleted data cannot
        come back: only slices in :meth:`remaining_slices` are accepted, at the size left.

        Parameters
        ----------
        groups, sequences, seed
            As for :meth:`create`. Slices may be left out; sizes too.

        Raises
        ------
        LedgerError
            A slice is unknown or wholly deleted, or the plan does not fit together.
        """
        with self._writing() as db:
            number = rules.generation(db) + 1
            payload = inputs.generation(number, groups, sequences, seed, rules.remaining(db))
            self._enter(db, "retrain", payload)
            return number
