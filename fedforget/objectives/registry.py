"""The client objectives by name; each describes itself to the command line and the documentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from torch import Tensor, nn

from fedforget.errors import ConfigError, nearest
from fedforget.parameters import Parameter, describe, parse

# ``input_ids``, ``attention_mask`` (1 where there is a token) and ``labels`` (-100 where there is
# no target), each int64 of shape [sequences, tokens].
Batch = Mapping[str, Tensor]
# Called with a batch, and with a batch of retain data where the objective needs it.
Loss = Callable[..., Tensor]


class Objective(Protocol):
    """A client objective with its parameters.

    One whose ``needs_retain`` is true gets batches of the client's retain data too.
    """

    def prepare(self, model: nn.Module, seed: int, domain: str) -> Loss:
        """Return the loss of a batch, a scalar to be minimised.

        Parameters
        ----------
        model : nn.Module
            The model that is trained, with its adapter.
        seed : int
            Shared by all clients of a run.
        domain : str
            What the client's data is about: with ``seed``, whatever is drawn here is the same for
            all clients of one domain.
        """
        ...


@dataclass(frozen=True)
class Description:
    """How an objective presents itself.

    Attributes
    ----------
    name : str
        What a configuration calls it.
    pretty : str
        Its name in tables.
    reference : str
        Paper and section.
    summary : str
        One line.
    parameters : tuple of Parameter
    """

    name: str
    pretty: str
    reference: str
    summary: str
    parameters: tuple[Parameter, ...]


_OBJECTIVES: dict[str, tuple[Description, type[Any]]] = {}

C = TypeVar("C")


def register(name: str, *, pretty: str, reference: str, summary: str) -> Callable[[type[C]], type[C]]:
    """Register a frozen dataclass with a ``prepare`` method as an objective."""

    def decorate(schema: type[C]) -> type[C]:
        _OBJECTIVES[name] = (Description(name, pretty, reference, summary, describe(schema)), schema)
        return schema

    return decorate


def needs_retain(one: Objective) -> bool:
    """Return whether a client with this objective must hold retain data as well."""
    return bool(getattr(one, "needs_retain", False))


def objectives() -> dict[str, Description]:
    """Return the description of every objective by name."""
    return {name: description for name, (description, _) in sorted(_OBJECTIVES.items())}


def objective(name: str, **parameters: Any) -> Objective:
    """Build an objective.

    Raises
    ------
    ConfigError
        No such objective (names the nearest), or parameters that are unknown, of another type or
        out of range, all at once.
    """
    if name not in _OBJECTIVES:
        known = ", ".join(sorted(_OBJECTIVES))
        raise ConfigError([f"unknown objective {name!r}{nearest(name, _OBJECTIVES)}; known: {known}"])
    built: Objective = parse(_OBJECTIVES[name][1], parameters, f"objective {name!r}")
    return built
