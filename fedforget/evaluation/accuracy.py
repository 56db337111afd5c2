"""Accuracy as a local ``evaluate`` metric: the hub of such metrics is not reachable everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# isort: off
import datasets
import evaluate

# isort: on


class ChoiceAccuracy(evaluate.Metric):  # type: ignore[misc]
    """Share of predicted classes that are right.

    ``compute(predictions=..., references=...)`` returns ``accuracy`` and the number of pairs, ``count``.
    """

    def _info(self) -> Any:
        features = datasets.Features(
            {"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}
        )
        return evaluate.MetricInfo(
            description="Share of predicted classes that are right.", citation="", features=features
        )

    def _compute(self, predictions: Sequence[int], references: Sequence[int]) -> dict[str, float]:
        right = sum(int(a == b) for a, b in zip(predictions, references, strict=True))
        return {"accuracy": right / len(references), "count": len(references)}


def accuracy(predictions: Sequence[int], references: Sequence[int]) -> dict[str, float]:
    """Compute :class:`ChoiceAccuracy` without leaving files in the metrics cache."""
    metric = ChoiceAccuracy(keep_in_memory=True)
    return dict(metric.compute(predictions=list(predictions), references=list(references)))
