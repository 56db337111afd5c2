"""What a run says of poisoned clients and of privacy: tables and warnings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedforget.reporting.tables import Table, number


def tables_of(record: Mapping[str, Any]) -> list[Table]:
    """Return the tables of the sections ``robust`` and ``privacy``; none where nothing was done."""
    robust, privacy = record.get("robust") or {}, record.get("privacy") or {}
    shown = [_scale(robust), _clip(robust), _pool(robust)]
    if privacy:
        rows = [[str(key), _cell(value)] for key, value in privacy.items()]
        shown.append(Table("Privacy", ["", "value"], rows, [_not_reproducible()]))
    return [one for one in shown if one.rows]


def warnings(record: Mapping[str, Any]) -> list[str]:
    """Return the clients that are out of scale, cohorts that could not be judged, and what privacy costs."""
    robust = record.get("robust") or {}
    found = [f"Out of scale: {one['sentence']}." for one in (robust.get("scale") or {}).get("findings", [])]
    effect = (robust.get("clip_effect") or {}).get("clients", {})
    skipped = sorted(name for name, one in effect.items() if "why_not" in one)
    if skipped:
        found.append(f"Not clipped, for want of a cohort of three: {', '.join(skipped)}.")
    if record.get("privacy"):
        found.append(_not_reproducible())
    return found


def _not_reproducible() -> str:
    return "Noise was added on the clients, from no seed: this run cannot be reproduced."


def _scale(robust: Mapping[str, Any]) -> Table:
    scale = robust.get("scale") or {}
    rows = [
        [client, what, number(score, 2)]
        for client, scores in sorted((scale.get("scores") or {}).items())
        for what, score in sorted(scores.items())
    ]
    if scale and not rows:
        rows = [["no client", "no cohort of three", "-"]]
    notes = [
        f"The score farthest from zero over the tensors; beyond {number(scale.get('threshold'))} is told."
    ]
    notes += [f"Not judged: {one}." for one in scale.get("unjudgeable", [])]
    return Table("Scale of the summaries", ["client", "compared", "robust z"], rows, notes)


def _clip(robust: Mapping[str, Any]) -> Table:
    effect = robust.get("clip_effect") or {}
    rows = [
        [client, number(one["norm"]), number(one.get("limit")), f"{one['clipped_share']:.1%}"]
        for client, one in sorted((effect.get("clients") or {}).items())
    ]
    note = f"Task vectors are scaled down to {number(effect.get('factor'))} times their domain's median norm."
    return Table("Clipping", ["client", "norm", "limit", "clipped off"], rows, [note])


def _pool(robust: Mapping[str, Any]) -> Table:
    effect = robust.get("pool_effect") or {}
    if isinstance(effect, str):
        return Table("Robust pooling", [""], [[effect]])
    rows = [
        [
            domain,
            str(one["members"]),
            number(one.get("delta_distance_from_mean")),
            number(one.get("fisher_distance_from_mean")),
        ]
        for domain, one in sorted(effect.items())
    ]
    notes = [f"Pooled by {robust.get('pool')}; distances are from the plain mean, relative to its norm."]
    notes += [
        f"{domain}: the geometric median of the {what}s did not converge."
        for domain, one in sorted(effect.items())
        for what in ("delta", "fisher")
        if one.get(f"{what}_converged") is False
    ]
    columns = ["domain", "clients", "task vector's distance", "Fisher's distance"]
    return Table("Robust pooling", columns, rows, notes)


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
