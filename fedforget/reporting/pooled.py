"""Runs of several seeds as one page: means with intervals, in Markdown, JSON and HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedforget.errors import RunError
from fedforget.files import atomic_path, read_json, write_json
from fedforget.pooling import pool, pool_metrics, pool_sweeps, seed_runs
from fedforget.reporting.html import render_page, warnings
from fedforget.reporting.tables import (
    ROLES,
    Table,
    chance_note,
    interval_cell,
    markdown,
    pooled_table,
    setting_cells,
    word,
)
from fedforget.runs import RunDirectory
from fedforget.sweeps.files import results

_STAGES = ("before", "after")


def write_pooled(folder: str | Path, command: str = "") -> list[Table]:
    """Pool what the runs of a folder of seeds have stored, into ``pooled.json``, ``.md`` and ``report.html``.

    Parameters
    ----------
    folder : path
        Holds ``seed-<n>`` directories.
    command : str
        What made the runs; by default what an earlier call was told.

    Returns
    -------
    list of Table
        Before and after the merge; the comparison, and the sweep, where every run has one.

    Raises
    ------
    RunError
        There are no runs of seeds, or they were compared with different settings.
    """
    folder = Path(folder).expanduser().resolve()
    runs = seed_runs(folder)
    if not runs:
        raise RunError(f"{folder}: holds no runs of seeds (seed-0, seed-1, ...)")
    path = folder / "pooled.json"
    if not command and path.is_file():
        command = str(read_json(path).get("command", ""))
    found = _pooled(runs)
    write_json(path, {"command": command, "runs": [run.path.name for run in runs], **found})
    tables = _tables(runs, found)
    made = _made(runs, command)
    with atomic_path(folder / "pooled.md") as temporary:
        text = "\n".join(f"## {table.title}\n\n{markdown(table)}" for table in tables)
        temporary.write_text(f"{made}\n\n{text}", encoding="utf-8")
    page = render_page(
        f"fedforget runs {folder.name}",
        facts=[("Runs", [("made", made), ("seeds", ", ".join(run.path.name for run in runs))])],
        warnings=[f"{run.path.name}: {one}" for run in runs for one in warnings(run.record, run.metrics, {})],
        tables=tables,
        config=str(runs[0].record.get("config", "")),
    )
    with atomic_path(folder / "report.html") as temporary:
        temporary.write_text(page, encoding="utf-8")
    return tables


def _pooled(runs: Sequence[RunDirectory]) -> dict[str, Any]:
    metrics = [run.metrics for run in runs]
    found: dict[str, Any] = {
        stage: pool_metrics([one[stage] for one in metrics])
        for stage in _STAGES
        if all(stage in one for one in metrics)
    }
    if all("comparison" in one for one in metrics):
        found["comparison"] = pool([one["comparison"] for one in metrics])
    if sweep := pool_sweeps([results(run) for run in runs]):
        found["sweep"] = sweep
    return found


def _tables(runs: Sequence[RunDirectory], found: Mapping[str, Any]) -> list[Table]:
    tables = []
    stages = {stage: found[stage] for stage in _STAGES if stage in found}
    if stages:
        names = list(dict.fromkeys(name for one in stages.values() for name in one))
        rows = [[word(name), *(interval_cell(one.get(name)) for one in stages.values())] for name in names]
        notes = [chance_note(runs[0].metrics[next(iter(stages))], spread=""), interval_note(len(runs))]
        tables.append(Table("Before and after", ["accuracy of", *stages], rows, notes))
    if "comparison" in found:
        tables.append(pooled_table(found["comparison"]))
    if "sweep" in found:
        tables.append(_sweep_table(found["sweep"], [len(results(run)) for run in runs]))
    return tables


def _sweep_table(pooled: Sequence[Mapping[str, Any]], held: Sequence[int]) -> Table:
    names = [name for name in (*ROLES, "perplexity") if any(name in one["measures"] for one in pooled)]
    rows = [
        [*setting_cells(one, pooled), *(interval_cell(one["measures"].get(name)) for name in names)]
        for one in pooled
    ]
    notes = [interval_note(len(held))]
    if max(held) > len(pooled):
        notes.append(f"{len(pooled)} settings are in every run; runs hold up to {max(held)}.")
    return Table("Sweep over seeds", ["method", "gamma", "varied", *map(word, names)], rows, notes)


def interval_note(count: int, confidence: float = 0.95) -> str:
    """Say what stands behind the plus-minus sign."""
    return f"Mean over {count} seeds ± half width of the {confidence:.0%} t-interval."


def _made(runs: Sequence[RunDirectory], command: str) -> str:
    states = [run.record.get("git") or {} for run in runs]
    commits = dict.fromkeys(
        one.get("commit", "unknown") + (" with uncommitted changes" if one.get("dirty") else "")
        for one in states
    )
    by = f"Made by `{command}` at" if command else "Runs made at"
    return f"{by} commit {', '.join(commits)}."
