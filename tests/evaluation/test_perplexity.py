"""Perplexity weighs tokens, whatever the batches."""

from __future__ import annotations

import math

import pytest
import torch

from fedforget.errors import DataError
from fedforget.evaluation import perplexity, prepare_texts
from fedforget.models import Backbone

TEXTS = ["the herb of the star", "a star", "the herb of a star of the herb", "the"]


@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_is_the_exponential_of_the_mean_over_all_tokens(tiny_backbone: Backbone, batch_size: int) -> None:
    texts = prepare_texts(tiny_backbone.tokenizer, TEXTS)
    total, count = 0.0, 0
    for ids in texts:
        with torch.no_grad():
            logp = tiny_backbone.model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        total -= sum(float(logp[at - 1, ids[at]]) for at in range(1, len(ids)))
        count += len(ids) - 1
    found = perplexity(tiny_backbone.model, texts, batch_size=batch_size)
    assert found.tokens == count
    assert found.texts == len(texts)
    assert found.perplexity == pytest.approx(math.exp(total / count), rel=1e-5)


def test_texts_are_cut(tiny_backbone: Backbone) -> None:
    assert [len(ids) for ids in prepare_texts(tiny_backbone.tokenizer, TEXTS[2:3], max_length=3)] == [3]


def test_texts_too_short_to_predict_anything(tiny_backbone: Backbone) -> None:
    with pytest.raises(DataError, match="no text of at least two tokens"):
        prepare_texts(tiny_backbone.tokenizer, [""])
