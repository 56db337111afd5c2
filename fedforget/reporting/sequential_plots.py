"""Figures of a FedSGT demonstration: accuracy, live modules and remaining groups over the requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure


def accuracy_figure(demo: Mapping[str, Any]) -> Figure:
    """Accuracy of what serves after each request; a curve ends where service does."""
    figure, axes = _axes("accuracy on the test records")
    for rows, style in _courses(demo):
        shown = [row for row in rows if row["accuracy"] is not None]
        axes.plot(
            [row["number"] for row in shown], [row["accuracy"] for row in shown], marker="o", ms=3.5, **style
        )
    return _finished(figure, axes, demo)


def modules_figure(demo: Mapping[str, Any]) -> Figure:
    """Active modules after each request."""
    figure, axes = _axes("active modules")
    for rows, style in _courses(demo):
        axes.plot([r["number"] for r in rows], [r["modules"] for r in rows], marker="o", ms=3.5, **style)
    return _finished(figure, axes, demo)


def remaining_figure(demo: Mapping[str, Any]) -> Figure:
    """Groups in the longest prefix that serves: observed, expected, and the band for one run."""
    figure, axes = _axes("groups in the longest prefix that serves")
    rows = demo["requests"]
    numbers = [row["number"] for row in rows]
    if all(row.get("longest_band") for row in rows):
        low, high = zip(*(row["longest_band"] for row in rows), strict=True)
        label = f"band of {demo['life']['confidence']:.0%}, no repairs"
        axes.fill_between(numbers, low, high, color="C0", alpha=0.15, linewidth=0, label=label)
    expected = [row["longest_expected"] for row in rows]
    axes.plot(numbers, expected, color="C0", linestyle="--", label="expected, no repairs")
    for course, style in _courses(demo):
        axes.plot([r["number"] for r in course], [r["longest"] for r in course], marker="o", ms=3.5, **style)
    return _finished(figure, axes, demo)


def _courses(demo: Mapping[str, Any]) -> list[tuple[Sequence[Mapping[str, Any]], dict[str, Any]]]:
    found: list[tuple[Sequence[Mapping[str, Any]], dict[str, Any]]] = []
    if repaired := demo.get("repaired"):  # drawn first: until the first repair the other lies over it
        found.append((repaired["requests"], {"color": "C1", "label": "with repairs"}))
    found.append((demo["requests"], {"color": "C0", "label": "without repairs"}))
    return found


def _axes(label: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7.0, 3.6), dpi=110, layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel("deletion requests (dotted: repairs)")
    axes.set_ylabel(label)
    return figure, axes


def _finished(figure: Figure, axes: Axes, demo: Mapping[str, Any]) -> Figure:
    for one in (demo.get("repaired") or {}).get("repairs", []):
        axes.axvline(one["after"], color="grey", linewidth=0.8, linestyle=":")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, frameon=False)
    return figure
