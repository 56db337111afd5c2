"""Tables of stored results, built once and shown in the terminal, in Markdown and in HTML."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedforget.measured import no_accuracies
from fedforget.sweeps.files import varied

ROLES = ("forget", "retain", "held_out")
COLLAPSE = "collapsed"


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes
    ----------
    title : str
    columns : list of str
    rows : list of list of str
        As many cells as columns.
    notes : list of str
        Sentences that stand below.
    names : int
        How many of the first columns tell the rows apart.
    """

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    names: int = 1


def markdown(table: Table) -> str:
    """Return the table in Markdown, without its title."""
    lines = [_line(table.columns), _line(["---"] + ["---:"] * (len(table.columns) - 1))]
    lines += [_line(row) for row in table.rows]
    if table.notes:
        lines += ["", *table.notes]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def number(value: Any, digits: int = 3) -> str:
    """Format a stored number; infinities are stored as text."""
    if value is None or value == "":
        return "-"
    value = float(value)
    if not math.isfinite(value):
        return str(value)
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{digits}f}"


def accuracy(found: Mapping[str, Any] | None) -> str:
    """Format an accuracy with its standard error."""
    if not found:
        return "-"
    return f"{number(found['accuracy'])} ± {number(found['standard_error'])}"


def perplexity(metrics: Mapping[str, Any]) -> str:
    """Format the perplexity of general text."""
    found = metrics.get("perplexity")
    return number(found["perplexity"], 1) if found else "-"


def collapse(metrics: Mapping[str, Any]) -> str:
    """Name the utilities that are at or below chance."""
    found = metrics.get("collapse") or []
    return f"{COLLAPSE}: {', '.join(word(role) for role in found)}" if found else ""


def word(role: str) -> str:
    """Return a role as tables write it."""
    return role.replace("_", "-")


