"""What the ledger takes and gives: requests, outcomes, modules, events, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Prefix = tuple[int, ...]
SliceKey = tuple[str, int]

DELETED = "deleted"
ALREADY_DELETED = "already deleted"
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Deletion:
    """A request to delete data: a whole client, one of its slices, or records in a slice.

    Parameters
    ----------
    request_id : str
        Chosen by whoever asks; sending it again is answered again, not carried out again.
    client : str
        Whose data.
    slice_id : int, optional
        Which of the client's slices; all of them by default.
    records : tuple of str, optional
        Which of the slice's records; all of them by default. The ledger holds no list of a
        client's records, so their names are recorded as they come. Integers are taken as
        their decimal text.
    """

    request_id: str
    client: str
    slice_id: int | None = None
    records: tuple[str | int, ...] | None = None


@dataclass(frozen=True)
class Outcome:
    """The answer to a deletion request.

    Parameters
    ----------
    request_id : str
        The request.
    status : str
        ``"deleted"``: carried out, and durable. ``"already deleted"``: an earlier request had
        deleted all of it. ``"unknown"``: no such client or slice, or more records than the
        slice has. The last two change nothing, and are not kept.
    message : str
        The same in a sentence.
    generation : int
        The generation in which it was carried out.
    groups : tuple of int
        Groups that this request took out of service, in the numbering of that generation.
    modules_off : tuple of prefixes
        Modules that this request switched off, shortest first.
    modules_left : int
        Modules still active. With none, service has ended: repair or retrain.
    """

    request_id: str
    status: str
    message: str
    generation: int
    groups: tuple[int, ...]
    modules_off: tuple[Prefix, ...]
    modules_left: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            **vars(self),
            "groups": list(self.groups),
            "modules_off": [list(prefix) for prefix in self.modules_off],
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Outcome:
        """The inverse of :meth:`as_dict`."""
        return cls(
            **{
                **value,
                "groups": tuple(value["groups"]),
                "modules_off": tuple(tuple(prefix) for prefix in value["modules_off"]),
            }
        )


@dataclass(frozen=True)
class Module:
    """A trained module, identified by generation, prefix and data key.

    Parameters
    ----------
    generation : int
        Counts from 0.
    prefix : tuple of int
        The ordered groups it was trained on, its own last.
    data_key : str
        Fingerprint of the data of those groups, which the deletions made before the training
        are part of; see :meth:`Ledger.data_key`.
    sha256 : str
        Of the module's file.
    path : str
        The file, relative to the run directory.
    participants : tuple of str
        Clients that took part, sorted.
    examples : int
        Examples it was trained on.
    phase : int
        The length of the prefix.
    status : str
        ``"active"`` or ``"off"``. A module that is off stays off.
    """

    generation: int
    prefix: Prefix
    data_key: str
    sha256: str
    path: str
    participants: tuple[str, ...]
    examples: int
    phase: int
    status: str


@dataclass(frozen=True)
class Head:
    """The last event: its number and its hash.

    Kept outside the ledger, it shows later that no event before it was taken back or
    rewritten, which the file alone cannot show.
    """

    number: int
    sha256: str


@dataclass(frozen=True)
class Event:
    """One link of the chain of events.

    Parameters
    ----------
    number : int
        Counts from 1.
    kind : str
        ``create``, ``module``, ``deletion``, ``repair`` or ``retrain``.
    at : str
        UTC time, ISO 8601.
    payload : dict
        What happened.
    previous : str
        Hash of the event before.
    sha256 : str
        Hash of all of the above.
    """

    number: int
    kind: str
    at: str
    payload: dict[str, Any]
    previous: str
    sha256: str
