"""Checks and canonical forms of what the ledger is given, before a transaction begins."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, SupportsIndex

from fedforget.errors import LedgerError
from fedforget.sequences.ledger.records import Deletion, Prefix, SliceKey

_SHA256 = re.compile("[0-9a-f]{64}")


def integer(value: SupportsIndex, what: str, least: int = 0) -> int:
    """Return ``value`` as an integer of at least ``least`` that SQLite can hold."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or not least <= number < 2**63:
        raise LedgerError(f"{what} is {value!r}; give an integer of at least {least}")
    return number


def name(value: str, what: str) -> str:
    """Return ``value`` if it is a text that is not empty and can be written as UTF-8."""
    if not isinstance(value, str) or not value:
        raise LedgerError(f"{what} is {value!r}; give a text that is not empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise LedgerError(f"{what} is {value!r}, which is not valid Unicode") from None
    return value


def prefix(value: Sequence[int]) -> Prefix:
    """Return a prefix as a tuple of integers."""
    groups = tuple(integer(group, "a group of the prefix") for group in value)
    if not groups:
        raise LedgerError("the prefix is empty; name at least one group")
    return groups


def sha256(value: str, what: str) -> str:
    """Return ``value`` if it is 64 lower-case hexadecimal digits."""
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise LedgerError(f"{what}: {value!r} is not a SHA-256 in hexadecimal")
    return value


def relative_path(value: str) -> str:
    """Return ``value`` if it is a path inside the run directory."""
    path = PurePosixPath(name(value, "the module's path"))
    if path.is_absolute() or ".." in path.parts:
        raise LedgerError(
            f"the module's path is {value!r}; give it relative to the run directory and inside it"
        )
    return str(path)


def generation(
    number: int,
    groups: Sequence[Iterable[tuple[Any, ...]]],
    sequences: Sequence[Sequence[int]],
    seed: int,
    sizes: Mapping[SliceKey, int] | None = None,
) -> dict[str, Any]:
    """Return the payload of a ``create`` or ``retrain`` event.

    Parameters
    ----------
    number : int
        Of the generation.
    groups : sequence of iterables of (client, slice, size)
        The size may be left out where ``sizes`` has it.
    sequences : sequence of sequences of int
        Orders of the groups; each names groups in range, none twice.
    seed : int
        What the plan was drawn from.
    sizes : mapping, optional
        Records left in each slice that may take part; without it, any slice may.

    Raises
    ------
    LedgerError
        No group or sequence, an empty group, a slice in two groups, without a size, or not left.
    """
    listed: list[list[list[Any]]] = []
    seen: set[SliceKey] = set()
    for index, group in enumerate(groups):
        members = [_slice(item, sizes) for item in group]
        if not members:
            raise LedgerError(f"group {index} has no slice; use fewer groups")
        for client, slice_id, _ in members:
            if (client, slice_id) in seen:
                raise LedgerError(
                    f"client {client!r}: slice {slice_id} is named twice; a slice is in one group"
                )
            seen.add((client, slice_id))
        listed.append([list(member) for member in sorted(members)])
    if not listed:
        raise LedgerError("there is no group; give at least one")
    orders = [list(prefix(order)) for order in sequences]
    if not orders:
        raise LedgerError("there is no sequence; give at least one order of the groups")
    for position, order in enumerate(orders):
        if len(set(order)) < len(order) or max(order) >= len(listed):
            raise LedgerError(
                f"sequence {position}, {order}, does not fit; name groups 0 to {len(listed) - 1}, none twice"
            )
    return {"generation": number, "seed": integer(seed, "the seed"), "groups": listed, "sequences": orders}


def _slice(item: tuple[Any, ...], sizes: Mapping[SliceKey, int] | None) -> tuple[str, int, int]:
    if not isinstance(item, tuple) or len(item) not in (2, 3):
        raise LedgerError(f"{item!r} is not a (client, slice, size) tuple")
    client, slice_id = name(item[0], "a slice's client"), integer(item[1], f"client {item[0]!r}: a slice id")
    where = f"client {client!r}, slice {slice_id}"
    if sizes is None:
        if len(item) == 2:
            raise LedgerError(f"{where}: the size is missing; give (client, slice, size)")
        return client, slice_id, integer(item[2], f"{where}: the size", 1)
    if (client, slice_id) not in sizes:
        raise LedgerError(
            f"{where}: it has no data left in this ledger; use the slices in remaining_slices()"
        )
    size = sizes[client, slice_id]
    if len(item) == 3 and item[2] != size:
        raise LedgerError(
            f"{where}: {size} records are left, not {item[2]}; use the slices in remaining_slices()"
        )
    return client, slice_id, size


def deletion(request: Deletion) -> tuple[str, dict[str, Any]]:
    """Return the request's id and its content in canonical form.

    Raises
    ------
    LedgerError
        An id or client that is empty, records without a slice, or an empty list of records.
    """
    request_id = name(request.request_id, "the request id")
    client = name(request.client, f"request {request_id!r}: the client")
    slice_id = request.slice_id
    if slice_id is not None:
        slice_id = integer(slice_id, f"request {request_id!r}: the slice")
    records = request.records
    if records is None:
        return request_id, {"client": client, "slice": slice_id, "records": None}
    if slice_id is None:
        raise LedgerError(f"request {request_id!r} names records but no slice; name the slice they are in")
    if isinstance(records, str) or not records:
        raise LedgerError(
            f"request {request_id!r}: records is {records!r}; list at least one, or leave records out"
        )
    texts = {
        str(record)
        if isinstance(record, int) and not isinstance(record, bool)
        else name(record, f"request {request_id!r}: a record")  # type: ignore[arg-type]
        for record in records
    }
    return request_id, {"client": client, "slice": slice_id, "records": sorted(texts)}