def present(measured: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the roles that were measured anywhere."""
    return [role for role in ROLES if any(role in metrics for metrics in measured)]


def chance_note(metrics: Mapping[str, Any], spread: str = " ± standard error") -> str:
    """Say what the accuracies are over, and their chance level; ``spread`` is what stands behind them."""
    parts = [
        f"{word(role)}: {metrics[role]['count']} questions, chance {number(metrics[role]['chance'])}"
        for role in ROLES
        if role in metrics
    ]
    other = no_accuracies(metrics)
    note = f"Accuracy{spread} on the {metrics['split']} split." + (f" {'; '.join(parts)}." if parts else "")
    if "unasked" in metrics:
        note += f" Not measured, the run's data has no questions on it: {', '.join(metrics['unasked'])}."
    if other:
        note += f" In accuracy's place: {', '.join(f'{name} by {what}' for name, what in other.items())}."
    return note


def outcome_table(metrics: Mapping[str, Mapping[str, Any]]) -> Table:
    """Before and after a run's merge, by role."""
    rows = [(name, metrics[name]) for name in ("before", "after") if name in metrics]
    roles = present([found for _, found in rows])
    return Table(
        "Before and after",
        ["", *(word(role) for role in roles), "perplexity", "flags"],
        [
            [name, *(accuracy(found.get(role)) for role in roles), perplexity(found), collapse(found)]
            for name, found in rows
        ],
        [chance_note(rows[-1][1])] if rows else [],
    )


def domain_table(metrics: Mapping[str, Mapping[str, Any]]) -> Table:
    """Before and after, by domain."""
    names = [name for name in ("before", "after") if name in metrics]
    known = {domain: one for name in names for domain, one in metrics[name]["domains"].items()}
    order = sorted(known, key=lambda domain: (ROLES.index(known[domain]["role"]), domain))
    rows = []
    for domain in order:
        one = known[domain]
        cells = [accuracy(metrics[name]["domains"].get(domain)) for name in names]
        rows.append([domain, word(one["role"]), *cells, str(one["count"]), number(one["chance"])])
    return Table("By domain", ["domain", "role", *names, "questions", "chance"], rows, names=2)


def comparison_tables(comparison: Mapping[str, Any]) -> list[Table]:
    """One table per level of matched forgetting."""
    tables = []
    for entry in comparison["levels"]:
        outcomes = entry["methods"]
        reports = [one["report"] for one in outcomes.values()]
        roles = present([comparison["before"], *reports])
        before = comparison["before"]
        unchanged = [accuracy(before.get(role)) for role in roles]
        rows = [["before", "-", *unchanged, perplexity(before), "-", collapse(before)]]
        for name, one in outcomes.items():
            report = one["report"]
            flags = [] if one["matched"] else ["not matched"]
            flags += [collapse(report)] if report.get("collapse") else []
            measured = [accuracy(report.get(role)) for role in roles]
            label = one["pretty"] if name != "firm" else "FIRM-base"
            rows.append(
                [
                    label,
                    f"{float(one['gamma']):.3g}",
                    *measured,
                    perplexity(report),
                    number(one["gap"]),
                    "; ".join(flags),
                ]
            )
        notes = [
            f"Target: forget accuracy {number(entry['target_mean'])} on the selection split, "
            f"{entry['level']:.0%} of the way from before down to chance; "
            "gap: what gamma could not close there. gamma was chosen by forget accuracy alone.",
            chance_note(before),
        ]
        tables.append(
            Table(
                f"At matched forgetting, level {entry['level']:g}",
                ["method", "gamma", *(word(role) for role in roles), "perplexity", "gap", "flags"],
                rows,
                notes,
            )
        )
    return tables


def sweep_table(results: Sequence[Mapping[str, Any]]) -> Table:
    """Every setting of a sweep."""
    roles = present([one["metrics"] for one in results])
    rows = []
    for one in results:
        metrics = one["metrics"]
        measured = [accuracy(metrics.get(role)) for role in roles]
        rows.append([*setting_cells(one, results), *measured, perplexity(metrics), collapse(metrics)])
    notes = [chance_note(one["metrics"]) for one in {one["split"]: one for one in results}.values()]
    columns = ["method", "gamma", "varied", *(word(role) for role in roles), "perplexity", "flags"]
    return Table("Sweep", columns, rows, notes, names=3)


def setting_cells(one: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a setting's method, gamma, and in what else it differs from others of a sweep."""
    rest = [f"{name} {short(one['parameters'][name])}" for name in varied(one, results)]
    rest += [str(one["of"])] if one.get("of") else []
    if len({other["split"] for other in results}) > 1:
        rest.append(f"{one['split']} questions")
    gamma = one["parameters"].get("gamma")
    return [one["pretty"], "-" if gamma is None else f"{float(gamma):.3g}", ", ".join(rest)]


def short(value: Any) -> str:
    """Format a parameter's value."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def client_table(clients: Mapping[str, Mapping[str, Any]]) -> Table:
    """Who took part, what each sent, and in which codec its Fisher travelled."""
    rows = []
    notes = []
    for name, facts in sorted(clients.items()):
        size, fisher = facts.get("bytes"), facts.get("fisher_dense_bytes")
        rows.append(
            [
                name,
                str(facts.get("role", "-")),
                str(facts.get("domain", "-")),
                str(facts.get("num_examples", "-")),
                "-" if size is None else f"{int(size) / 1e6:.2f}",
                str(facts.get("codec", "-")),
                f"{facts['fisher_bytes'] / fisher:.1%}" if fisher else "-",
            ]
        )
        if "relative_error" in facts:
            notes.append(
                f"{name}: its Fisher is approximate; relative error {number(facts['relative_error'])}, "
                f"overlap of the largest entries {facts['overlap']:.1%}, as the client measured them."
            )
    columns = ["client", "role", "domain", "examples", "sent, MB", "Fisher's codec", "Fisher, of dense"]
    return Table("Clients", columns, rows, notes)


def certificate_table(merge: Mapping[str, Any]) -> Table:
    """The projection's certificate per tensor; no rows where nothing was projected."""
    rows = []
    for name, report in sorted((merge.get("tensors") or {}).items()):
        one = report.get("certificate")
        if not one:
            continue
        damage = [float(value) for value in report.get("damage", [])]
        residuals = [number(one.get(key), 2) for key in ("stationarity", "primal", "dual", "complementarity")]
        certified = "yes" if one.get("certified") else "NO"
        rows.append([name, number(max(damage), 4) if damage else "-", *residuals, certified])
    columns = ["tensor", "largest damage", "stationarity", "primal", "dual", "complementarity", "certified"]
    epsilon = (merge.get("parameters") or {}).get("epsilon")
    notes = [f"Budget epsilon {number(epsilon, 4)} per tensor and retain client."] if rows else []
    if rows and (covered := merge.get("retain_clients")):
        notes.append(f"It covers the retain clients {', '.join(covered)}, and no other.")
    return Table("Projection certificate", columns, rows, notes)
