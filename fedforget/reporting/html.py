"""One self-contained HTML page per run, made from what the run stored."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from matplotlib.figure import Figure

from fedforget.files import atomic_path, read_json
from fedforget.reporting import defences, plots, sequential, tables
from fedforget.reporting.matched import matched_tables
from fedforget.reporting.page import PAGE
from fedforget.reporting.tables import Table
from fedforget.runs import RunDirectory
from fedforget.sequential.config import KIND

# Share of a tensor's update from which a reader must know that rounding undid it.
_LOST = 0.01


def write_report(run: RunDirectory) -> Path:
    """Write ``report.html`` from the run's stored data, in place of an earlier one.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    RunError
        A file of the run cannot be read.
    """
    target = run.path / "report.html"
    page = render(run)
    with atomic_path(target) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return target


def render(run: RunDirectory) -> str:
    """Return the page as text. It refers to nothing outside itself."""
    record = run.record
    if run.kind == KIND:
        found, shown, figures = sequential.content(run)
        merge: dict[str, Any] = {}
    else:
        merge = _read(run.merged / "merge.json")
        found, shown, figures = _content(run, merge)
    return render_page(
        f"fedforget run {run.path.name}",
        facts=_facts(record, merge),
        warnings=found,
        tables=shown,
        figures=figures,
        config=str(record.get("config", "")),
    )


def render_page(
    title: str,
    *,
    facts: Sequence[tuple[str, Sequence[tuple[str, str]]]],
    warnings: Sequence[str],
    tables: Sequence[Table],
    figures: Sequence[tuple[str, Figure]] = (),
    config: str,
) -> str:
    """Return a page that refers to nothing outside itself.

    Parameters
    ----------
    title : str
    facts : sequence of (heading, rows)
        Rows of names and values, in groups.
    warnings : sequence of str
        What a reader must know first.
    tables : sequence of Table
    figures : sequence of (caption, Figure)
    config : str
        The configuration, as text.
    """
    return _template().render(
        title=title,
        facts=facts,
        warnings=warnings,
        tables=tables,
        figures=[(caption, _inline(figure)) for caption, figure in figures],
        config=config,
    )


def _content(
    run: RunDirectory, merge: Mapping[str, Any]
) -> tuple[list[str], list[Table], list[tuple[str, Figure]]]:
    """Return what the page of a FIRM run shows: warnings, tables, and figures with their captions."""
    record, metrics = run.record, run.metrics
    sweep = _read(run.path / "sweep.json").get("settings", [])
    figures: list[tuple[str, Figure]] = []
    shown: list[Table] = []
    if "before" in metrics or "after" in metrics:
        shown += [tables.outcome_table(metrics), tables.domain_table(metrics)]
    if comparison := metrics.get("comparison"):
        shown += tables.comparison_tables(comparison)
        figures.append(("Methods at matched forgetting", plots.comparison_figure(comparison)))
    if sweep:
        shown.append(tables.sweep_table(sweep))
        caption = "Sweep; filled points are on the Pareto frontier"
        figures.append((caption, plots.sweep_figure(sweep, metrics.get("before"))))
    if matched := _read(run.path / "match.json"):
        shown += matched_tables(matched)
    if (scores := run.path / "scores").is_dir():
        # The benchmarks import what evaluates them.
        from fedforget.reporting.scores import score_tables

        shown += score_tables(scores)
    certificate = tables.certificate_table(merge)
    shown += [certificate] if certificate.rows else []
    clients = record.get("clients")
    shown += [tables.client_table(clients)] if isinstance(clients, Mapping) and clients else []
    shown += defences.tables_of(record)
    return warnings(record, metrics, merge) + defences.warnings(record), shown, figures


def warnings(record: Mapping[str, Any], metrics: Mapping[str, Any], merge: Mapping[str, Any]) -> list[str]:
    """Return what a reader of the results must know first: failures, collapses, loose matches."""
    found = []
    if record.get("status") == "failed":
        found.append(f"The run failed: {record.get('error') or 'for an unknown reason'}.")
    elif "after" not in metrics:
        found.append("The run has no results after the merge; it did not get that far yet.")
    found += [
        f"{name} was left out, as the quorum allows: {reason}."
        for name, reason in (record.get("left_out") or {}).items()
    ]
    found += [
        f"Utility collapse {name} the merge: {', '.join(lost)} accuracy is at or below chance."
        for name in ("before", "after")
        if (lost := (metrics.get(name) or {}).get("collapse"))
    ]
    if (lost := (metrics.get("after") or {}).get("lost_in_rounding", 0.0)) > _LOST:
        found.append(
            f"The backbone's weights did not take {lost:.1%} of a tensor's update (its norm, at most): "
            "rounding undid it, and what was measured is what is left."
        )
    loose = [
        name
        for name, report in (merge.get("tensors") or {}).items()
        if report.get("certificate") and not report["certificate"].get("certified")
    ]
    if loose:
        found.append(
            f"{len(loose)} tensors have a projection that is not certified optimal, among them {min(loose)}."
        )
    comparison = metrics.get("comparison") or {"levels": []}
    unknown = [
        domain
        for domain, one in comparison.get("select_before", {}).items()
        if one["accuracy"] - one["chance"] <= comparison["tolerance"]
    ]
    if unknown:
        found.append(
            f"The backbone hardly knew {', '.join(unknown)} before (accuracy near chance): "
            "there was nothing to forget, and a match there says nothing."
        )
    for entry in comparison["levels"]:
        for name, one in entry["methods"].items():
            where = f"Comparison at level {entry['level']:g}, {name}"
            if not one["matched"]:
                found.append(
                    f"{where}: no gamma tried matches the target; the gap is {tables.number(one['gap'])}."
                )
            if lost := one["report"].get("collapse"):
                found.append(f"{where}: utility collapse ({', '.join(lost)} at or below chance).")
    return found


def _facts(record: Mapping[str, Any], merge: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Group the run's plain facts under headings, leaving out empty ones."""
    git = record.get("git") or {}
    run = {
        "preset": record.get("preset"),
        "overrides": record.get("overrides") or None,
        "started": record.get("started"),
        "finished": record.get("finished"),
        "commit": f"{git['commit']}{' (with uncommitted changes)' if git.get('dirty') else ''}"
        if git.get("commit")
        else None,
        "platform": record.get("platform"),
        "Python": record.get("python"),
        "backbone": (record.get("backbone") or {}).get("path"),
        "fingerprint": (record.get("backbone") or {}).get("fingerprint"),
    }
    method = {"method": merge.get("method"), **(merge.get("parameters") or {})}
    groups: list[tuple[str, Mapping[str, Any]]] = [
        ("Run", run),
        ("Merge", method),
        ("Seeds", record.get("seeds") or {}),
        ("Seconds", record.get("timings") or {}),
        ("Bytes", record.get("bytes") or {}),
        ("Versions", record.get("versions") or {}),
    ]
    shown = [
        (heading, [(str(key), _cell(value)) for key, value in facts.items() if value is not None])
        for heading, facts in groups
    ]
    return [(heading, rows) for heading, rows in shown if rows]


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_cell(one)}" for key, one in value.items())
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000:
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _read(path: Path) -> dict[str, Any]:
    return dict(read_json(path)) if path.is_file() else {}


def _inline(figure: Figure) -> str:
    return "data:image/png;base64," + base64.b64encode(plots.png(figure)).decode("ascii")


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(PAGE)
