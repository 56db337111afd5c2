"""Perplexity of texts, weighted by tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedforget.encoding import Encoded
from fedforget.errors import DataError
from fedforget.evaluation.likelihoods import token_scores
from fedforget.evaluation.prepared import encode_text


@dataclass(frozen=True)
class Perplexity:
    """Perplexity of a set of texts.

    Attributes
    ----------
    perplexity : float
        ``exp`` of the mean negative log-likelihood over all predicted tokens of all texts, so
        that a long text weighs more than a short one.
    tokens : int
        Predicted tokens.
    texts : int
        Texts with at least one of them.
    """

    perplexity: float
    tokens: int
    texts: int


def prepare_texts(tokenizer: Any, texts: Iterable[str], max_length: int = 512) -> list[list[int]]:
    """Tokenise texts, cut at ``max_length`` tokens; those of fewer than two tokens predict nothing.

    Raises
    ------
    DataError
        No text has two tokens.
    """
    encoded = [encode_text(tokenizer, text)[:max_length] for text in texts]
    encoded = [tokens for tokens in encoded if len(tokens) > 1]
    if not encoded:
        raise DataError(
            "no text of at least two tokens to measure perplexity on; give some outside every domain (in "
            "own data, split general), or set evaluation.perplexity=false"
        )
    return encoded


def perplexity(model: Any, texts: Sequence[Sequence[int]], *, batch_size: int = 16) -> Perplexity:
    """Measure perplexity on the texts of :func:`prepare_texts`.

    Parameters
    ----------
    model : PreTrainedModel
        A causal language model.
    texts : sequence of sequences of int
        Tokens of each text, at least two; all but the first are predicted.
    batch_size : int
        Texts per forward pass.
    """
    sequences = [Encoded("", torch.tensor(tokens), torch.tensor(tokens)) for tokens in texts]
    scores = token_scores(model, sequences, batch_size=batch_size)
    count = sum(len(one.values) for one in scores)
    total = -math.fsum(float(one.values.sum()) for one in scores)
    mean = total / count
    # Beyond this, exp overflows a double; such a model predicts nothing.
    return Perplexity(math.exp(mean) if mean < 700 else math.inf, count, len(texts))
