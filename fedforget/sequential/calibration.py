"""FedEraser's arithmetic (Liu et al. 2021): stored updates of clients, calibrated by fresh ones."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedforget.sequential.averaging import fedavg

Tensors = Mapping[str, Tensor]


def difference(tensors: Tensors, start: Tensors) -> dict[str, Tensor]:
    """Return what training changed: a client's module less the one it was sent."""
    return {name: tensors[name] - start[name] for name in sorted(tensors)}


def calibrated(stored: Tensors, fresh: Tensors) -> dict[str, Tensor]:
    """Return an update with the norm of the stored one and the direction of the fresh one.

    ``||U|| * U' / ||U'||``, tensor by tensor: the paper writes it for an update, and public
    implementations take it per layer. A fresh update that is zero has no direction and gives zero.

    Parameters
    ----------
    stored, fresh : mapping of str to Tensor
        Of one client and round: U from the training, U' from the calibration.

    Returns
    -------
    dict of str to Tensor
        In the dtype of the stored update; computed in fp64.
    """
    found = {}
    for name in sorted(stored):
        direction = fresh[name].double()
        norm = torch.linalg.vector_norm(direction)
        length = torch.linalg.vector_norm(stored[name].double())
        scaled = direction * (length / norm) if float(norm) else torch.zeros_like(direction)
        found[name] = scaled.to(stored[name].dtype)
    return found


def applied(start: Tensors, updates: Mapping[str, tuple[int, Tensors]]) -> dict[str, Tensor]:
    """Return a module with the clients' updates added, averaged by number of examples.

    Parameters
    ----------
    start : mapping of str to Tensor
    updates : mapping of client id to (examples, update)

    Raises
    ------
    TrainingError
        There is no client, or an update is not finite.
    """
    mean, _ = fedavg((name, count, update) for name, (count, update) in updates.items())
    return {name: start[name] + mean[name] for name in sorted(start)}
