"""ROUGE-L of generated answers: recall with stemming (TOFU) or F1 without (MUSE)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# isort: off
import datasets
import evaluate

# isort: on
from rouge_score import rouge_scorer, tokenizers

_DESCRIPTION = "ROUGE-L precision, recall and F1: the longest common subsequence of words."


class RougeL(evaluate.Metric):  # type: ignore[misc]
    """ROUGE-L as an ``evaluate`` metric that needs no hub.

    ``compute(predictions=..., references=..., use_stemmer=True)`` returns the means ``recall``,
    ``f1`` and ``precision`` and the number of pairs, ``count``.
    """

    def _info(self) -> Any:
        features = datasets.Features(
            {"predictions": datasets.Value("string"), "references": datasets.Value("string")}
        )
        return evaluate.MetricInfo(description=_DESCRIPTION, citation="", features=features)

    def _compute(
        self, predictions: Sequence[str], references: Sequence[str], use_stemmer: bool = True
    ) -> dict[str, float]:
        scores = per_item(predictions, references, use_stemmer=use_stemmer)
        n = len(scores)
        names = ("recall", "f1", "precision")
        return {name: sum(score[name] for score in scores) / n for name in names} | {"count": n}


def per_item(
    predictions: Sequence[str], references: Sequence[str], *, use_stemmer: bool = True
) -> list[dict[str, float]]:
    """Return ``recall``, ``f1`` and ``precision`` of ROUGE-L for each pair."""
    # Left to choose its tokenizer, it logs that through absl, which sets up logging for the whole process.
    tokenizer = tokenizers.DefaultTokenizer(use_stemmer)
    scorer = rouge_scorer.RougeScorer(["rougeL"], tokenizer=tokenizer)
    found = []
    for prediction, reference in zip(predictions, references, strict=True):
        score = scorer.score(target=reference, prediction=prediction)["rougeL"]
        found.append({"recall": score.recall, "f1": score.fmeasure, "precision": score.precision})
    return found


def rouge_l(
    predictions: Sequence[str], references: Sequence[str], *, use_stemmer: bool = True
) -> dict[str, float]:
    """Compute :class:`RougeL` without leaving files in the metrics cache."""
    metric = RougeL(keep_in_memory=True)
    return dict(
        metric.compute(predictions=list(predictions), references=list(references), use_stemmer=use_stemmer)
    )
