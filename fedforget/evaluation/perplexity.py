"""Perplexity of texts, weighted by tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedforget.errors import DataError
from fedforget.evaluation.multiple_choice import token_log_likelihoods
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
        raise DataError("no text of at least two tokens to measure perplexity on; give longer texts")
    return encoded


@torch.no_grad()
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
    was_training = model.training
    model.eval()
    device = model.get_input_embeddings().weight.device
    total, count = 0.0, 0
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    for start in range(0, len(order), batch_size):
        batch = [texts[i] for i in order[start : start + batch_size]]
        length = max(len(tokens) for tokens in batch)
        ids = torch.zeros(len(batch), length, dtype=torch.long)
        mask = torch.zeros(len(batch), length, dtype=torch.long)
        for row, tokens in enumerate(batch):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            mask[row, : len(tokens)] = 1
        ids, mask = ids.to(device), mask.to(device)
        # Padding stands at the end, so positions need no shift and causality hides it.
        decoder = getattr(model, model.base_model_prefix)
        hidden = decoder(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        predicted = mask[:, 1:].bool()
        values = token_log_likelihoods(model, hidden[:, :-1][predicted], ids[:, 1:][predicted])
        total -= float(values.double().sum())
        count += len(values)
    model.train(was_training)
    mean = total / count
    # Beyond this, exp overflows a double; such a model predicts nothing.
    return Perplexity(math.exp(mean) if mean < 700 else math.inf, count, len(texts))
