"""Runs on disk: which there are, what one holds, and removing those that are not wanted."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedforget.errors import FedForgetError, RunError
from fedforget.files import home
from fedforget.reporting.tables import Table
from fedforget.runs import RunDirectory

RUNNING = "running"


@dataclass(frozen=True)
class Entry:
    """One run's directory.

    Attributes
    ----------
    path : Path
    status : str
        ``completed``, ``failed``, ``running`` (or ended without a word), or ``unreadable``.
    started : str
    preset : str
    size : int
        Bytes of all its files.
    error : str
        Why it failed.
    """

    path: Path
    status: str
    started: str
    preset: str
    size: int
    error: str = ""


def find(folder: Path | None = None) -> list[Entry]:
    """Return the runs directly below a folder, by default ``$FEDFORGET_HOME/runs``, oldest first.

    Raises
    ------
    RunError
        The folder was given and is not there.
    """
    if folder is not None and not folder.is_dir():
        raise RunError(f"{folder}: no such folder; give the one that holds the runs")
    folder = folder or home() / "runs"
    found = [_entry(path.parent) for path in sorted(folder.glob("*/run.json"))]
    return sorted(found, key=lambda one: (one.started, one.path.name))


def listing(entries: Iterable[Entry]) -> Table:
    """Return runs as a table."""
    rows = [[one.path.name, one.status, one.started, one.preset, _bytes(one.size)] for one in entries]
    return Table("Runs", ["run", "status", "started", "preset", "size"], rows)


def details(run: RunDirectory) -> list[Table]:
    """Return what ``run.json`` says of a run: facts, seconds, clients, and what was left out."""
    record = run.record
    entry = _entry(run.path)
    facts = [
        ["status", entry.status],
        ["preset", f"{record.get('preset', '')} {record.get('overrides', '')}".strip()],
        ["started", entry.started],
        ["commit", str(record.get("git", {}).get("commit", "-"))],
        ["size", _bytes(entry.size)],
    ]
    if entry.error:
        facts.append(["error", entry.error])
    found = [Table(str(run.path), ["", ""], facts)]
    timings = record.get("timings", {})
    if timings:
        rows = [[name, f"{seconds:.1f}"] for name, seconds in timings.items()]
        found.append(Table("Seconds", ["step", "s"], rows))
    clients = record.get("clients", {})
    if clients:
        rows = [
            [
                name,
                str(facts.get("role", "-")),
                str(facts.get("domain", "-")),
                str(facts.get("num_examples", "-")),
                _bytes(int(facts["bytes"])) if "bytes" in facts else "-",
            ]
            for name, facts in sorted(clients.items())
        ]
        found.append(Table("Clients", ["client", "role", "domain", "examples", "received"], rows))
    return found


def choose(entries: Sequence[Entry], names: Sequence[str], status: str) -> list[Entry]:
    """Return the runs to remove: those named, or all with a status.

    Raises
    ------
    RunError
        A name is of no run, or a named run is still going on.
    """
    known = {one.path.name: one for one in entries}
    for name in names:
        if name not in known:
            raise RunError(f"{name}: no such run; see `fedforget runs list`")
        if known[name].status == RUNNING and status != RUNNING:
            raise RunError(f"{name}: is running, or ended without a word; add --status running to remove it")
    if names:
        return [known[name] for name in dict.fromkeys(names)]
    return [one for one in entries if one.status == status]


def remove(entries: Iterable[Entry]) -> int:
    """Remove runs' directories, and return the bytes that were freed.

    Each vanishes at once (it is renamed first), so that none is left half removed under its name.
    """
    freed = 0
    for one in entries:
        doomed = one.path.with_name(f".{one.path.name}.removed")
        one.path.rename(doomed)
        shutil.rmtree(doomed)
        freed += one.size
    return freed


def _entry(path: Path) -> Entry:
    size = sum(file.lstat().st_size for file in path.rglob("*") if file.is_file())
    try:
        record: dict[str, Any] = RunDirectory(path).record
    except FedForgetError as error:
        return Entry(path, "unreadable", "", "", size, str(error))
    return Entry(
        path,
        str(record.get("status", "unknown")),
        str(record.get("started", "")),
        str(record.get("preset", "")),
        size,
        str(record.get("error") or ""),
    )


def _bytes(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
