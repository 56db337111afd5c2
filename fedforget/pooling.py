"""Runs of several seeds taken together: means and intervals of what each measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy import stats

from fedforget.errors import RunError
from fedforget.measured import measures
from fedforget.runs import RunDirectory
from fedforget.sweeps.files import Result, key_of

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

    A setting whose budget was calibrated on a run's own damage is another one in every run, and is left out.

    Returns
    -------
    list of dict
        The setting as in ``sweep.json`` with ``measures``: per measure its :func:`interval`.
    """
    held = [{key_of(one): one for one in found} for found in sweeps]
    kept = ("method", "pretty", "parameters", "clients", "of", "split")
    return [
        {name: one[name] for name in kept if name in one}
        | {"measures": pool_metrics([other[key]["metrics"] for other in held], confidence)}
        for key, one in (held[0] if held else {}).items()
        if all(key in other for other in held)
    ]


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
        ``gap``): ``mean``, ``half_width`` of the interval (infinite for one seed), ``count`` and
        the ``values``; and ``matched``, the number of seeds where the match was close enough.

    Raises
    ------
    RunError
        None given, or they differ in levels or methods.
    """
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


def _measures(outcomes: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"gap": [outcome["gap"] for outcome in outcomes]}
    for role in ("forget", "retain", "held_out"):
        if all(role in outcome["report"] for outcome in outcomes):
            found[role] = [outcome["report"][role]["accuracy"] for outcome in outcomes]
    if all("perplexity" in outcome["report"] for outcome in outcomes):
        found["perplexity"] = [outcome["report"]["perplexity"]["perplexity"] for outcome in outcomes]
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
