"""Unlearning methods behind one interface, so that an experiment can put one stream of requests to each.

Every adapter runs the real Flower strategy and clients with real messages, in this process.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedforget.checks.methods import method_contradictions
from fedforget.data.records import Records
from fedforget.errors import ConfigError, nearest
from fedforget.sequences.ledger import Deletion
from fedforget.sequential.config import SequentialRunConfig


@dataclass(frozen=True)
class Cost:
    """What a method has cost since it was created; all of it measured.

    Attributes
    ----------
    seconds : float
        Wall time of training and recovering, the server's part included.
    client_seconds : float
        Of that, the clients' own training, added up.
    bytes_sent, bytes_received : int
        Content of the server's messages to the clients, and of their replies.
    participations : int
        Pairs of a client and a round in which it trained.
    visits : int
        Modules that clients trained in their rounds, added up: a FedSGT client trains several in a round.
    examples : int
        Records that those trainings were given, added up; each passes ``local_epochs`` times.
    rounds : int
        Rounds in which any client trained.
    storage_bytes : int
        What the server keeps on disk now.
    """

    seconds: float = 0.0
    client_seconds: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    participations: int = 0
    visits: int = 0
    examples: int = 0
    rounds: int = 0
    storage_bytes: int = 0


class UnlearningMethod(Protocol):
    """A method, with the run directory that it lives in.

    Attributes
    ----------
    name : str
        One of :data:`METHODS`.
    exact : bool
        Whether what it serves is bit-identical to training without the deleted data. Where it is
        false, what serves may still depend on them.
    """

    name: str
    exact: bool

    def train(self) -> None:
        """Train what is due; nothing where that has been done."""

    def forget(self, request: Deletion) -> bool:
        """Carry a request out, durably and without recovering; tell whether anything still serves.

        Raises
        ------
        RunError
            The request names a client, slice or record that is not there.
        """

    def recover(self) -> bool:
        """Bring back what the last requests took out of service; tell whether anything was done."""

    def probabilities(self, records: Records) -> NDArray[np.float64] | None:
        """Return class probabilities, shape ``[n, classes]``; None where service has ended."""

    def cost(self) -> Cost:
        """Return what the method has cost so far."""

    def close(self) -> None:
        """Let go of what is held in memory."""


def create(name: str, config: SequentialRunConfig, out: Path) -> UnlearningMethod:
    """Create a method in a run directory, or open it again as it was left.

    Parameters
    ----------
    name : str
        One of :data:`METHODS`.
    config : SequentialRunConfig
        Of any method: ``method`` is set, and for SISA, where it is 0, ``sequences.shards`` to a shard per
        group. Everything else stays as given, so that methods differ in the method alone.
    out : Path
        The method's own run directory.

    Raises
    ------
    ConfigError
        There is no such method, or the configuration does not suit it.
    RunError
        The directory holds something else.
    """
    from simulations.federated_method import ADAPTERS, FederatedMethod

    return ADAPTERS.get(name, FederatedMethod)(name, configured(name, config), out)


def configured(name: str, config: SequentialRunConfig) -> SequentialRunConfig:
    """Return a method's own configuration; see :func:`create`.

    Raises
    ------
    ConfigError
        As :func:`create`.
    """
    if name not in METHODS:
        raise ConfigError([f"method {name!r} is not one of {', '.join(METHODS)}{nearest(name, METHODS)}"])
    method, shards = METHODS[name], config.sequences.shards
    if name in ONE_CLIENT and config.data.clients != 1:
        raise ConfigError(
            [f"data.clients: {name} is a method for data in one place, and there are "
             f"{config.data.clients} clients; set data.clients to 1 and data.slices to all slices"]
        )  # fmt: skip
    if name == "SISA":
        shards = shards or config.grouping.groups
    elif name in ("FedSGT", "S3T"):
        shards = 0
    found = replace(config, method=method, sequences=replace(config.sequences, shards=shards))
    problems = method_contradictions(found)
    if problems:
        raise ConfigError(problems, name)
    return found


METHODS: dict[str, str] = {
    "FedSGT": "fedsgt",
    "FedAvg": "fedavg",
    "FedRetrain": "fedretrain",
    "FedCIO": "fedcio",
    "FedEraser": "federaser",
    "GradientAscent": "gradient_ascent",
    "SISA": "fedsgt",
    "S3T": "fedsgt",
}
"""Every method by the name that tables show, and what ``method`` is in its configuration."""

ONE_CLIENT = ("SISA", "S3T")
"""Methods for data in one place: their configurations have one client."""
