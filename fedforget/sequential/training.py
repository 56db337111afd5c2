"""What a client does for one module in one round: FedSGT, section 4.2."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from fedforget.data.records import Records
from fedforget.errors import TrainingError
from fedforget.reproducible import deterministic
from fedforget.rng import seeded
from fedforget.seeds import derive_seed
from fedforget.sequential.config import LocalTrainingConfig, SequentialRunConfig
from fedforget.sequential.modules import PrefixModule
from fedforget.sequential.plan import SequentialPlan
from fedforget.sequential.stack import ModuleStack


@dataclass(frozen=True, eq=False)
class LocalResult:
    """What one client trained.

    Attributes
    ----------
    tensors : dict of str to Tensor
        The module, on the CPU.
    num_examples : int
        Records it was trained on: its weight in the average.
    first_loss, last_loss : float
        Mean loss over the first and over the last epoch.
    steps : int
        Optimiser steps.
    seconds : float
        Wall time.
    """

    tensors: dict[str, Tensor]
    num_examples: int
    first_loss: float
    last_loss: float
    steps: int
    seconds: float


def module_seed(root: int, plan: SequentialPlan, prefix: Sequence[int]) -> int:
    """Derive the seed of a module's initial tensors from the ordered prefix and its slice ids alone.

    Sizes play no part: a deletion changes them, and must not change any draw.
    """
    return derive_seed(root, "module", _named(plan, prefix), "initial")


def initial_seed(config: SequentialRunConfig, plan: SequentialPlan, prefix: Sequence[int]) -> int:
    """Return the seed of a module's initial tensors in a run: :func:`module_seed`, or FedCIO's common one.

    FedCIO's clusters, and the rounds that its clustering comes from, all begin alike.
    """
    root = config.seeds.training
    return common_seed(root) if config.method == "fedcio" else module_seed(root, plan, prefix)


def common_seed(root: int) -> int:
    """Derive the seed of the initial tensors that all of FedCIO's clusters begin with."""
    return derive_seed(root, "module", "common", "initial")


def client_seed(root: int, plan: SequentialPlan, prefix: Sequence[int], round_: int, client_id: str) -> int:
    """Derive the seed of one client's local training (order of records, dropout) in one round.

    Parameters
    ----------
    root : int
        ``seeds.training``.
    plan : SequentialPlan
    prefix : sequence of int
    round_ : int
        Of the phase, from 0.
    client_id : str
    """
    return derive_seed(root, "module", _named(plan, prefix), "round", int(round_), "client", client_id)


def _named(plan: SequentialPlan, prefix: Sequence[int]) -> tuple[object, ...]:
    groups = tuple(tuple(item[:2] for item in plan.slices((group,))) for group in prefix)
    return (tuple(int(group) for group in prefix), groups)


def train_locally(
    stack: ModuleStack,
    frozen: Sequence[PrefixModule],
    current: Mapping[str, Tensor] | None,
    records: Records,
    cfg: LocalTrainingConfig,
    *,
    init_seed: int,
    seed: int,
) -> LocalResult:
    """Train the module of one prefix on one client's records of the prefix's groups.

    Same arguments give the same bits on one kind of machine. Nothing fitted is left but the
    result: the optimiser is new in every call, and the stack is cleared.

    Parameters
    ----------
    stack : ModuleStack
    frozen : sequence of PrefixModule
        The modules of the prefix without its last group, of depth 1, 2, ...
    current : mapping of str to Tensor or None
        The server's average of the round before; None in a phase's first round, when every client
        draws the same module from ``init_seed``.
    records : Records
        The client's records of all the prefix's groups.
    cfg : LocalTrainingConfig
    init_seed, seed : int
        From :func:`module_seed` and :func:`client_seed`.

    Raises
    ------
    TrainingError
        There is no record, or the loss is not finite.
    """
    if not len(records):
        raise TrainingError("there is no record to train on; a client without data takes no part")
    return train_module(
        stack,
        lambda: stack.begin(frozen, current, init_seed),
        lambda: _epochs(stack, records, cfg, seed),
        records,
        cfg.batch_size,
        cfg.threads,
    )


