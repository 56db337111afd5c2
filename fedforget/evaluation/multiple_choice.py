"""Multiple choice by log-likelihood: the choice that the model finds most likely after the prompt.

What questions share is read once: a prompt for all its choices, and a template for all its
questions, see :mod:`fedforget.evaluation.token_tree`. The output layer, the largest matrix of a
small model, is applied only where a choice's token is predicted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedforget.evaluation.likelihoods import POSITIONS, Progress, has_plain_head
from fedforget.evaluation.modes import evaluating
from fedforget.evaluation.prepared import PreparedQuestion, PreparedQuestions
from fedforget.evaluation.token_tree import TokenTree

Normalise = Literal["tokens", "characters", "none"]

# A batch of packed questions holds up to this many tokens per question of ``batch_size``. Longer
# sequences share more, but attention over tokens that do not see each other is wasted.
_NODES_PER_QUESTION = 8


@dataclass(frozen=True)
class ItemScore:
    """One question's outcome.

    Attributes
    ----------
    id : str
        The question's.
    scores : tuple of float
        Log-likelihood per choice, normalised as asked for.
    prediction, answer : int
        :func:`likeliest` of the choices, and the right one.
    """

    id: str
    scores: tuple[float, ...]
    prediction: int
    answer: int

    @property
    def correct(self) -> bool:
        """Whether the right choice was the likeliest."""
        return self.prediction == self.answer


@dataclass(frozen=True)
class Accuracy:
    """A proportion with what is needed to judge it.

    Attributes
    ----------
    accuracy : float
        Share of questions answered rightly.
    count : int
        Questions.
    standard_error : float
        Of the accuracy: ``sqrt(p (1 - p) / n)``.
    chance : float
        Expected accuracy of a uniform guess.
    """

    accuracy: float
    count: int
    standard_error: float
    chance: float


def summarise(scores: Sequence[ItemScore]) -> Accuracy:
    """Summarise per-item scores as an accuracy."""
    n = len(scores)
    p = sum(score.correct for score in scores) / n
    chance = sum(1.0 / len(score.scores) for score in scores) / n
    return Accuracy(p, n, math.sqrt(p * (1.0 - p) / n), chance)


@torch.no_grad()
def score(
    model: Any,
    questions: PreparedQuestions,
    *,
    normalise: Normalise = "tokens",
    batch_size: int = 32,
    packed: bool | None = None,
    progress: Progress | None = None,
) -> list[ItemScore]:
    """Score prepared questions.

    Parameters
    ----------
    model : PreTrainedModel
        A causal language model.
    questions : PreparedQuestions
        See :func:`fedforget.evaluation.prepare`.
    normalise : {"tokens", "characters", "none"}
        What a choice's summed log-likelihood is divided by.
    batch_size : int
        Questions per forward pass.
    packed : bool, optional
        Whether shared beginnings are read once; by default wherever the model's attention
        takes a mask of four dimensions. The other way repeats the prompt for every choice.
    progress : callable, optional
        Told after each batch how many questions are done, and of how many.

    Returns
    -------
    list of ItemScore
        In the order of the questions.
    """
    if packed is None:
        packed = supports_packing(model)
    # Neighbours in this order share the longest beginnings.
    order = sorted(range(len(questions)), key=lambda i: questions.items[i].prefix)
    found: dict[int, list[float]] = {}
    limit = _NODES_PER_QUESTION * batch_size if packed else 0
    with evaluating(model):
        for indices in _batches(questions.items, order, batch_size, limit):
            items = [questions.items[i] for i in indices]
            sums = _packed_sums(model, items) if packed else _repeated_sums(model, items)
            for i, item, values in zip(indices, items, sums, strict=True):
                found[i] = [value / _length(item, j, normalise) for j, value in enumerate(values)]
            if progress is not None:
                progress(len(found), len(questions))
    results = []
    for i, item in enumerate(questions.items):
        values = found[i]
        results.append(ItemScore(item.id, tuple(values), likeliest(values), item.answer))
    return results


def likeliest(scores: Sequence[float]) -> int:
    """Return the place of the highest score, the first of equals; -1, no choice, where one is not a number.

    A ruined model gives NaN for everything; taken for the first choice, that would often be right.
    """
    if any(math.isnan(one) for one in scores):
        return -1
    return max(range(len(scores)), key=scores.__getitem__)


def supports_packing(model: Any) -> bool:
    """Whether packed scoring gives this model's own log-likelihoods."""
    config = model.config
    # Windowed layers need a mask of their own, which a given four-dimensional one replaces.
    types = set(getattr(config, "layer_types", None) or ["full_attention"])
    return (
        has_plain_head(model)
        and types == {"full_attention"}
        and config._attn_implementation in {"sdpa", "eager"}
    )


