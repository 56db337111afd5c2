"""Drawing panels. Nothing is computed here but places and colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedforget.reporting.plots import save
from simulations.experiment import panels as of
from simulations.experiment import summaries as say
from simulations.experiment.panels import Panel
from simulations.experiment.summaries import Result

FIGURES: Mapping[str, tuple[str, Callable[[Sequence[Result]], list[Panel]]]] = {
    "accuracy": (
        "Test accuracy after every request, until service ends. Thin: single seeds; bold: their mean where "
        "all of them serve; dotted: the public model alone. Methods that recover are then measured.",
        of.accuracy_panels,
    ),
    "remaining": (
        "Share of the data that serves (FedSGT: longest active prefix; FedCIO: clusters not hit). Thin: "
        "observed, by seed; dashed: expected by theory.",
        of.remaining_panels,
    ),
    "survival": (
        "Share of seeds still in service, and its probability by theory (dashed).",
        of.survival_panels,
    ),
    "costs": ("Measured costs of training, and of a recovery, in the first setting.", of.cost_panels),
    "membership": (
        "Membership attack on the deleted records, with 95 % intervals; dotted: a coin.",
        of.membership_panels,
    ),
    "ablations": ("FedSGT with one parameter changed at a time, mean over seeds.", of.ablation_panels),
}
"""Every figure: its caption and its data."""


_STYLES: Mapping[str, dict[str, Any]] = {
    "observed": {"linewidth": 1.8, "marker": ".", "markersize": 4},
    "seed": {"linewidth": 0.7, "alpha": 0.45},
    "predicted": {"linestyle": "--", "linewidth": 1.4},
}


def draw(panels: Sequence[Panel]) -> Figure:
    """Draw panels side by side, at most three in a row."""
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(4.3 * columns, 3.3 * rows), dpi=90, layout="constrained")
    grid: Any = figure.subplots(rows, columns, squeeze=False)
    colours = {
        name: f"C{i % 10}"
        for i, name in enumerate(dict.fromkeys(line.of for panel in panels for line in panel.lines))
    }
    for axes, panel in zip(grid.flat, panels, strict=False):
        _panel(axes, panel, colours)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    return figure


def save_figures(results: Sequence[Result], folder: Path) -> dict[str, str]:
    """Draw every figure that there are data for, as PNG; return the captions by file name."""
    written = {}
    # Where methods are compared, a setting that was run for its ablations alone is not among them.
    compared = [one for one in results if len(say.methods(say.of(results, one["setting"]))) > 1] or results
    for name, (caption, data) in FIGURES.items():
        panels = data(results if name == "ablations" else compared)
        if panels:
            save(draw(panels), folder / f"{name}.png")
            written[f"{name}.png"] = caption
    return written


def _panel(axes: Axes, panel: Panel, colours: Mapping[str, str]) -> None:
    for line in panel.lines:
        colour, label = colours[line.of], line.label or "_nolegend_"
        if line.style in ("points", "bars"):
            if line.style == "bars":
                axes.barh(line.y, line.x, height=0.6, color=colour, alpha=0.5)
            errors = [
                [x - low for x, low in zip(line.x, line.low, strict=True)],
                [high - x for x, high in zip(line.x, line.high, strict=True)],
            ]
            axes.errorbar(
                line.x, line.y, xerr=errors, fmt="o", markersize=4, capsize=2, color=colour, label=label
            )
        else:
            axes.plot(line.x, line.y, color=colour, label=label, **_STYLES[line.style])
    if panel.mark is not None:
        axes.axvline(panel.mark, color="grey", linewidth=0.8, linestyle=":")
    if panel.level is not None:
        axes.axhline(panel.level, color="grey", linewidth=0.8, linestyle=":")
    if panel.rows:
        axes.set_yticks(range(len(panel.rows)), panel.rows, fontsize=8)
        axes.invert_yaxis()
    axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel(panel.x, fontsize=9)
    axes.set_ylabel(panel.y, fontsize=9)
    if any(line.label for line in panel.lines):
        axes.legend(fontsize=7, frameon=False)
