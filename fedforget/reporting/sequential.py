"""What the page of a FedSGT run shows, from what the run stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from fedforget.reporting import sequential_plots as plots
from fedforget.reporting import sequential_tables as tables
from fedforget.reporting.tables import Table
from fedforget.runs import RunDirectory
from fedforget.sequences.ledger import Ledger


def content(run: RunDirectory) -> tuple[list[str], list[Table], list[tuple[str, Figure]]]:
    """Return the page's warnings, tables and figures with their captions."""
    record, metrics = run.record, run.metrics
    shown: list[Table] = []
    figures: list[tuple[str, Figure]] = []
    if demo := metrics.get("demo"):
        shown += tables.course_tables(demo)
        figures = [
            ("Accuracy over the requests", plots.accuracy_figure(demo)),
            ("Active modules over the requests", plots.modules_figure(demo)),
            ("Remaining groups: observed and expected", plots.remaining_figure(demo)),
        ]
    if served := metrics.get("served"):
        shown.append(tables.served_table(served))
    if compared := (metrics.get("verification") or {}).get("modules"):
        shown.append(tables.verification_table(metrics["verification"]["at"], compared))
    if trainings := record.get("trainings"):
        shown.append(tables.training_table(trainings))
    if grouping := record.get("grouping"):
        shown.append(tables.grouping_table(grouping))
    if run.ledger.is_file():
        with Ledger(run.ledger, read_only=True, verify=False) as ledger:
            shown += tables.ledger_tables(ledger)
            modules, problems = len(ledger.live_modules()), ledger.problems()
    else:
        modules, problems = 0, []
    return warnings(record, metrics, modules, problems), shown, figures


def warnings(
    record: Mapping[str, Any], metrics: Mapping[str, Any], modules: int, problems: list[str]
) -> list[str]:
    """Return what a reader must know first: failures, a broken ledger, differing bits, the end of service."""
    found = []
    if record.get("status") == "failed":
        found.append(f"The run failed: {record.get('error') or 'for an unknown reason'}.")
    found += [f"The ledger does not hold: {problem}." for problem in problems]
    demo = metrics.get("demo") or {}
    for course in (demo, demo.get("repaired") or {}):
        found += [
            f"After {one['after']} requests, {one['modules'] - one['same']} modules of prefix "
            f"{tables.prefix_name(one['prefix'])} were not what the remaining data give."
            for one in course.get("verified", [])
            if one["same"] != one["modules"]
        ]
    if metrics.get("served") and not modules:
        found.append("Service has ended: no module is left.")
    return found
