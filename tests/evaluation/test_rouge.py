"""ROUGE-L without a hub, and greedy generation."""

from __future__ import annotations

import logging

import pytest
import torch
from rouge_score import rouge_scorer

from fedforget.evaluation.generation import generate
from fedforget.evaluation.rouge import per_item, rouge_l
from fedforget.models import Backbone

PAIRS = [
    ("the cats were running home", "a cat runs home"),
    ("Paris", "the capital is Paris"),
    ("", "something"),
    ("same words here", "same words here"),
]


def test_by_hand() -> None:
    # Longest common subsequence of "a b c d" and "a x c": a c. Recall 2/3, precision 2/4, F1 4/7.
    found = rouge_l(["a b c d"], ["a x c"], use_stemmer=False)
    assert found == pytest.approx({"recall": 2 / 3, "f1": 4 / 7, "precision": 0.5, "count": 1})


@pytest.mark.parametrize("stem", [True, False])
def test_is_rouge_score(stem: bool) -> None:
    scorer = rouge_scorer.RougeScorer(["rougeL"], use_stemmer=stem)
    wanted = [scorer.score(reference, prediction)["rougeL"] for prediction, reference in PAIRS]
    predictions, references = zip(*PAIRS, strict=True)
    assert [one["recall"] for one in per_item(predictions, references, use_stemmer=stem)] == [
        one.recall for one in wanted
    ]
    found = rouge_l(predictions, references, use_stemmer=stem)
    assert found["recall"] == pytest.approx(sum(one.recall for one in wanted) / 4)
    assert found["f1"] == pytest.approx(sum(one.fmeasure for one in wanted) / 4)


def test_generation_in_batches_is_generation_one_by_one(tiny_backbone: Backbone) -> None:
    prompts = ["the herb of", "a", "the star of the herb of a"]
    together = generate(tiny_backbone.model, tiny_backbone.tokenizer, prompts, max_new_tokens=4)
    for prompt, text in zip(prompts, together, strict=True):
        ids = tiny_backbone.tokenizer(prompt)["input_ids"]
        start = len(ids)
        for _ in range(4):
            with torch.no_grad():
                ids.append(int(tiny_backbone.model(torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] == tiny_backbone.tokenizer.eos_token_id:
                break
        assert text == tiny_backbone.tokenizer.decode(ids[start:], skip_special_tokens=True)


def test_logging_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    per_item(["a"], ["a"])
    assert logging.root.handlers == []
