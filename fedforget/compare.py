"""Methods side by side at matched forgetting, chosen on one set of questions and reported on another.

The rule is the paper's (FIRM, appendix D.2): of the settings tried, the one with the smallest
largest accuracy gap over the forget domains, ties by the sum of gaps, then by the lower gamma;
utility is never looked at. The reference here is a target per domain, a share of the way from the
accuracy before down to chance.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from scipy import stats

from fedforget.config import MergeConfig, RunConfig
from fedforget.errors import ConfigError, RunError, nearest
from fedforget.evaluation import Suite, domains
from fedforget.merging import calibrate_epsilon, merge, methods
from fedforget.merging.registry import find
from fedforget.summaries import ClientSummary
from fedforget.updates import merge_parameters

QP = "firm-qp"
# Gammas outside are not tried: the update would be nothing, or everything.
_LOWEST, _HIGHEST = 2.0**-10, 2.0**10
# Closer together than this, two gammas give the same answers but for noise.
_RESOLUTION = 1.03

Accuracies = Mapping[str, float]


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


@dataclass(frozen=True)
class Point:
    """One gamma and what was forgotten at it.

    Attributes
    ----------
    gamma : float
    forget : mapping of str to float
        Accuracy per forget domain, on the selection split.
    """

    gamma: float
    forget: Accuracies

    def gaps(self, targets: Accuracies) -> tuple[float, float]:
        """Return the largest and the sum of the absolute gaps to the targets."""
        found = [abs(self.forget[domain] - target) for domain, target in targets.items()]
        # Accuracies are quotients of small integers: rounding keeps equal gaps equal.
        return round(max(found), 9), round(sum(found), 9)

    @property
    def mean(self) -> float:
        """Mean accuracy over the forget domains."""
        return sum(self.forget.values()) / len(self.forget)


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
    own = {key: given.pop(key) for key in ("epsilon", "epsilon_fraction", "epsilon_gamma") if key in given}
    if not own:
        own = {key: getattr(config.merge, key) for key in ("epsilon", "epsilon_fraction", "epsilon_gamma")}
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
        raise ConfigError(
            [
                "firm-qp has no budget; set merge.epsilon_fraction, or epsilon under "
                "evaluation.compare.parameters.firm-qp"
            ]
        )
    return Variant(QP, "firm", parameters, start)


def unbounded(merge: MergeConfig, method: str) -> MergeConfig:
    """Return the merge section for another method, without a budget.

    ``merge.parameters`` belong to ``merge.method`` and go to no other.
    """
    own = merge.parameters if method == merge.method else {}
    return replace(merge, method=method, parameters=own, epsilon=math.inf, epsilon_fraction=0.0)


def targets(before: Mapping[str, Mapping[str, float]], level: float) -> dict[str, float]:
    """Return the forget accuracy to match per domain: ``before - level * (before - chance)``."""
    return {
        domain: one["accuracy"] - level * (one["accuracy"] - one["chance"]) for domain, one in before.items()
    }


def choose(points: Iterable[Point], goal: Accuracies) -> Point:
    """Return the point with the smallest largest gap, ties by the sum of gaps, then by the lower gamma."""
    return min(points, key=lambda point: (*point.gaps(goal), point.gamma))


def search(
    measure: Callable[[float], Accuracies],
    goal: Accuracies,
    *,
    start: float = 1.0,
    max_evaluations: int = 7,
    points: dict[float, Point] | None = None,
    close: float = 0.0,
) -> dict[float, Point]:
    """Look for the gamma whose mean forget accuracy is the goal's, by bisection in log gamma.

    Parameters
    ----------
    measure : callable
        Forget accuracy per domain at a gamma.
    goal : mapping of str to float
        Target per domain.
    start : float
        The first gamma.
    max_evaluations : int
        Calls of ``measure``.
    points : dict, optional
        Points measured before; added to and returned.
    close : float
        Stop once some point's largest gap is at most this.

    Returns
    -------
    dict of float to Point
        Everything measured, by gamma.
    """
    points = {} if points is None else points
    wanted = sum(goal.values()) / len(goal)
    step = 2.0
    for _ in range(max_evaluations):
        if points and choose(points.values(), goal).gaps(goal)[0] <= close:
            break
        gamma = start if not points else _next(sorted(points.values(), key=lambda p: p.gamma), wanted, step)
        if gamma is None:
            break
        if points and (gamma > max(points) or gamma < min(points)):
            step *= 2.0
        points[gamma] = Point(gamma, dict(measure(gamma)))
    return points


def _next(points: list[Point], wanted: float, step: float) -> float | None:
    """Return the gamma to try, between the first two that the goal lies between, else beyond the ends."""
    for weaker, stronger in itertools.pairwise(points):
        if weaker.mean >= wanted > stronger.mean:
            if stronger.gamma / weaker.gamma < _RESOLUTION:
                return None
            return math.sqrt(weaker.gamma * stronger.gamma)
    beyond = points[-1].gamma * step if points[-1].mean >= wanted else points[0].gamma / step
    return beyond if _LOWEST <= beyond <= _HIGHEST else None


def compare(
    suite: Suite,
    summaries: Sequence[ClientSummary],
    config: RunConfig,
    *,
    names: Sequence[str] | None = None,
    levels: Sequence[float] | None = None,
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
    chosen = [variant(name, config, summaries) for name in (names or settings.methods)]
    if not domains(config)["forget"]:
        raise RunError("the run has no forget domain, so there is no forgetting to match")
    select_before = suite.evaluate(split="select", parts=("forget",))["domains"]
    result: dict[str, Any] = {
        "before": suite.evaluate(split="report"),
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
                lambda gamma, one=one: _forgotten(suite, summaries, one, gamma),  # type: ignore[misc]
                goal,
                start=one.start,
                max_evaluations=settings.max_evaluations,
                points=tried[one.name],
                close=settings.tolerance / 4,
            )
            outcome = _outcome(suite, summaries, one, points, goal, settings.tolerance)
            outcome["seconds"] = time.perf_counter() - started
            entry["methods"][one.name] = outcome
            progress(_line(level, one.name, outcome))
        result["levels"].append(entry)
    return result


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
