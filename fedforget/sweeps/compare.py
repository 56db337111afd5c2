"""Methods side by side at matched forgetting, chosen on one set of questions and reported on another."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedforget.config import MergeConfig, RunConfig
from fedforget.errors import ConfigError, RunError, nearest
from fedforget.evaluation import Suite
from fedforget.merging import calibrate_epsilon, merge, methods
from fedforget.merging.registry import find
from fedforget.pooling import pool
from fedforget.robust.hardening import Hardening
from fedforget.summaries import ClientSummary
from fedforget.sweeps.matching import QP, Accuracies, Point, choose, search, targets
from fedforget.updates import merge_parameters

__all__ = ["QP", "Variant", "compare", "known_variants", "pool", "unbounded", "variant"]


_NO_BUDGET = "set merge.epsilon_fraction, or epsilon under evaluation.compare.parameters.firm-qp"


@dataclass(frozen=True)
class Variant:
    """A method as the comparison runs it.

    Attributes
    ----------
    name : str
        As in ``evaluation.compare.methods``.
    method : str
        The merge method's registered name.
    parameters : dict
        Everything but gamma.
    start : float
        The first gamma tried.
    """

    name: str
    method: str
    parameters: dict[str, Any]
    start: float = 1.0


def known_variants() -> list[str]:
    """Return every name that ``evaluation.compare.methods`` may hold."""
    return sorted([*methods(), QP])


def variant(name: str, config: RunConfig, summaries: Sequence[ClientSummary]) -> Variant:
    """Resolve a name of ``evaluation.compare.methods``.

    ``firm`` is FIRM-base, without a budget. ``firm-qp`` is FIRM with one: ``epsilon``, or
    ``epsilon_fraction`` of the mean damage of FIRM-base at ``epsilon_gamma``, from
    ``evaluation.compare.parameters.firm-qp`` or else from the ``merge`` section. A ``gamma``
    among the parameters is where the search starts.

    Raises
    ------
    ConfigError
        An unknown name, or ``firm-qp`` without a budget or without retain clients.
    """
    given = dict(config.evaluation.compare.parameters.get(name, {}))
    start = float(given.pop("gamma", 1.0))
    if name != QP:
        if name not in methods():
            known = known_variants()
            raise ConfigError(
                [f"unknown method {name!r} to compare{nearest(name, known)}; known: {', '.join(known)}"]
            )
        parameters = merge_parameters(unbounded(config.merge, name), ())
        parameters.pop("gamma", None)
        return Variant(name, name, parameters | given, start)
    own = _budget(config)
    given = {key: value for key, value in given.items() if key not in own}
    parameters = merge_parameters(unbounded(config.merge, "firm"), ()) | given
    parameters.pop("gamma")
    if not any(one.role == "retain" for one in summaries):
        raise ConfigError(
            ["firm-qp needs a retain client to protect; leave it out of the methods to compare"]
        )
    parameters["epsilon"] = float(own.get("epsilon", math.inf))
    if fraction := float(own.get("epsilon_fraction", 0.0)):
        parameters["epsilon"] = calibrate_epsilon(
            summaries, fraction, float(own.get("epsilon_gamma", 1.0)), parameters["alpha"], parameters["eps0"]
        )
    if not math.isfinite(parameters["epsilon"]):
        raise ConfigError([f"firm-qp has no budget; {_NO_BUDGET}"])
    return Variant(QP, "firm", parameters, start)


def unbounded(merge: MergeConfig, method: str) -> MergeConfig:
    """Return the merge section for another method, without a budget.

    ``merge.parameters`` belong to ``merge.method`` and go to no other.
    """
    own = merge.parameters if method == merge.method else {}
    return replace(merge, method=method, parameters=own, epsilon=math.inf, epsilon_fraction=0.0)


def compare(
    suite: Suite,
    summaries: Sequence[ClientSummary],
    config: RunConfig,
    *,
    names: Sequence[str] | None = None,
    levels: Sequence[float] | None = None,
    before: Mapping[str, Any] | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Compare merge methods at matched forgetting.

    Parameters
    ----------
    suite : Suite
        The run's evaluation; its backbone is left as it was.
    summaries : sequence of ClientSummary
        The run's clients.
    config : RunConfig
        ``evaluation.compare`` says what to compare and how long to search.
    names, levels : sequence, optional
        Instead of ``evaluation.compare.methods`` and ``.levels``.
    before : mapping, optional
        What ``suite`` measured of the backbone on the report split; measured anew if not given.
    progress : callable, optional
        Told one line per method and level.

    Returns
    -------
    dict
        ``before`` (report split), ``select_before`` (forget accuracies on the selection split),
        ``tolerance``, and ``levels``: per level the ``target`` per domain, its ``target_mean``,
        and per method the chosen ``gamma``, its parameters, every point evaluated, the residual
        gaps on the selection split, ``matched``, and the ``report`` on the reported questions.

    Raises
    ------
    ConfigError
        An unknown method, or one that cannot run with these clients.
    RunError
        No forget domain, so that there is nothing to match.
    """
    settings = config.evaluation.compare
    names = list(names or _possible(config, summaries, progress))
    hardening = Hardening(summaries, replace(config.robust, check="off"))
    chosen = [variant(name, config, hardening.for_method("firm" if name == QP else name)) for name in names]
    seen = {one.name: hardening.for_method(one.method) for one in chosen}
    select_before = suite.evaluate(split="select", parts=("forget",))["domains"]
    if not select_before:
        raise RunError("no forget domain of the run is measured, so there is no forgetting to match")
    result: dict[str, Any] = {
        "before": suite.evaluate(split="report") if before is None else dict(before),
        "select_before": select_before,
        "tolerance": settings.tolerance,
        "levels": [],
    }
    # Points serve every level: what a gamma forgets does not depend on the target.
    tried: dict[str, dict[float, Point]] = {one.name: {} for one in chosen}
    for level in sorted(levels or settings.levels):
        goal = targets(select_before, level)
        entry: dict[str, Any] = {
            "level": level,
            "target": goal,
            "target_mean": sum(goal.values()) / len(goal),
            "methods": {},
        }
        for one in chosen:
            started = time.perf_counter()
            points = search(
                lambda gamma, one=one: _forgotten(suite, seen[one.name], one, gamma),  # type: ignore[misc]
                goal,
                start=one.start,
                max_evaluations=settings.max_evaluations,
                points=tried[one.name],
                close=settings.tolerance / 2,
            )
            outcome = _outcome(suite, seen[one.name], one, points, goal, settings.tolerance)
            outcome["seconds"] = time.perf_counter() - started
            entry["methods"][one.name] = outcome
            progress(_line(level, one.name, outcome))
        result["levels"].append(entry)
    return result


