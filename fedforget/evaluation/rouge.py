"""ROUGE-L of generated answers: recall with stemming (TOFU) or F1 without (MUSE)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# isort: off
import datasets
import evaluate

# isort: on
import torch
from rouge_score import rouge_scorer

from fedforget.evaluation.prepared import encode_text

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
    scorer = rouge_scorer.RougeScorer(["rougeL"], use_stemmer=use_stemmer)
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


@torch.no_grad()
def generate(
    model: Any, tokenizer: Any, prompts: Sequence[str], *, max_new_tokens: int = 32, batch_size: int = 32
) -> list[str]:
    """Continue each prompt greedily; returns the new text alone, up to the end-of-sequence token.

    Prompts are padded on the left, so that every continuation starts where its prompt ends.
    """
    was_training = model.training
    model.eval()
    device = model.get_input_embeddings().weight.device
    encoded = [encode_text(tokenizer, prompt) for prompt in prompts]
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else (tokenizer.eos_token_id or 0)
    order = sorted(range(len(prompts)), key=lambda i: len(encoded[i]))
    found: dict[int, str] = {}
    for start in range(0, len(order), batch_size):
        indices = order[start : start + batch_size]
        length = max(len(encoded[i]) for i in indices)
        ids = torch.full((len(indices), length), pad, dtype=torch.long)
        mask = torch.zeros(len(indices), length, dtype=torch.long)
        for row, i in enumerate(indices):
            tokens = torch.tensor(encoded[i])
            ids[row, length - len(tokens) :] = tokens
            mask[row, length - len(tokens) :] = 1
        out = model.generate(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            do_sample=False,
            num_beams=1,
            max_new_tokens=max_new_tokens,
            pad_token_id=pad,
            eos_token_id=tokenizer.eos_token_id,
        )
        texts = tokenizer.batch_decode(out[:, length:], skip_special_tokens=True)
        found |= dict(zip(indices, texts, strict=True))
    model.train(was_training)
    return [found[i] for i in range(len(prompts))]
