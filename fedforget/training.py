"""The local loop that every objective shares: seeded order, AdamW, and a stop where it collapses."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fedforget.config import TrainingConfig
from fedforget.encoding import collate, encode, pad_id
from fedforget.errors import TrainingError
from fedforget.objectives import Objective, needs_retain
from fedforget.rng import seeded
from fedforget.seeds import derive_seed
from fedforget.sequential.checkpoints import Checkpoint

if TYPE_CHECKING:
    from fedforget.data import Example


@dataclass(frozen=True)
class TrainingReport:
    """What a client's training did.

    Attributes
    ----------
    steps : int
        Optimiser steps.
    first_loss, last_loss : float
        Loss of the first and of the last batch, each before its step.
    losses : tuple of float
        Of every step.
    seconds : float
        Wall time.
    tokens : int
        Tokens read, padding left out.
    """

    steps: int
    first_loss: float
    last_loss: float
    losses: tuple[float, ...]
    seconds: float
    tokens: int


def train(
    model: nn.Module,
    tokenizer: Any,
    examples: Sequence[Example],
    objective: Objective,
    cfg: TrainingConfig,
    *,
    max_length: int,
    seed: int,
    shared_seed: int = 0,
    domain: str | None = None,
    retain: Sequence[Example] = (),
    checkpoint: Checkpoint | None = None,
) -> TrainingReport:
    """Train a model's trainable parameters on one client's examples.

    AdamW, constant learning rate after a linear warm-up, gradients clipped by their global norm.
    The data is gone through in seeded permutations, one after the other. The model is in
    evaluation mode but for the adapter's dropout. Given the same seeds, threads and machine, the
    result is the same to the bit on a CPU.

    Parameters
    ----------
    model : nn.Module
        What requires a gradient is trained.
    tokenizer : object
        Of the model.
    examples : sequence of Example
        The client's data.
    objective : Objective
        See :func:`fedforget.objectives.objective`.
    cfg : TrainingConfig
        Steps, batch size, learning rate and so on.
    max_length : int
        Tokens per sequence.
    seed : int
        The client's own: order of the data, dropout.
    shared_seed : int
        The same for all clients of a run: with the domain, it fixes what an objective draws for
        the domain (RMU's control vector). Were it the client's own, clients of one domain would
        pull in different directions.
    domain : str, optional
        Default: the examples' own.
    retain : sequence of Example
        Retain data that the same client holds, for an objective that needs it: each step takes
        a batch of them too, in an order of their own.
    checkpoint : Checkpoint, optional
        Where the training goes on after an interruption, to the same bits.

    Returns
    -------
    TrainingReport

    Raises
    ------
    TrainingError
        There is nothing to train or to train on, or the training collapsed (a loss or gradient
        that is not finite, or a loss ``cfg.loss_limit`` times the first).
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise TrainingError("no parameter requires a gradient; attach an adapter first")
    if not examples:
        raise TrainingError("there are no examples to train on")
    if needs_retain(objective) and not retain:
        raise TrainingError(
            "the objective has a term on retain data and the client holds none; name the group's "
            "retain_domain, or set the objective's alpha to 0"
        )
    sequences = encode(tokenizer, examples, max_length)
    about = domain if domain is not None else "+".join(sorted({example.domain for example in examples}))
    loss_of = objective.prepare(model, shared_seed, about)
    optimizer = torch.optim.AdamW(parameters, lr=cfg.learning_rate, weight_decay=cfg.weight_decay)
    device = parameters[0].device
    order = _order(len(sequences), min(cfg.batch_size, len(sequences)), derive_seed(seed, "order"))
    kept = encode(tokenizer, retain, max_length) if needs_retain(objective) else []
    kept_order = _order(len(kept), min(cfg.batch_size, len(kept)), derive_seed(seed, "retain-order"))
    started = time.perf_counter()
    with seeded(derive_seed(seed, "dropout"), device), _training_mode(model):
        # Inside: what is restored has the state of the generators with it.
        losses, tokens = checkpoint.restore(parameters, optimizer) if checkpoint else ([], 0)
        for one in (order, kept_order) if kept else (order,):
            deque(itertools.islice(one, len(losses)), maxlen=0)
        for step in range(len(losses), cfg.steps):
            batch = collate([sequences[i] for i in next(order)], pad_id(tokenizer), device)
            for group in optimizer.param_groups:
                group["lr"] = cfg.learning_rate * min(1.0, (step + 1) / max(1, cfg.warmup_steps))
            given = [batch]
            if kept:
                given.append(collate([kept[i] for i in next(kept_order)], pad_id(tokenizer), device))
            loss = loss_of(*given)
            losses.append(float(loss.detach()))
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            # With no limit this measures the norm alone.
            norm = nn.utils.clip_grad_norm_(parameters, cfg.max_grad_norm or math.inf)
            _check(step, losses, float(norm), cfg)
            optimizer.step()
            tokens += sum(int(one["attention_mask"].sum()) for one in given)
            if checkpoint and checkpoint.due(step + 1, cfg.steps):
                checkpoint.save(parameters, optimizer, losses, tokens)
    return TrainingReport(
        steps=cfg.steps,
        first_loss=losses[0],
        last_loss=losses[-1],
        losses=tuple(losses),
        seconds=time.perf_counter() - started,
        tokens=tokens,
    )


def _order(count: int, batch_size: int, seed: int) -> Iterator[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    waiting: list[int] = []
    while True:
        while len(waiting) < batch_size:
            waiting += torch.randperm(count, generator=generator).tolist()
        yield waiting[:batch_size]
        waiting = waiting[batch_size:]


def _check(step: int, losses: list[float], norm: float, cfg: TrainingConfig) -> None:
    first, last = losses[0], losses[-1]
    mend = (
        f"lower the learning rate (training.learning_rate, now {cfg.learning_rate:g}) or train for fewer "
        f"steps (training.steps, now {cfg.steps})"
    )
    if not math.isfinite(last) or not math.isfinite(norm):
        what = f"loss {last:g}" if not math.isfinite(last) else f"gradient norm {norm:g}"
        raise TrainingError(f"training collapsed at step {step + 1}: {what}; {mend}")
    if abs(last) > cfg.loss_limit * max(1.0, abs(first)):
        raise TrainingError(
            f"training collapsed at step {step + 1}: the loss went from {first:.4g} to {last:.4g}; {mend}, "
            f"or raise training.loss_limit (now {cfg.loss_limit:g}) if it is meant to go that far"
        )


@contextlib.contextmanager
def _training_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode but for the adapter's dropout: the backbone's own would blur its representations."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    for name, module in model.named_modules():
        if ".lora_dropout." in name:
            module.training = True
    try:
        yield
    finally:
        for module, training in before:
            module.training = training
