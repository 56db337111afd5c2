"""The terms that objectives are made of: token losses, the frozen reference, the divergence from it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedforget.errors import ModelError, TrainingError
from fedforget.objectives.registry import Batch
from fedforget.parameters import choice, non_negative

IGNORED = -100


def logits_of(model: nn.Module, batch: Batch) -> Tensor:
    """Return the logits of tokens 1, 2, ... of each sequence: fp32, ``[sequences, tokens - 1, words]``."""
    output: Any = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False)
    logits: Tensor = output.logits[:, :-1].float()
    return logits


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
    logits = logits_of(model, batch)
    if prompt_weight == 0.0:
        targets = labels[:, 1:].reshape(-1)
        return functional.cross_entropy(logits.flatten(0, 1), targets, ignore_index=IGNORED)
    losses = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].reshape(-1), reduction="none")
    weights = torch.where(labels[:, 1:] != IGNORED, 1.0, prompt_weight) * mask[:, 1:]
    return (losses * weights.reshape(-1)).sum() / weights.sum()


def sequence_nll(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return each sequence's NLL summed over its target tokens, and how many it has.

    Returns
    -------
    nll : Tensor
        fp32, ``[sequences]``, in nats.
    counts : Tensor
        int64, ``[sequences]``.
    """
    labels = batch["labels"][:, 1:]
    losses = functional.cross_entropy(
        logits_of(model, batch).transpose(1, 2), labels, ignore_index=IGNORED, reduction="none"
    )
    return losses.sum(dim=1), (labels != IGNORED).sum(dim=1)


@contextlib.contextmanager
def reference(model: nn.Module) -> Iterator[nn.Module]:
    """Be the frozen reference for a while: the same weights with the adapter off, without gradients.

    That is the model as the client's training began, because a fresh adapter adds nothing. No
    second copy is held. Run it before the trained pass: turning an adapter off and on again
    touches its ``requires_grad`` flags.

    Raises
    ------
    ModelError
        The model has no adapter to turn off.
    """
    if not hasattr(model, "disable_adapter"):
        raise ModelError("this objective compares with the frozen model, so it needs an adapter; attach one")
    off: Any = model.disable_adapter
    with torch.no_grad(), off():
        yield model


def divergence(model: nn.Module, batch: Batch) -> Tensor:
    """Return ``KL(p_ref || p)`` per target token, averaged over them, a scalar in nats, fp32.

    ``p`` is the trained model's distribution over the vocabulary, ``p_ref`` the reference's.
    """
    wanted = batch["labels"][:, 1:] != IGNORED
    with reference(model):
        before = functional.log_softmax(logits_of(model, batch)[wanted], dim=-1)
    now = functional.log_softmax(logits_of(model, batch)[wanted], dim=-1)
    return functional.kl_div(now, before, reduction="batchmean", log_target=True)


@dataclass(frozen=True)
class WithRetain:
    """A forget objective that may hold on to retain data which the same client holds."""

    alpha: float = non_negative(0.0, "weight of the term on retain data; 0: none, and none is needed")
    retain_loss: str = choice(
        "nll", ("nll", "kl"), "term on retain data: its NLL, or KL(reference || model) on its target tokens"
    )

    @property
    def needs_retain(self) -> bool:
        """Whether a client with this objective must hold retain data as well."""
        return self.alpha > 0.0

    def retained(self, model: nn.Module, retain: Batch | None) -> Tensor:
        """Return ``alpha`` times the retain term.

        Raises
        ------
        TrainingError
            There is no retain batch.
        """
        term = mean_nll if self.retain_loss == "nll" else divergence
        return self.alpha * term(model, needed(retain))


def needed(retain: Batch | None) -> Batch:
    """Return the retain batch, which must be there.

    Raises
    ------
    TrainingError
        It is not.
    """
    if retain is None:
        raise TrainingError(
            "the objective has a term on retain data and the client holds none; name the group's "
            "retain_domain, or set the objective's alpha to 0"
        )
    return retain
