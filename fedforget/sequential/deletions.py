"""Deletion requests from people and files: read, checked against the data, and carried out in the ledger."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedforget.data.corpora import load_corpus
from fedforget.data.holdings import Holdings, holdings
from fedforget.errors import DataError, RunError, nearest
from fedforget.files import atomic_path, read_json
from fedforget.runs import RunDirectory
from fedforget.sequences.ledger import UNKNOWN, Deletion, Ledger, Outcome
from fedforget.sequential.approximate import drop_stale
from fedforget.sequential.run_ledger import note_head, open_ledger

KEYS = ("request", "client", "slice", "records")


def deletion(
    client: str, slice_id: int | None, records: Sequence[str] | None, request_id: str = ""
) -> Deletion:
    """Return a request; without an id it gets one that is made of its content.

    Asking for the same twice is then the same request, which is answered as before.
    """
    named = None if records is None else tuple(sorted(set(records)))
    if not request_id:
        content = json.dumps([client, slice_id, named])
        request_id = f"auto-{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    return Deletion(request_id, client, slice_id, named)


def read_requests(path: Path) -> list[Deletion]:
    """Read requests from a file: one JSON object a line.

    Keys: ``client``, and optionally ``slice`` (a number), ``records`` (a list of record ids in that
    slice) and ``request`` (an id). Blank lines are skipped.

    Raises
    ------
    DataError
        A line that is no request; names the file and the line.
    """
    try:
        # utf-8-sig drops the byte order mark that some editors write. Only a newline ends a line: a text
        # in JSON may hold other separators that splitlines() would cut it at.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    found: dict[str, tuple[int, Deletion]] = {}
    ordered = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        request = _request(line, f"{path}, line {number}")
        first, known = found.setdefault(request.request_id, (number, request))
        if known != request:
            raise DataError(
                f"{path}, line {number}: request {request.request_id!r} was given in line {first} "
                "for other data; give each request its own id"
            )
        if known is request:
            ordered.append(request)
    if not ordered:
        raise DataError(f"{path}: holds no request; write one JSON object a line")
    return ordered


def write_requests(path: Path, requests: Iterable[Deletion]) -> None:
    """Write requests to a file that :func:`read_requests` reads back, atomically."""
    lines = []
    for one in requests:
        row = {"request": one.request_id, "client": one.client, "slice": one.slice_id, "records": one.records}
        lines.append(json.dumps({key: value for key, value in row.items() if value is not None}))
    with atomic_path(path) as temporary:
        temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def forget(run: RunDirectory, requests: Sequence[Deletion]) -> list[Outcome]:
    """Carry out requests, in order and in one transaction, and answer each.

    Requests that name records the slice never had are answered as unknown and not carried out; the
    others are. What is answered as deleted is on disk, and the files of the modules that it switched
    off are removed.

    Raises
    ------
    LedgerError
        A malformed request, a request id used before for other data, or a ledger that cannot be
        written. Nothing was changed then.
    """
    with open_ledger(run) as ledger:
        refused = _unknown_records(run, ledger, requests)
        carried = ledger.request_deletions([one for one in requests if one.request_id not in refused])
        purge(run, ledger)
        answered = {outcome.request_id: outcome for outcome in carried} | refused
        note_head(run, ledger)
    return [answered[one.request_id] for one in requests]


def purge(run: RunDirectory, ledger: Ledger) -> int:
    """Remove the files of modules that are off, which deleted data made, and return how many went.

    So do the results that an interrupted training left of groups that are out of service.
    Their hashes stay in the ledger. Nothing can put a module back in service that is off.
    """
    active = {module.path for module in ledger.modules("active")}
    files = {run.path / module.path for module in ledger.modules("off") if module.path not in active}
    gone = [path for path in files if path.is_file()]
    for path in gone:
        path.unlink(missing_ok=True)
    _purge_spool(run, ledger)
    drop_stale(run.path, ledger, run.sequential.method)
    return len(gone)


def _purge_spool(run: RunDirectory, ledger: Ledger) -> None:
    folder = run.path / "spool"
    if not folder.is_dir():
        return
    with contextlib.suppress(Timeout), FileLock(run.path / ".training.lock", timeout=0):
        # A training that is under way drops them itself; one that goes on later makes averages anew.
        shutil.rmtree(folder / "current", ignore_errors=True)
        deleted = ledger.deleted_groups()
        for facts in folder.glob("*.json"):
            prefix = _prefix(facts)
            if prefix is None or not deleted.isdisjoint(prefix):
                facts.with_suffix(".safetensors").unlink(missing_ok=True)
                facts.unlink(missing_ok=True)


def _prefix(facts: Path) -> list[int] | None:
    try:
        found = read_json(facts)["prefix"]
    except (RunError, KeyError, TypeError):
        return None
    return found if isinstance(found, list) else None


def held(run: RunDirectory) -> Holdings:
    """Return which records each client of a run holds, deleted ones included.

    Clients with data of their own (:attr:`RunDirectory.own_data`) are not in it: only their nodes know.
    """
    config = run.sequential
    found = holdings(config.data, load_corpus(config.data, config.seeds.data).federated, config.seeds.data)
    return {name: slices for name, slices in found.items() if name not in run.own_data}


class _TwiceError(Exception):
    """A key that an object holds twice: json would take the last, and delete the wrong data."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _TwiceError(key)
        found[key] = value
    return found


