"""Log-likelihoods of texts, token by token: what losses, probabilities and membership scores are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedforget.encoding import Encoded, collate
from fedforget.errors import DataError
from fedforget.evaluation.modes import evaluating
from fedforget.objectives.terms import IGNORED

Floats = NDArray[np.float64]
Progress = Callable[[int, int], None]

# Logits in fp32 for this many positions at once: 512 x 49152 x 4 bytes is 100 MB.
POSITIONS = 512
# Models that change their logits after the output layer are read through their own forward.
_HEAD_EXTRAS = ("final_logit_softcapping", "logit_scale", "logits_scaling")


@dataclass(frozen=True, eq=False)
class TokenScores:
    """What a model says of one sequence's target tokens.

    Attributes
    ----------
    values : float64 array, shape [n]
        Log-likelihood of each target token; a sequence has at least one.
    means, deviations : float64 array, shape [n]
        Mean and standard deviation of the log-probability of a token drawn from the model itself
        at that place; empty unless asked for.
    """

    values: Floats
    means: Floats
    deviations: Floats

    @property
    def loss(self) -> float:
        """Mean negative log-likelihood."""
        return float(-self.values.mean())


def has_plain_head(model: Any) -> bool:
    """Whether a model's logits are its output layer's, unchanged."""
    return not any(getattr(model.config, name, None) for name in _HEAD_EXTRAS)


@torch.no_grad()
def token_scores(
    model: Any,
    sequences: Sequence[Encoded],
    *,
    batch_size: int = 16,
    spread: bool = False,
    progress: Progress | None = None,
) -> list[TokenScores]:
    """Score the target tokens of sequences, batched by length; the longest come first.

    Parameters
    ----------
    model : PreTrainedModel
        A causal language model.
    sequences : sequence of Encoded
        See :func:`fedforget.encoding.encode`; the first token is predicted from nothing and never counts.
    batch_size : int
        Sequences per forward pass.
    spread : bool
        Whether the mean and deviation at each place are wanted too.
    progress : callable, optional
        Told after each batch how many sequences are done, and of how many.

    Returns
    -------
    list of TokenScores
        In the order of the sequences.
    """
    device = model.get_input_embeddings().weight.device
    plain = has_plain_head(model)
    # Every base model names its decoder itself: Llama's is `model`, GPT-NeoX's `gpt_neox`.
    decoder = getattr(model, model.base_model_prefix) if plain else None
    # Those that need memory most come first, so that a batch that does not fit is told at once.
    order = sorted(range(len(sequences)), key=lambda i: -len(sequences[i].input_ids))
    found: dict[int, TokenScores] = {}
    with evaluating(model):
        for start in range(0, len(order), batch_size):
            indices = order[start : start + batch_size]
            # Padding stands at the end, so positions need no shift and causality hides it.
            batch = collate([sequences[i] for i in indices], 0, device)
            inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
            if decoder is not None:
                rows = decoder(**inputs, use_cache=False).last_hidden_state[:, :-1]
            else:
                rows = model(**inputs, use_cache=False).logits[:, :-1]
            labels = batch["labels"][:, 1:]
            wanted = labels != IGNORED
            head = model.get_output_embeddings() if plain else None
            values = _score(head, rows[wanted], labels[wanted], spread)
            lengths = wanted.sum(1).tolist()
            for i, own in zip(indices, _cut(values, lengths), strict=True):
                found[i] = TokenScores(*own)
            if progress is not None:
                progress(len(found), len(sequences))
    return [found[i] for i in range(len(sequences))]


def finite(scores: Sequence[TokenScores]) -> Sequence[TokenScores]:
    """Return the scores, which must be numbers.

    Raises
    ------
    DataError
        A log-likelihood is NaN or infinite.
    """
    if not all(np.isfinite(one.values).all() for one in scores):
        raise DataError(
            "the model's log-likelihoods are not numbers: its update, or its precision, has ruined it; score "
            "another merge, e.g. of a lower gamma"
        )
    return scores


def _score(head: Any, rows: Tensor, targets: Tensor, spread: bool) -> list[Floats]:
    parts: list[list[Tensor]] = [[], [], []]
    for start in range(0, len(targets), POSITIONS):
        logits = rows[start : start + POSITIONS]
        logits = (head(logits) if head is not None else logits).float()
        logs = logits.log_softmax(-1)
        parts[0].append(logs.gather(1, targets[start : start + POSITIONS, None])[:, 0])
        if spread:
            chances = logs.exp()
            # A token of no probability adds nothing, and 0 times minus infinity is not that.
            logs = torch.where(chances > 0, logs, 0.0)
            mean = (chances * logs).sum(-1)
            parts[1].append(mean)
            parts[2].append((chances * (logs - mean[:, None]).square()).sum(-1).sqrt())
    return [torch.cat(one).double().cpu().numpy() if one else np.empty(0) for one in parts]


def _cut(values: list[Floats], lengths: list[int]) -> Iterator[list[Floats]]:
    start = 0
    for length in lengths:
        yield [one[start : start + length] for one in values]
        start += length
