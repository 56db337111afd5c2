"""How the server averages what the clients trained: FedSGT, section 4.2."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from fedforget.errors import TrainingError


class FedAvg:
    """The average of modules by number of examples, one client at a time, in fp64.

    Clients must come in the order of their ids, which makes the sum's bits independent of who
    answered first.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self._last = ""
        self.num_examples = 0
        self.clients: list[str] = []

    def add(self, client_id: str, num_examples: int, tensors: Mapping[str, Tensor]) -> None:
        """Add one client's module.

        Raises
        ------
        TrainingError
            A client out of order, without examples, or whose tensors are not finite or differ in name or
            shape from the others'.
        """
        if self.clients and client_id <= self._last:
            raise TrainingError(
                f"client {client_id!r} comes after {self._last!r}; add clients in order, each once"
            )
        if num_examples < 1:
            raise TrainingError(
                f"client {client_id!r}: {num_examples} examples; a client without data takes no part"
            )
        if self.clients and tensors.keys() != self._sums.keys():
            name = min(tensors.keys() ^ self._sums.keys())
            raise TrainingError(
                f"client {client_id!r}: tensor {name} is in some clients' modules and not in all"
            )
        for name, tensor in tensors.items():
            value = tensor.detach().cpu().double() * num_examples
            if not bool(torch.isfinite(value).all()):
                raise TrainingError(f"client {client_id!r}: tensor {name} is not finite")
            if self.clients and value.shape != self._sums[name].shape:
                raise TrainingError(f"client {client_id!r}: tensor {name} has shape {tuple(value.shape)}")
            self._sums[name] = self._sums[name] + value if self.clients else value
            self._dtypes.setdefault(name, tensor.dtype)
        self._last = client_id
        self.clients.append(client_id)
        self.num_examples += num_examples

    def result(self) -> dict[str, Tensor]:
        """Return the average in the clients' dtype.

        Raises
        ------
        TrainingError
            No client was added.
        """
        if not self.clients:
            raise TrainingError("no client trained this module; at least one must hold data of its groups")
        return {
            name: (value / self.num_examples).to(self._dtypes[name])
            for name, value in sorted(self._sums.items())
        }


def fedavg(results: Iterable[tuple[str, int, Mapping[str, Tensor]]]) -> tuple[dict[str, Tensor], int]:
    """Average modules by number of examples; see :class:`FedAvg`.

    Parameters
    ----------
    results : iterable of (client_id, num_examples, tensors)
        In any order.

    Returns
    -------
    dict of str to Tensor, int
        The average, and the examples of all clients together.
    """
    average = FedAvg()
    for client_id, num_examples, tensors in sorted(results, key=lambda item: item[0]):
        average.add(client_id, num_examples, tensors)
    return average.result(), average.num_examples
