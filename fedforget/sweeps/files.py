"""What a sweep leaves in a run's directory: ``sweep.json``, and tables of it as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from filelock import FileLock

from fedforget.errors import RunError
from fedforget.files import read_json, write_json
from fedforget.measured import no_accuracies, rouge
from fedforget.runs import RunDirectory
from fedforget.sweeps.frontier import pareto
from fedforget.sweeps.settings import Setting

Result = Mapping[str, Any]

# Of the merge itself, per setting: see ``fedforget.sweeps.sweep.merge_facts``.
_FACTS = ("norm", "base_damage", "mean_damage", "largest_damage", "projected", "certified", "merge_seconds")


def results(run: RunDirectory) -> list[dict[str, Any]]:
    """Return what ``sweep.json`` holds, empty if there is none.

    Raises
    ------
    RunError
        The file is not what a sweep writes.
    """
    path = run.path / "sweep.json"
    if not path.is_file():
        return []
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("settings"), list):
        raise RunError(f"{path}: holds no settings of a sweep; restore it, or remove it and sweep again")
    return list(content["settings"])


def key_of(result: Result) -> str:
    """Return :meth:`Setting.key` of a stored result."""
    return setting_of(result).key(result["split"])


def setting_of(result: Result) -> Setting:
    """Return the setting that a stored result is of."""
    clients = tuple(result.get("clients", ()))
    budget = result.get("budget")
    relative = (budget["fraction"], budget["gamma"]) if budget else None
    return Setting(result["method"], result["parameters"], clients, result.get("of", ""), relative)


def append(run: RunDirectory, result: dict[str, Any]) -> None:
    """Add a result to ``sweep.json``, unless it is there."""
    # Two sweeps of one run may go on at once; neither loses the other's results.
    with FileLock(run.path / ".sweep.lock"):
        held = results(run)
        if key_of(result) not in {key_of(one) for one in held}:
            write_json(run.path / "sweep.json", {"settings": [*held, result]})


def trades(found: Sequence[Result], utility: str = "retain") -> list[tuple[float, float] | None]:
    """Return (mean forget accuracy, utility) of each result; None where one of them was not measured."""
    return [
        (one["metrics"]["forget"]["accuracy"], one["metrics"][utility]["accuracy"])
        if "forget" in one["metrics"] and utility in one["metrics"]
        else None
        for one in found
    ]


def on_frontier(found: Sequence[Result]) -> list[bool | None]:
    """Tell which results are Pareto-optimal among those of their split, all methods together.

    None where forgetting or retained accuracy was not measured.
    """
    marks: list[bool | None] = [None] * len(found)
    points = trades(found)
    for split in dict.fromkeys(one["split"] for one in found):
        places = [i for i, one in enumerate(found) if one["split"] == split and points[i] is not None]
        for i, best in zip(places, pareto([points[i] for i in places]), strict=True):  # type: ignore[misc]
            marks[i] = best
    return marks


def varied(one: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the parameters but gamma in which the settings of a result's method differ."""
    siblings = [other["parameters"] for other in results if other["method"] == one["method"]]
    return [
        name
        for name in one["parameters"]
        if name != "gamma" and len({str(parameters.get(name)) for parameters in siblings}) > 1
    ]


def to_csv(found: Sequence[Result]) -> str:
    """Return sweep results as CSV, one row per setting and split."""
    names = list(dict.fromkeys(name for one in found for name in one["parameters"]))
    roles = [
        (role, key) for role in ("forget", "retain", "held_out") for key in ("accuracy", "standard_error")
    ]
    domains = list(dict.fromkeys(domain for one in found for domain in one["metrics"].get("domains", {})))
    generated = list(dict.fromkeys(name for one in found for name in rouge(one["metrics"])))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    header = ["method", *names, "clients", "split", *(f"{role}_{key}" for role, key in roles)]
    writer.writerow(
        [
            *header,
            "perplexity",
            "collapse",
            "pareto",
            "in_place_of_accuracy",
            *_FACTS,
            *(f"accuracy_{name}" for name in domains),
            *generated,
        ]
    )
    for one, best in zip(found, on_frontier(found), strict=True):
        metrics, merge = one["metrics"], one.get("merge", {})
        row = [one["method"], *(one["parameters"].get(name, "") for name in names)]
        row += [" ".join(one.get("clients", ())), one["split"]]
        row += [metrics.get(role, {}).get(key, "") for role, key in roles]
        row += [metrics.get("perplexity", {}).get("perplexity", ""), " ".join(metrics["collapse"])]
        row.append("" if best is None else str(best).lower())
        row.append("; ".join(f"{name}: {what}" for name, what in no_accuracies(metrics).items()))
        facts = {**merge, "merge_seconds": one.get("seconds", {}).get("merge", "")}
        row += [_cell(facts.get(name)) for name in _FACTS]
        row += [metrics.get("domains", {}).get(name, {}).get("accuracy", "") for name in domains]
        row += [rouge(metrics).get(name, "") for name in generated]
        writer.writerow(row)
    return text.getvalue()


def _cell(value: Any) -> Any:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else value
