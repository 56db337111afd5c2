"""Tables of what :mod:`fedforget.pooling` pools over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedforget.reporting.tables import ROLES, Table, chance_note, number, setting_cells, word

_ROUNDING = 1e-12


def stages_table(stages: Mapping[str, Mapping[str, Any]], measured: Mapping[str, Any], count: int) -> Table:
    """Before and after the merge.

    Parameters
    ----------
    stages : mapping
        Per stage, its measures with their intervals.
    measured : mapping
        What one seed measured in one stage, for the note on chance.
    count : int
        Seeds.
    """
    names = list(dict.fromkeys(name for one in stages.values() for name in one))
    rows = [[word(name), *(interval_cell(one.get(name)) for one in stages.values())] for name in names]
    notes = [chance_note(measured, spread=""), interval_note(count)]
    return Table("Before and after", ["accuracy of", *stages], rows, notes)


def pooled_table(pooled: Sequence[Mapping[str, Any]], confidence: float = 0.95) -> Table:
    """Comparisons at matched forgetting, from :func:`fedforget.pooling.pool`."""
    measures = [name for name in (*ROLES, "perplexity") if any(name in row for row in pooled)]
    rows = []
    for row in pooled:
        cells = [interval_cell(row.get(name)) for name in measures]
        count = row["gap"]["count"]
        gaps = " ".join(f"{value:+.3f}" for value in row["gap"]["values"])
        rows.append(
            [f"{row['level']:g}", method(row["method"]), *cells, gaps, f"{row['matched']} of {count}"]
        )
    notes = [
        f"Mean over seeds ± half width of the {confidence:.0%} t-interval. gaps: what is left of the "
        "matching, per seed the mean forget accuracy less the target on the selection questions, which gamma "
        "was chosen on. matched: seeds in which that is within the tolerance."
    ]
    budgets = {row["method"]: row["epsilon"] for row in pooled if "epsilon" in row}
    notes += [
        f"Budget epsilon of {method(name)}, of each run by itself: {interval_cell(found)}."
        for name, found in budgets.items()
    ]
    columns = ["level", "method", *map(word, measures), "gaps", "matched"]
    return Table("At matched forgetting, over seeds", columns, rows, notes, names=2)


def difference_table(found: Sequence[Mapping[str, Any]], confidence: float = 0.95) -> Table:
    """FIRM against the other methods, from :func:`fedforget.pooling.differences`."""
    measures = [name for name in ROLES if any(name in row for row in found)]
    rows = [
        [
            f"{row['level']:g}",
            f"{method(row['method'])} - {method(row['than'])}",
            *(f"{interval_cell(row.get(name))}{_told_apart(row.get(name))}" for name in measures),
        ]
        for row in found
    ]
    notes = [
        "Differences of accuracies, paired by seed, mean ± half width of the "
        f"{confidence:.0%} t-interval; *: it leaves out 0. Each interval is by itself, none is corrected for "
        "their number. forget: what the matching left, on the reported questions."
    ]
    columns = ["level", "difference", *map(word, measures)]
    return Table("FIRM against the others, paired by seed", columns, rows, notes, names=2)


def pooled_sweep_table(pooled: Sequence[Mapping[str, Any]], held: Sequence[int]) -> Table:
    """Settings of a sweep, from :func:`fedforget.pooling.pool_sweeps`.

    Parameters
    ----------
    pooled : sequence of dict
    held : sequence of int
        How many settings each run holds.
    """
    names = [name for name in (*ROLES, "perplexity") if any(name in one["measures"] for one in pooled)]
    relative = any("budget" in one for one in pooled)
    rows = [
        [
            *setting_cells(one, pooled),
            *([_budget(one)] if relative else []),
            *(interval_cell(one["measures"].get(name)) for name in names),
        ]
        for one in pooled
    ]
    notes = [interval_note(len(held))]
    if relative:
        shares = dict.fromkeys(
            f"{one['budget']['fraction']:g} at gamma {one['budget']['gamma']:g}"
            for one in pooled
            if "budget" in one
        )
        notes.append(
            "epsilon with an interval: calibrated in each run on its own mean damage without projection, as "
            f"a share of it: {', '.join(shares)}."
        )
    if max(held) > len(pooled):
        notes.append(f"{len(pooled)} settings are in every run; runs hold up to {max(held)}.")
    columns = ["method", "gamma", "varied", *(["epsilon"] if relative else []), *map(word, names)]
    return Table("Sweep over seeds", columns, rows, notes, names=3)


def _budget(one: Mapping[str, Any]) -> str:
    if "budget" in one:
        return interval_cell(one["budget"]["epsilon"])
    return number(one["parameters"].get("epsilon"))


def _told_apart(found: Mapping[str, Any] | None) -> str:
    return " *" if found and abs(found["mean"]) > found["half_width"] else ""


def method(name: str) -> str:
    """Return a compared method as tables write it; ``firm`` is compared without a budget."""
    return {"firm": "FIRM-base"}.get(name, name.upper())


def interval_cell(found: Mapping[str, Any] | None) -> str:
    """Format a mean over seeds with the half width of its interval."""
    if not found:
        return "-"
    mean, half = float(found["mean"]), float(found["half_width"])
    # What rounding leaves of a zero, as when every seed gives the same accuracy.
    return f"{number(mean)} ± {number(half if half > _ROUNDING * abs(mean) else 0.0)}"


def interval_note(count: int, confidence: float = 0.95) -> str:
    """Say what stands behind the plus-minus sign."""
    return f"Mean over {count} seeds ± half width of the {confidence:.0%} t-interval."