def _length(item: PreparedQuestion, choice: int, normalise: Normalise) -> int:
    if normalise == "tokens":
        return len(item.continuations[choice])
    return item.characters[choice] if normalise == "characters" else 1


def _batches(
    items: Sequence[PreparedQuestion], order: Sequence[int], batch_size: int, limit: int
) -> Iterator[list[int]]:
    """Cut the order into runs of ``batch_size`` questions, or of up to ``limit`` tree nodes if given."""
    batch: list[int] = []
    tree = TokenTree()
    for i in order:
        full = len(batch) >= batch_size if not limit else len(tree.tokens) + tree.missing(items[i]) > limit
        if batch and full:
            yield batch
            batch, tree = [], TokenTree()
        batch.append(i)
        if limit:
            tree.add(items[i])
    if batch:
        yield batch


def _packed_sums(model: Any, items: Sequence[PreparedQuestion]) -> list[list[float]]:
    weight = model.get_input_embeddings().weight
    tree = TokenTree()
    for item in items:
        tree.add(item)
    visible = tree.visible()
    mask = torch.zeros(visible.shape, dtype=weight.dtype).masked_fill_(
        ~visible, torch.finfo(weight.dtype).min
    )
    # Every base model names its decoder itself: Llama's is `model`, GPT-NeoX's `gpt_neox`.
    hidden = getattr(model, model.base_model_prefix)(
        input_ids=torch.tensor([tree.tokens], device=weight.device),
        attention_mask=mask[None, None].to(weight.device),
        position_ids=torch.tensor([tree.depths], device=weight.device),
        use_cache=False,
    ).last_hidden_state[0]
    # Many choices ask for the same node: one product with the output layer serves them all.
    places, which = torch.unique(torch.tensor(tree.places, device=weight.device), return_inverse=True)
    targets = torch.tensor(tree.targets, device=weight.device)
    values = iter(token_log_likelihoods(model, hidden[places], targets, which).tolist())
    return [[sum(next(values) for _ in choice) for choice in item.continuations] for item in items]


def token_log_likelihoods(model: Any, hidden: Tensor, targets: Tensor, rows: Tensor | None = None) -> Tensor:
    """Log-likelihood of each target token under the output layer, in fp32; shape ``[n]``.

    Parameters
    ----------
    model : PreTrainedModel
        Supplies the output layer.
    hidden : Tensor
        Last hidden states, shape ``[m, d]``.
    targets : Tensor
        Token ids, int64, shape ``[n]``.
    rows : Tensor, optional
        Which hidden state predicts each target, int64, shape ``[n]``; by default one each, in order.
    """
    head = model.get_output_embeddings()
    if rows is None:
        rows = torch.arange(len(targets), device=targets.device)
    values = torch.empty(len(targets), device=hidden.device)
    for start in range(0, len(hidden), POSITIONS):
        logits = head(hidden[start : start + POSITIONS]).float()
        mine = (rows >= start) & (rows < start + POSITIONS)
        at = rows[mine] - start
        values[mine] = logits[at, targets[mine]] - logits.logsumexp(1)[at]
    return values


def _repeated_sums(model: Any, items: Sequence[PreparedQuestion]) -> list[list[float]]:
    """The plain way: one row per choice, the model's own logits, one token at a time."""
    device = model.get_input_embeddings().weight.device
    flat = [(item.prefix, choice) for item in items for choice in item.continuations]
    length = max(len(prefix) + len(choice) for prefix, choice in flat)
    tokens = torch.zeros(len(flat), length, dtype=torch.long)
    mask = torch.zeros(len(flat), length, dtype=torch.long)
    for row, (prefix, choice) in enumerate(flat):
        n = len(prefix) + len(choice)
        tokens[row, :n] = torch.tensor(prefix + choice)
        mask[row, :n] = 1
    logits = model(input_ids=tokens.to(device), attention_mask=mask.to(device), use_cache=False).logits
    sums = []
    for row, (prefix, choice) in enumerate(flat):
        p, n = len(prefix), len(choice)
        predicted = logits[row, p - 1 : p + n - 1].float().log_softmax(-1)
        sums.append(float(predicted.gather(1, tokens[row, p : p + n, None].to(device)).sum()))
    values = iter(sums)
    return [[next(values) for _ in item.continuations] for item in items]
