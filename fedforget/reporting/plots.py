"""Figures of stored results."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedforget.files import atomic_path
from fedforget.reporting.tables import short
from fedforget.sweeps.files import varied
from fedforget.sweeps.frontier import pareto

_MARKERS = "osD^vPX*<>ph"


def sweep_figure(results: Sequence[Mapping[str, Any]], before: Mapping[str, Any] | None = None) -> Figure:
    """Forgetting against utility: one curve per method and per value of the parameters but gamma.

    Points off the Pareto frontier over all curves are hollow. Where settings were measured on both splits,
    those of the reported questions are shown.

    Parameters
    ----------
    results : sequence of dict
        Settings of ``sweep.json``.
    before : dict, optional
        Metrics of the backbone without an update.
    """
    curves: dict[str, list[tuple[float, float, float]]] = {}
    splits = {one["split"] for one in results}
    results = [one for one in results if len(splits) == 1 or one["split"] == "report"]
    for one in results:
        metrics = one["metrics"]
        if "forget" in metrics and "retain" in metrics:
            gamma = float(one["parameters"].get("gamma", 0.0))
            point = (gamma, metrics["forget"]["accuracy"], metrics["retain"]["accuracy"])
            curves.setdefault(_label(one, results), []).append(point)
    curves = {label: sorted(points) for label, points in curves.items()}
    return _figure(curves, before, lines=True)


def comparison_figure(comparison: Mapping[str, Any]) -> Figure:
    """Forgetting against utility of each method at its matched settings, on the reported questions."""
    curves: dict[str, list[tuple[float, float, float]]] = {}
    for entry in comparison["levels"]:
        for name, one in entry["methods"].items():
            report = one["report"]
            if "forget" in report and "retain" in report:
                point = (float(one["gamma"]), report["forget"]["accuracy"], report["retain"]["accuracy"])
                curves.setdefault("FIRM-base" if name == "firm" else one["pretty"], []).append(point)
    return _figure(curves, comparison.get("before"), lines=False)


def png(figure: Figure) -> bytes:
    """Render a figure."""
    data = io.BytesIO()
    # Without the software entry the bytes depend on the figure alone.
    FigureCanvasAgg(figure)
    figure.savefig(data, format="png", metadata={"Software": None})
    return data.getvalue()


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(png(figure))


def _label(one: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> str:
    """Name a curve by its method and by those parameters that the sweep varies."""
    names = varied(one, results)
    of = [str(one["of"])] if one.get("of") else []
    values = [f"{name} {short(one['parameters'][name])}" for name in names]
    return ", ".join([str(one["pretty"]), *of, *values])


def _figure(
    curves: Mapping[str, Sequence[tuple[float, float, float]]],
    before: Mapping[str, Any] | None,
    *,
    lines: bool,
) -> Figure:
    figure = Figure(figsize=(7.0, 4.6), dpi=110, layout="constrained")
    axes = figure.subplots()
    best = iter(pareto([point[1:] for points in curves.values() for point in points]))
    for i, (label, points) in enumerate(curves.items()):
        colour, marker = f"C{i % 10}", _MARKERS[i % len(_MARKERS)]
        x, y = [point[1] for point in points], [point[2] for point in points]
        if lines:
            axes.plot(x, y, color=colour, alpha=0.4, linewidth=1)
        faces = [colour if next(best) else "none" for _ in points]
        axes.scatter(x, y, marker=marker, edgecolors=colour, facecolors=faces, s=30)
        axes.scatter([], [], marker=marker, color=colour, label=label, s=30)
    if before and "forget" in before and "retain" in before:
        forget, retain = before["forget"], before["retain"]
        axes.scatter(
            [forget["accuracy"]], [retain["accuracy"]], marker="+", color="black", s=70, label="before"
        )
        axes.axhline(retain["chance"], color="grey", linewidth=0.8, linestyle=":")
        axes.axvline(forget["chance"], color="grey", linewidth=0.8, linestyle=":")
    axes.set_xlabel("forget accuracy (lower is better; dotted: chance)")
    axes.set_ylabel("retain accuracy (higher is better)")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, frameon=False)
    return figure