def _budget(config: RunConfig) -> dict[str, float]:
    """Return what ``firm-qp`` takes its budget from: its own parameters, else the ``merge`` section."""
    keys = ("epsilon", "epsilon_fraction", "epsilon_gamma")
    given = config.evaluation.compare.parameters.get(QP, {})
    own = {key: float(given[key]) for key in keys if key in given}
    return own or {key: float(getattr(config.merge, key)) for key in keys}


def _possible(
    config: RunConfig, summaries: Sequence[ClientSummary], progress: Callable[[str], None]
) -> list[str]:
    """Return the configured methods, without firm-qp where there is nobody to protect or no budget."""
    configured, own = config.evaluation.compare.methods, _budget(config)
    why = ""
    if not any(one.role == "retain" for one in summaries):
        why = "the run has no retain client, so there is no budget to keep"
    elif not own.get("epsilon_fraction") and not math.isfinite(own.get("epsilon", math.inf)):
        why = f"the run has no budget; {_NO_BUDGET}"
    if QP not in configured or not why:
        return list(configured)
    progress(f"{QP} is left out: {why}")
    return [name for name in configured if name != QP]


def _merged(summaries: Sequence[ClientSummary], one: Variant, gamma: float) -> Any:
    return merge(summaries, one.method, gamma=gamma, **one.parameters)


def _forgotten(
    suite: Suite, summaries: Sequence[ClientSummary], one: Variant, gamma: float
) -> dict[str, float]:
    """Forget accuracy per domain on the selection split: all that the choice of gamma may see."""
    found = suite.evaluate(_merged(summaries, one, gamma).deltas, "select", ("forget",))
    return {domain: values["accuracy"] for domain, values in found["domains"].items()}


def _outcome(
    suite: Suite,
    summaries: Sequence[ClientSummary],
    one: Variant,
    points: Mapping[float, Point],
    goal: Accuracies,
    tolerance: float,
) -> dict[str, Any]:
    best = choose(points.values(), goal)
    merged = _merged(summaries, one, best.gamma)
    largest, total = best.gaps(goal)
    gap = best.mean - sum(goal.values()) / len(goal)
    return {
        "method": one.method,
        "pretty": "FIRM-QP" if one.name == QP else find(one.method).pretty,
        "gamma": best.gamma,
        "parameters": merged.parameters,
        "evaluated": [asdict(points[gamma]) for gamma in sorted(points)],
        "select_forget": best.mean,
        "gap": gap,
        "largest_gap": largest,
        "sum_of_gaps": total,
        "matched": bool(abs(gap) <= tolerance),
        "report": suite.evaluate(merged.deltas, "report"),
    }


def _line(level: float, name: str, outcome: Mapping[str, Any]) -> str:
    report = outcome["report"]
    parts = [
        f"{role} {report[role]['accuracy']:.3f}"
        for role in ("forget", "retain", "held_out")
        if role in report
    ]
    flag = "" if outcome["matched"] else " (not matched)"
    return f"level {level:g}, {name}: gamma {outcome['gamma']:.4g}, {', '.join(parts)}{flag}"
