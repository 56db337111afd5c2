"""Runs of several seeds as one page: means with intervals, in Markdown, JSON and HTML."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedforget.errors import RunError
from fedforget.files import atomic_path, read_json, write_json
from fedforget.pooling import differences, interval, pool, pool_metrics, pool_sweeps, seed_runs
from fedforget.reporting.html import render_page, warnings
from fedforget.reporting.over_seeds import (
    difference_table,
    interval_cell,
    pooled_sweep_table,
    pooled_table,
    stages_table,
)
from fedforget.reporting.tables import Table, markdown
from fedforget.runs import RunDirectory, git_state
from fedforget.sweeps.files import results
from fedforget.updates import REPORT

_STAGES = ("before", "after")
# What stands between these lines of a page is made; the rest is written.
BEGIN, END = "<!-- made by fedforget report --page -->", "<!-- end of what is made -->"


def write_pooled(folder: str | Path, command: str = "", page: Path | None = None) -> list[Table]:
    """Pool what the runs of a folder of seeds have stored, into ``pooled.json``, ``.md`` and ``report.html``.

    Parameters
    ----------
    folder : path
        Holds ``seed-<n>`` directories.
    command : str
        What made the runs; by default what an earlier call was told.
    page : Path, optional
        A Markdown file whose made part, between the lines ``BEGIN`` and ``END``, is replaced.

    Returns
    -------
    list of Table
        Before and after the merge; the comparison, and the sweep, where every run has one.

    Raises
    ------
    RunError
        There are no runs of seeds, they were compared with different settings, or the page has no made part.
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
    text = "\n".join(f"## {table.title}\n\n{markdown(table)}" for table in tables)
    with atomic_path(folder / "pooled.md") as temporary:
        temporary.write_text(f"{made}\n\n{text}", encoding="utf-8")
    if page is not None:
        _fill(page, f"{made} Page at commit {_state(git_state())}.\n\n{text}")
    html = render_page(
        f"fedforget runs {folder.name}",
        facts=[("Runs", [("made", made), ("seeds", ", ".join(run.path.name for run in runs))])],
        warnings=[f"{run.path.name}: {one}" for run in runs for one in warnings(run.record, run.metrics, {})],
        tables=tables,
        config=str(runs[0].record.get("config", "")),
    )
    with atomic_path(folder / "report.html") as temporary:
        temporary.write_text(html, encoding="utf-8")
    return tables


def _fill(page: Path, text: str) -> None:
    try:
        before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    except OSError as error:
        raise RunError(
            f"{page}: cannot be read ({error.strerror}); give a Markdown file to fill in"
        ) from error
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise RunError(f"{page}: has no place for tables; give it the lines {BEGIN} and {END}")
    with atomic_path(page) as temporary:
        temporary.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")


def _pooled(runs: Sequence[RunDirectory]) -> dict[str, Any]:
    metrics = [run.metrics for run in runs]
    found: dict[str, Any] = {
        stage: pool_metrics([one[stage] for one in metrics])
        for stage in _STAGES
        if all(stage in one for one in metrics)
    }
    if all("comparison" in one for one in metrics):
        comparisons = [one["comparison"] for one in metrics]
        found["comparison"] = pool(comparisons)
        found["differences"] = differences(comparisons)
    merges = [read_json(path) if (path := run.merged / REPORT).is_file() else {} for run in runs]
    budgets = [float(one.get("parameters", {}).get("epsilon", math.inf)) for one in merges]
    if all(map(math.isfinite, budgets)):
        found["epsilon"] = interval(budgets)
    if sweep := pool_sweeps([results(run) for run in runs]):
        found["sweep"] = sweep
    return found


def _tables(runs: Sequence[RunDirectory], found: Mapping[str, Any]) -> list[Table]:
    tables = []
    stages = {stage: found[stage] for stage in _STAGES if stage in found}
    if stages:
        table = stages_table(stages, runs[0].metrics[next(iter(stages))], len(runs))
        if "epsilon" in found:
            table.notes.append(
                f"Budget epsilon of the merge, of each run by itself: {interval_cell(found['epsilon'])}."
            )
        tables.append(table)
    if "comparison" in found:
        tables.append(pooled_table(found["comparison"]))
    if found.get("differences"):
        tables.append(difference_table(found["differences"]))
    if "sweep" in found:
        tables.append(pooled_sweep_table(found["sweep"], [len(results(run)) for run in runs]))
    return tables


def _made(runs: Sequence[RunDirectory], command: str) -> str:
    commits = dict.fromkeys(_state(run.record.get("git") or {}) for run in runs)
    by = f"Made by `{command}` at" if command else "Runs made at"
    return f"{by} commit {', '.join(commits)}."


def _state(git: Mapping[str, Any]) -> str:
    return f"{git.get('commit', 'unknown')}{' with uncommitted changes' if git.get('dirty') else ''}"
