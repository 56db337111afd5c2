"""Projected gradient ascent on the records to forget (Halimi et al. 2022)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedforget.data.records import Records
from fedforget.errors import TrainingError
from fedforget.sequential.config import AscentConfig
from fedforget.sequential.stack import ModuleStack
from fedforget.sequential.training import LocalResult, run_epochs, train_module


def ascend_locally(
    stack: ModuleStack,
    reference: Mapping[str, Tensor],
    records: Records,
    cfg: AscentConfig,
    *,
    radius: float,
    seed: int,
    threads: int,
) -> LocalResult:
    """Raise the loss on some records by plain SGD, without leaving the ball around the reference.

    Parameters
    ----------
    stack : ModuleStack
    reference : mapping of str to Tensor
        The module that the ascent begins at, and the ball's centre.
    records : Records
        What is to be forgotten.
    cfg : AscentConfig
    radius : float
        Of the ball, in the l2 norm over all tensors of the module together.
    seed : int
        Of the batches' order and of dropout.
    threads : int

    Returns
    -------
    LocalResult
        ``first_loss`` and ``last_loss`` are the loss itself, which rises.

    Raises
    ------
    TrainingError
        There is no record, or the loss is not finite.
    """
    if not len(records):
        raise TrainingError("there is no record to forget")
    return train_module(
        stack,
        lambda: stack.begin([], reference, 0),  # the seed plays no part where a module is given
        lambda: _ascend(stack, records, cfg, radius, seed),
        records,
        cfg.batch_size,
        threads,
    )


def _ascend(stack: ModuleStack, records: Records, cfg: AscentConfig, radius: float, seed: int) -> list[float]:
    parameters = stack.parameters()
    centre = [parameter.detach().clone() for parameter in parameters]
    optimiser = torch.optim.SGD(parameters, lr=cfg.learning_rate, maximize=True, foreach=False)

    def step(done: int) -> None:
        del done
        optimiser.step()
        project_to_ball(parameters, centre, radius)

    return run_epochs(stack, records, cfg, cfg.epochs, seed, step, "ascent.learning_rate")


@torch.no_grad()
def project_to_ball(parameters: Sequence[Tensor], centre: Sequence[Tensor], radius: float) -> None:
    """Move parameters, in place, to the nearest point within ``radius`` of the centre, in the l2 norm."""
    distance = distance_between(parameters, centre)
    if distance > radius:
        for parameter, middle in zip(parameters, centre, strict=True):
            parameter.copy_(middle + (parameter - middle) * (radius / distance))


def distance_between(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """Return the l2 distance over all tensors together, summed in fp64."""
    pairs = zip(ours, theirs, strict=True)
    return math.sqrt(sum(float(((a.detach().double() - b.double()) ** 2).sum()) for a, b in pairs))
