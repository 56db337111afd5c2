"""Runs of several seeds taken together: means and intervals of what each measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scipy import stats

from fedforget.errors import RunError
from fedforget.measured import ROLES, measures
from fedforget.runs import RunDirectory
from fedforget.sweeps.files import Result, key_of, setting_of
from fedforget.sweeps.matching import QP

_SEED = "seed-"


def seed_folder(folder: Path, seed: int) -> Path:
    """Return where one seed's run is in a folder of several."""
    return folder / f"{_SEED}{seed}"


def seed_runs(folder: str | Path) -> list[RunDirectory]:
    """Return the runs of a folder of one per seed, by seed; empty for anything else."""
    found = [
        path
        for path in Path(folder).expanduser().glob(f"{_SEED}*")
        if path.name.removeprefix(_SEED).isdecimal() and (path / "run.json").is_file()
    ]
    return [RunDirectory(path) for path in sorted(found, key=lambda path: int(path.name.removeprefix(_SEED)))]


def pool_metrics(measured: Sequence[Mapping[str, Any]], confidence: float = 0.95) -> dict[str, Any]:
    """Pool evaluations of several seeds.

    Returns
    -------
    dict
        Per measure that all of them hold (:func:`fedforget.measured.measures`), its :func:`interval`.
    """
    found = [measures(one) for one in measured]
    return {
        name: interval([one[name] for one in found], confidence)
        for name in (found[0] if found else {})
        if all(name in one for one in found)
    }


def pool_sweeps(sweeps: Sequence[Sequence[Result]], confidence: float = 0.95) -> list[dict[str, Any]]:
    """Pool the settings that the sweeps of all seeds hold, in the order of the first.

    A budget that was calibrated on each run's own damage is the same where its share and gamma are, although
    epsilon differs.

    Returns
    -------
    list of dict
        The setting as in ``sweep.json`` with ``measures``: per measure its :func:`interval`. Of a relative
        budget, ``budget`` has the interval of the absolute ``epsilon``, and ``parameters`` has none.
    """
    held = [{_same(one): one for one in found} for found in sweeps]
    return [
        _setting([other[key] for other in held], confidence)
        | {"measures": pool_metrics([other[key]["metrics"] for other in held], confidence)}
        for key in (held[0] if held else {})
        if all(key in other for other in held)
    ]


def _same(one: Result) -> str:
    """Return what is the same for a setting in the runs of all seeds."""
    if not one.get("budget"):
        return key_of(one)
    relative = {**one["parameters"], "epsilon": one["budget"]}
    return replace(setting_of(one), parameters=relative).key(one["split"])


def _setting(ones: Sequence[Result], confidence: float) -> dict[str, Any]:
    first = ones[0]
    kept = ("method", "pretty", "parameters", "clients", "of", "split", "budget")
    found = {name: first[name] for name in kept if name in first}
    if "budget" in found:
        found["parameters"] = {k: v for k, v in first["parameters"].items() if k != "epsilon"}
        values = [float(one["parameters"]["epsilon"]) for one in ones]
        found["budget"] = {**first["budget"], "epsilon": interval(values, confidence)}
    return found


def pool(comparisons: Sequence[Mapping[str, Any]], confidence: float = 0.95) -> list[dict[str, Any]]:
    """Pool comparisons of the same methods over several seeds.

    Parameters
    ----------
    comparisons : sequence of dict
        What :func:`compare` returned for each seed; at least one.
    confidence : float
        Of the two-sided t-interval.

    Returns
    -------
    list of dict
        Per level, method and measure (``forget``, ``retain``, ``held_out``, ``perplexity``,
        ``gap``, and ``epsilon`` of a method with a budget): ``mean``, ``half_width`` of the interval
        (infinite for one seed), ``count`` and the ``values``; and ``matched``, the number of seeds where the
        match was close enough.

    Raises
    ------
    RunError
        None given, or they differ in levels or methods.
    """
    _check_alike(comparisons)
    pooled = []
    for i, entry in enumerate(comparisons[0]["levels"]):
        for name in entry["methods"]:
            outcomes = [one["levels"][i]["methods"][name] for one in comparisons]
            measures = {
                measure: interval([float(value) for value in values], confidence)
                for measure, values in _measures(outcomes).items()
            }
            matched = sum(bool(outcome["matched"]) for outcome in outcomes)
            pooled.append({"level": entry["level"], "method": name, "matched": matched, **measures})
    return pooled


def differences(comparisons: Sequence[Mapping[str, Any]], confidence: float = 0.95) -> list[dict[str, Any]]:
    """Return how FIRM, with and without a budget, differs from every other method, paired by seed.

    Parameters
    ----------
    comparisons, confidence
        As for :func:`pool`.

    Returns
    -------
    list of dict
        Per level and pair: ``method``, ``than``, and per measure of :func:`pool` that is an accuracy the
        :func:`interval` of the first's value less the second's.
    """
    _check_alike(comparisons)
    found = []
    for i, entry in enumerate(comparisons[0]["levels"]):
        names = list(entry["methods"])
        ours = [name for name in (QP, "firm") if name in names]
        for place, name in enumerate(ours):
            for than in (one for one in names if one not in ours[: place + 1]):
                first, second = (
                    _measures([one["levels"][i]["methods"][method] for one in comparisons])
                    for method in (name, than)
                )
                pairs = {
                    role: interval(
                        [a - b for a, b in zip(first[role], second[role], strict=True)], confidence
                    )
                    for role in ROLES
                    if role in first and role in second
                }
                found.append({"level": entry["level"], "method": name, "than": than, **pairs})
    return found


def _check_alike(comparisons: Sequence[Mapping[str, Any]]) -> None:
    if not comparisons:
        raise RunError("no comparisons to pool; give at least one run that has been compared")
    shapes = {
        tuple((entry["level"], tuple(sorted(entry["methods"]))) for entry in one["levels"])
        for one in comparisons
    }
    if len(shapes) > 1:
        raise RunError(
            "the comparisons differ in levels or methods; compare every run with the same settings"
        )


def _measures(outcomes: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"gap": [outcome["gap"] for outcome in outcomes]}
    for role in ROLES:
        if all(role in outcome["report"] for outcome in outcomes):
            found[role] = [outcome["report"][role]["accuracy"] for outcome in outcomes]
    if all("perplexity" in outcome["report"] for outcome in outcomes):
        found["perplexity"] = [outcome["report"]["perplexity"]["perplexity"] for outcome in outcomes]
    budgets = [float(outcome.get("parameters", {}).get("epsilon", math.inf)) for outcome in outcomes]
    if all(map(math.isfinite, budgets)):
        found["epsilon"] = budgets
    return found


def interval(values: Sequence[float], confidence: float = 0.95) -> dict[str, Any]:
    """Return the mean and the half width of its two-sided t-interval."""
    n = len(values)
    centre = sum(values) / n
    if n == 1:
        half = math.inf
    else:
        spread = math.sqrt(sum((value - centre) ** 2 for value in values) / (n - 1))
        half = float(stats.t.ppf(0.5 + confidence / 2, n - 1)) * spread / math.sqrt(n)
    return {"mean": centre, "half_width": half, "count": n, "values": list(values)}
