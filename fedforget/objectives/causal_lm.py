"""Language modelling: what retain clients minimise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedforget.objectives.registry import Batch, Loss, register
from fedforget.parameters import between

IGNORED = -100


def mean_nll(model: nn.Module, batch: Batch, prompt_weight: float = 0.0) -> Tensor:
    """Return the mean negative log-likelihood per target token, a scalar in nats, fp32.

    Parameters
    ----------
    model : nn.Module
        A causal language model of transformers, or one with an adapter.
    batch : mapping
        ``input_ids``, ``attention_mask`` and ``labels``; see :data:`fedforget.objectives.Batch`.
    prompt_weight : float
        Weight of the tokens that are no target (the prompt's), in the mean; targets weigh 1.
    """
    ids, mask, labels = batch["input_ids"], batch["attention_mask"], batch["labels"]
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1].float()
    if prompt_weight == 0.0:
        targets = labels[:, 1:].reshape(-1)
        return functional.cross_entropy(logits.flatten(0, 1), targets, ignore_index=IGNORED)
    losses = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].reshape(-1), reduction="none")
    weights = torch.where(labels[:, 1:] != IGNORED, 1.0, prompt_weight) * mask[:, 1:]
    return (losses * weights.reshape(-1)).sum() / weights.sum()


@register(
    "causal_lm",
    pretty="Language modelling",
    reference="FIRM, section 5: the retain clients' loss",
    summary="mean negative log-likelihood of the target tokens",
)
@dataclass(frozen=True)
class CausalLM:
    """Mean negative log-likelihood of the target tokens."""

    prompt_weight: float = between(
        0.0, 0.0, 1.0, "weight of the prompt's tokens in the mean; targets weigh 1"
    )

    def prepare(self, model: nn.Module, seed: int, domain: str) -> Loss:
        """Return the loss of a batch; nothing is drawn."""
        return lambda batch: mean_nll(model, batch, self.prompt_weight)
