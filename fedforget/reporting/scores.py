"""Tables of the benchmarks' own metrics, from the summaries that ``fedforget score`` left in a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedforget.evaluation.benchmarks import SUITES, SUMMARY, BenchmarkSuite
from fedforget.files import read_json
from fedforget.reporting.tables import Table, number


def score_tables(folder: Path) -> list[Table]:
    """Return a table per suite, with a column for each model that was scored with it.

    Parameters
    ----------
    folder : Path
        A run's ``scores``: ``<suite>/<model>-<key>/summary.json``.
    """
    tables = []
    for name, suite in SUITES.items():
        found: dict[str, Mapping[str, Any]] = {}
        for path in sorted((folder / name).glob(f"*/{SUMMARY}")):
            summary = read_json(path)
            label = _label(summary)
            # Two merges of one name differ in the key of their folder.
            found[path.parent.name if label in found else label] = summary
        if found:
            tables.append(score_table(suite, found))
    return tables


def score_table(suite: BenchmarkSuite, summaries: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return a suite's metrics of one or more models.

    Parameters
    ----------
    suite : BenchmarkSuite
    summaries : mapping of str to dict
        By what to call the model.
    """
    lines = {label: dict(suite.lines(summary)) for label, summary in summaries.items()}
    metrics = dict.fromkeys(metric for one in lines.values() for metric in one)
    rows = [[metric, *(number(one.get(metric)) for one in lines.values())] for metric in metrics]
    notes = []
    for label, summary in summaries.items():
        if summary["limit"]:
            notes.append(f"{label}: a quick look, the first {summary['limit']} questions of each set.")
        if summary["split"] != "all":
            notes.append(f"{label}: of the {summary['split']} split alone.")
        if summary["collapse"]:
            notes.append(f"{label}: collapsed, {', '.join(summary['collapse'])} at or below chance.")
        if suite.reference and "reference" not in summary:
            notes.append(f"{label}: no {suite.reference} without --reference.")
    return Table(f"Scores: {suite.name}", ["metric", *summaries], rows, notes)


def _label(summary: Mapping[str, Any]) -> str:
    """Return what was scored, and on which part of the questions where that is not all."""
    parts = [f"{summary['split']} questions"] if summary["split"] != "all" else []
    parts += [f"first {summary['limit']}"] if summary["limit"] else []
    parts += [str(summary["scorer"])] if summary["scorer"] != "builtin" else []
    return f"{summary['scored']} ({', '.join(parts)})" if parts else str(summary["scored"])