def train_module(
    stack: ModuleStack,
    begin: Callable[[], None],
    epochs: Callable[[], list[float]],
    records: Records,
    batch_size: int,
    threads: int,
) -> LocalResult:
    """Begin a module, train it, and leave the stack clear.

    Parameters
    ----------
    stack : ModuleStack
    begin : callable
        Sets the stack's trainable module.
    epochs : callable
        Trains it; returns the loss of each batch.
    records : Records
    batch_size : int
    threads : int
    """
    started = time.perf_counter()
    with deterministic(threads):
        begin()
        try:
            losses = epochs()
            tensors = stack.trained()
        finally:
            stack.clear()
    per_epoch = math.ceil(len(records) / batch_size)
    first, last = losses[:per_epoch], losses[-per_epoch:]
    return LocalResult(
        tensors,
        len(records),
        sum(first) / per_epoch,
        sum(last) / per_epoch,
        len(losses),
        time.perf_counter() - started,
    )


def _epochs(stack: ModuleStack, records: Records, cfg: LocalTrainingConfig, seed: int) -> list[float]:
    optimiser = torch.optim.AdamW(
        stack.parameters(), lr=cfg.learning_rate, weight_decay=cfg.weight_decay, foreach=False
    )
    total = cfg.local_epochs * math.ceil(len(records) / cfg.batch_size)

    def step(done: int) -> None:
        for group in optimiser.param_groups:
            group["lr"] = cfg.learning_rate * (1.0 - done / total)
        optimiser.step()

    return run_epochs(stack, records, cfg, cfg.local_epochs, seed, step, "training.learning_rate")


class BatchSettings(Protocol):
    """What :func:`run_epochs` reads of a configuration."""

    batch_size: int
    max_grad_norm: float


def run_epochs(
    stack: ModuleStack,
    records: Records,
    cfg: BatchSettings,
    epochs: int,
    seed: int,
    step: Callable[[int], None],
    setting: str,
) -> list[float]:
    """Pass records through the stack in a seeded order, and step after each batch's gradient.

    Parameters
    ----------
    stack : ModuleStack
        Its trainable module is set.
    records : Records
    cfg : BatchSettings
    epochs : int
    seed : int
        Of the order and of dropout.
    step : callable
        Takes the number of steps before; changes the parameters by their (clipped) gradients.
    setting : str
        The key to lower when the loss is not finite.

    Returns
    -------
    list of float
        The mean cross-entropy of each batch, before its step.

    Raises
    ------
    TrainingError
        A loss is not finite.
    """
    classifier, parameters = stack.classifier, stack.parameters()
    generator = torch.Generator().manual_seed(derive_seed(seed, "order"))
    losses: list[float] = []
    stack.model.train()
    with seeded(derive_seed(seed, "dropout"), classifier.device):
        for _ in range(epochs):
            order = torch.randperm(len(records), generator=generator).tolist()
            for start in range(0, len(order), cfg.batch_size):
                inputs, labels = records.batch(order[start : start + cfg.batch_size])
                with classifier.autocast():
                    logits = stack.model(**classifier.encode(inputs)).logits
                targets = torch.from_numpy(labels).to(classifier.device)
                loss = nn.functional.cross_entropy(logits.float(), targets)
                value = float(loss.detach())
                if not math.isfinite(value):
                    raise TrainingError(f"the loss is {value} at step {len(losses)}; lower {setting}")
                for parameter in parameters:
                    parameter.grad = None
                torch.autograd.backward(loss)
                if cfg.max_grad_norm:
                    nn.utils.clip_grad_norm_(parameters, cfg.max_grad_norm, foreach=False)
                step(len(losses))
                losses.append(value)
    return losses
