"""What the experiment's figures show, as numbers: read from stored results, computed nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from simulations.experiment import summaries as say
from simulations.experiment.cells import BASE
from simulations.experiment.matching import FEDSGT
from simulations.experiment.predicted import FEDCIO
from simulations.experiment.summaries import Result
from simulations.experiment.tables import variant_order


@dataclass(frozen=True)
class Line:
    """A curve or, with intervals, points.

    Attributes
    ----------
    label : str
        Of the legend; empty for a curve that stands with another of the same colour.
    of : str
        What gives the colour: a method or a variant.
    x, y : list of float
    low, high : list of float
        Ends of the intervals along x; empty for none.
    style : str
        ``observed``, ``seed`` (thin), ``predicted`` (dashed), ``points``, ``bars``.
    """

    label: str
    of: str
    x: list[float]
    y: list[float]
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    style: str = "observed"


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    ``rows`` names the values of y where they are names; ``mark`` and ``level`` are dotted lines at a value
    of x and of y.
    """

    title: str
    x: str
    y: str
    lines: list[Line]
    rows: list[str] = field(default_factory=list)
    mark: float | None = None
    level: float | None = None


def accuracy_panels(results: Sequence[Result]) -> list[Panel]:
    """Accuracy after every request, by seed and on average while every seed serves; the public model's."""
    panels = []
    for setting in say.settings(results):
        lines = []
        for method in say.methods(say.of(results, setting)):
            own = say.of(results, setting, method)
            curves = [_curve(one) for one in own]
            lines += [Line("", method, *curve, style="seed") for curve in curves]
            lines.append(Line(method, method, *_mean_curve(curves)))
        levels = say.mean(one["public"] for one in say.of(results, setting))
        level = levels.value if levels else None
        panels.append(Panel(setting, "requests", "test accuracy", lines, level=level))
    return panels


def remaining_panels(results: Sequence[Result]) -> list[Panel]:
    """The share of the data that serves, observed and predicted."""
    panels = []
    for setting in say.settings(results):
        lines = []
        for method, key in ((FEDSGT, "longest"), (FEDCIO, "union")):
            own = say.of(results, setting, method)
            for one in own:
                rows = one["course"]
                lines.append(
                    Line("", method, [row["after"] for row in rows], [row[key] for row in rows], style="seed")
                )
            lines += _predicted(own, method, "remaining")
        if lines:
            panels.append(Panel(setting, "requests", "share of the data that serves", lines))
    return panels


def survival_panels(results: Sequence[Result]) -> list[Panel]:
    """The share of seeds in service after each number of requests, and the predicted probability."""
    panels = []
    for setting in say.settings(results):
        lines = []
        for method in (FEDSGT, FEDCIO):
            own = say.of(results, setting, method)
            lives = [life for one in own if (life := say.life(one)) is not None]
            if lives:
                steps = list(range(max(lives) + 1))
                shares = [sum(life > step for life in lives) / len(lives) for step in steps]
                lines.append(Line(f"{method}, {len(lives)} seeds", method, [*map(float, steps)], shares))
            lines += _predicted(own, method, "survival")
        if lines:
            panels.append(Panel(setting, "requests", "probability of service", lines))
    return panels


def _predicted(results: Sequence[Result], method: str, name: str) -> list[Line]:
    told = next((one["predicted"] for one in results if one["predicted"]), None)
    if not told or not (curve := told[name]):  # the life is known for more groups than what remains
        return []
    return [Line(f"{method}, predicted", method, list(range(len(curve))), curve, style="predicted")]


def _megabytes(one: Result) -> float:
    return float((one["training"]["bytes_sent"] + one["training"]["bytes_received"]) / 1e6)


_COSTS: tuple[tuple[str, Callable[[Result], float | None]], ...] = (
    ("training, s", lambda one: one["training"]["seconds"]),
    ("recovery, s", lambda one: say.times([one])),
    ("passes of the data", say.passes),
    ("participations", lambda one: one["training"]["participations"]),
    ("MB sent and received", _megabytes),
    ("MB stored", lambda one: one["training"]["storage_bytes"] / 1e6),
)


def cost_panels(results: Sequence[Result]) -> list[Panel]:
    """Measured costs, one panel each, of the first setting; means over seeds with 95 % t-intervals."""
    setting = say.settings(results)[0]
    names = say.methods(say.of(results, setting))
    panels = []
    for title, value in _COSTS:
        lines = []
        for row, method in enumerate(names):
            found = say.mean(value(one) for one in say.of(results, setting, method))
            if found is not None:
                half = found.half_width if found.count > 1 else 0.0
                x = [found.value]
                ends = [max(0.0, found.value - half)], [found.value + half]
                lines.append(Line("", method, x, [float(row)], *ends, style="bars"))
        panels.append(Panel(title, "", "", lines, rows=names))
    return panels


def membership_panels(results: Sequence[Result]) -> list[Panel]:
    """The attack's AUC before and after, and on the retrained model, by method."""
    panels = []
    for setting in say.settings(results):
        names = say.methods(say.of(results, setting))
        lines: list[Line] = []
        for row, method in enumerate(names):
            found = say.membership(results, setting, method)
            if found is None:
                continue
            told = (("before", found.before), ("after", found.now), ("retrained", found.retrained))
            for shift, (label, auc) in enumerate(told):
                y = [row + 0.22 * (shift - 1)]
                shown = label if not any(line.label == label for line in lines) else ""
                lines.append(Line(shown, label, [auc.value], y, [auc.low], [auc.high], style="points"))
        if lines:
            title = "AUC of the membership attack"
            panels.append(Panel(setting, title, "", lines, rows=names, mark=0.5))
    return panels


def ablation_panels(results: Sequence[Result]) -> list[Panel]:
    """Accuracy of FedSGT's variants after every request, a panel for each parameter and setting."""
    panels = []
    for setting in say.settings(results):
        own = [one for one in results if one["setting"] == setting and one["method"] == FEDSGT]
        variants = sorted({one["variant"] for one in own}, key=variant_order)
        for name in dict.fromkeys(one.partition("=")[0] for one in variants if one != BASE):
            lines = []
            for variant in [BASE, *(one for one in variants if one.partition("=")[0] == name)]:
                curves = [_curve(one) for one in say.of(results, setting, FEDSGT, variant)]
                if curves:
                    lines.append(Line(variant, variant, *_mean_curve(curves)))
            panels.append(Panel(f"{setting}: {name}", "requests", "test accuracy", lines))
    return panels


def _curve(result: Result) -> tuple[list[float], list[float]]:
    rows = [row for row in result["course"] if row["accuracy"] is not None]
    return [row["after"] for row in rows], [row["accuracy"] for row in rows]


def _mean_curve(curves: Sequence[tuple[list[float], list[float]]]) -> tuple[list[float], list[float]]:
    """Return the mean over seeds at the requests where every one of them has a value."""
    known = [dict(zip(*curve, strict=True)) for curve in curves]
    common = sorted(set.intersection(*(set(one) for one in known)))
    return common, [sum(one[x] for one in known) / len(known) for x in common]
