"""Tables of a sweep at matched forgetting, and of studies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedforget.measured import rouge
from fedforget.reporting.tables import (
    Table,
    accuracy,
    chance_note,
    collapse,
    number,
    perplexity,
    present,
    setting_cells,
    word,
)
from fedforget.sweeps.files import on_frontier


def matched_tables(found: Mapping[str, Any]) -> list[Table]:
    """Return the pairs and the envelope areas of :func:`fedforget.sweeps.matched.match_sweep`."""
    return [_pairs(found), *_areas(found)]


def study_table(title: str, source: str, found: Sequence[Mapping[str, Any]]) -> Table:
    """Return a study's settings with accuracies by forget domain, norms and, where some are, damages."""
    forget = list(
        dict.fromkeys(
            name
            for one in found
            for name, domain in one["metrics"].get("domains", {}).items()
            if domain["role"] == "forget"
        )
    )
    kept = [role for role in present([one["metrics"] for one in found]) if role != "forget"]
    generated = list(dict.fromkeys(name for one in found for name in rouge(one["metrics"])))
    damages = any("projected" in one.get("merge", {}) for one in found)
    rows = []
    for one, best in zip(found, on_frontier(found), strict=True):
        metrics, merge = one["metrics"], one.get("merge", {})
        damage = [number(merge.get(key)) for key in ("base_damage", "mean_damage")] if damages else []
        rows.append(
            [
                *setting_cells(one, found),
                number(merge.get("norm")),
                *damage,
                *([_projection(merge)] if damages else []),
                *(accuracy(metrics["domains"].get(name)) for name in forget),
                *(accuracy(metrics.get(role)) for role in kept),
                *(number(rouge(metrics).get(name)) for name in generated),
                perplexity(metrics),
                "; ".join(filter(None, ["Pareto" if best else "", collapse(metrics)])),
            ]
        )
    columns = ["method", "gamma", "varied", "norm"]
    columns += ["damage before", "damage", "projection"] if damages else []
    columns += [*forget, *map(word, kept), *generated, "perplexity", "flags"]
    notes = [f"{source}."] if source else []
    notes += [chance_note(one["metrics"]) for one in {one["split"]: one for one in found}.values()]
    notes.append("norm: of the whole update. Pareto: no other row forgets as much and keeps more.")
    if any(one.get("of") for one in found):
        notes.append(
            "n: the first forget domains alone; each: the first clients of each; m: the first retain clients."
        )
    if damages:
        notes.append(
            "damage: mean over tensors and retain clients of the Fisher proxy b, without and with the "
            "projection. projection: share of multipliers that are positive, and whether every "
            "certificate holds."
        )
    return Table(title, columns, rows, notes, names=3)


def _projection(merge: Mapping[str, Any]) -> str:
    if "projected" not in merge:
        return "none"
    return f"{merge['projected']:.0%}, {'certified' if merge['certified'] else 'not certified'}"


def _pairs(found: Mapping[str, Any]) -> Table:
    pairs: Sequence[Mapping[str, Any]] = found["pairs"]
    domains = list(dict.fromkeys(domain for one in pairs for domain in one["gaps"]))
    measures = list(dict.fromkeys(name for one in pairs for name in one["measures"]))
    rows = []
    for one in pairs:
        flags = [] if one["close"] else ["not close"]
        flags += ["projection inactive"] if one["inactive"] else []
        rows.append(
            [
                one["curve"],
                f"{one['gamma']:.4g}",
                f"{one['reference_gamma']:.4g}",
                *(number(one["gaps"].get(domain), 4) for domain in domains),
                *(_change(one["measures"].get(name)) for name in measures),
                "; ".join(flags),
            ]
        )
    same = found["chosen_on"] == found["reported_on"]
    where = (
        f"Matches were chosen, and gaps and utilities are taken, on the {found['reported_on']} questions"
        if same
        else f"Matches were chosen on the {found['chosen_on']} questions; gaps and utilities are of the "
        f"{found['reported_on']} questions"
    )
    rule = (
        "the smallest largest gap over the forget domains, ties by the sum of gaps, then by the lower gamma"
        if found["rule"] == "joint"
        else "the nearest accuracy in each forget domain; settings whose domains disagree are left out"
    )
    notes = [
        f"Reference: {found['reference']}. A setting's match is the reference setting with {rule}; "
        "utility was not looked at.",
        f"{where}. Gap: absolute difference of forget accuracies. Close: no gap above "
        f"{found['tolerance']:g}. Utilities: the setting's, and in brackets its difference to its match.",
    ]
    columns = ["setting", "gamma", "match's gamma", *(f"gap {one}" for one in domains), *measures, "flags"]
    return Table(f"Matched to {found['reference']}", columns, rows, notes, names=3)


def _change(one: Mapping[str, float] | None) -> str:
    return "-" if one is None else f"{number(one['value'])} ({one['difference']:+.3f})"


def _areas(found: Mapping[str, Any]) -> list[Table]:
    rows = []
    for name, domains in found["envelopes"].items():
        for domain, one in domains.items():
            if one is None:
                rows.append([name, domain, "none", "-", "-", "-"])
                continue
            span = f"{number(one['low'])} to {number(one['high'])}"
            cells = [number(one[key], 4) for key in ("first", "second")]
            rows.append([name, domain, span, *cells, f"{one['difference']:+.4f}"])
    if not rows:
        return []
    note = (
        f"Observed-step envelope: the highest {found['utility']} accuracy among the settings whose accuracy "
        "on the forget domain is at most a ceiling, as a step function of the ceiling. Area: its integral "
        "over the common range of accuracies, divided by the length of that range; no interpolation, no "
        "extrapolation. It depends on the grids of gamma and says nothing about significance."
    )
    columns = ["setting", "forget domain", "common range", "area", "reference's area", "difference"]
    return [Table("Envelope areas", columns, rows, [note], names=2)]