def _request(line: str, where: str) -> Deletion:
    try:
        raw = json.loads(line, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: is not JSON ({error})") from error
    except _TwiceError as twice:
        raise DataError(f"{where}: holds the key {twice.args[0]!r} twice; give it once") from None
    if not isinstance(raw, dict):
        raise DataError(f'{where}: is not a JSON object; write e.g. {{"client": "client-00", "slice": 1}}')
    for key in raw:
        if key not in KEYS:
            raise DataError(f"{where}: unknown key {key!r}{nearest(key, KEYS)}; keys: {', '.join(KEYS)}")
    client = raw.get("client")
    if not isinstance(client, str) or not client:
        raise DataError(f"{where}: 'client' is missing or is not a text; name the client whose data it is")
    return deletion(client, _slice(raw, where), _records(raw, where), _text(raw, where))


def _slice(raw: Mapping[str, Any], where: str) -> int | None:
    value = raw.get("slice")
    if value is None:
        if raw.get("records") is not None:
            raise DataError(f"{where}: names records but no slice; name the slice that they are in")
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise DataError(f"{where}: 'slice' is {value!r}, not a number of a slice")
    return value


def _records(raw: Mapping[str, Any], where: str) -> list[str] | None:
    value = raw.get("records")
    if value is None:
        return None
    if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
        raise DataError(f"{where}: 'records' is not a list of record ids; leave it out to delete the slice")
    return value


def _text(raw: Mapping[str, Any], where: str) -> str:
    value = raw.get("request", "")
    if not isinstance(value, str):
        raise DataError(f"{where}: 'request' is {value!r}, not a text")
    return value


def _unknown_records(run: RunDirectory, ledger: Ledger, requests: Iterable[Deletion]) -> dict[str, Outcome]:
    """Answer the requests that name records which their slice never had."""
    refused: dict[str, Outcome] = {}
    naming = [one for one in requests if one.records is not None]
    if not naming:
        return refused
    own = run.own_data
    for one in naming:
        if one.client in own:
            raise RunError(
                f"{run.path}: client {one.client!r} has data of its own on its node, where record ids cannot "
                "be checked; delete the slice or the client instead (nothing was changed)"
            )
    data, left = held(run), len(ledger.live_modules())
    for one in naming:
        records = data.get(one.client, {}).get(one.slice_id if one.slice_id is not None else -1)
        if records is None:
            continue  # the ledger has the words for an unknown client or slice
        strange = sorted(set(map(str, one.records or ())) - set(records))
        if strange:
            message = (
                f"client {one.client!r}, slice {one.slice_id} has no record {strange[0]!r}"
                f"{nearest(strange[0], records)}; nothing was changed"
            )
            refused[one.request_id] = Outcome(
                one.request_id, UNKNOWN, message, ledger.generation(), (), (), left
            )
    return refused
