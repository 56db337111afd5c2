"""The merge methods by name; each describes itself to the command line and the documentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor

from fedforget.errors import ConfigError, nearest
from fedforget.merging.inputs import Clients
from fedforget.parameters import Parameter, describe, parse

P = TypeVar("P")


@dataclass(frozen=True)
class Plan:
    """A merge that is ready to run, one tensor at a time.

    Attributes
    ----------
    tensor : callable
        Maps a tensor's name to the merged update, in the clients' dtype, and its report.
    report : dict
        What was decided over all tensors (clusters, a global rescaling), in plain values.
    """

    tensor: Callable[[str], tuple[Tensor, dict[str, Any]]]
    report: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """One way to merge client summaries.

    Attributes
    ----------
    name : str
        What :func:`fedforget.merging.merge` calls it.
    pretty : str
        Its name in tables.
    reference : str
        Paper and equation or section.
    summary : str
        One line.
    needs_fisher : bool
        Whether every client must send its Fisher diagonal.
    pools : bool
        Whether the clients of one forget domain enter through their mean alone.
    parameters : tuple of Parameter
    """

    name: str
    pretty: str
    reference: str
    summary: str
    needs_fisher: bool
    pools: bool
    parameters: tuple[Parameter, ...]
    _schema: type[Any] = field(repr=False)
    _prepare: Callable[[Clients, Any], Plan] = field(repr=False)

    def parse(self, given: Mapping[str, Any]) -> Any:
        """Return the method's own frozen dataclass of parameters; raises ConfigError with every problem."""
        return parse(self._schema, given, f"merge method {self.name!r}")

    def prepare(self, clients: Clients, parameters: Any) -> Plan:
        """Run what must be known before the first tensor, and return the plan."""
        return self._prepare(clients, parameters)


_METHODS: dict[str, Method] = {}


def method(
    name: str,
    *,
    pretty: str,
    reference: str,
    summary: str,
    parameters: type[P],
    needs_fisher: bool = False,
    pools: bool = False,
) -> Callable[[Callable[[Clients, P], Plan]], Callable[[Clients, P], Plan]]:
    """Register a function ``(clients, parameters) -> Plan`` as a merge method."""

    def register(prepare: Callable[[Clients, P], Plan]) -> Callable[[Clients, P], Plan]:
        _METHODS[name] = Method(
            name, pretty, reference, summary, needs_fisher, pools, describe(parameters), parameters, prepare
        )
        return prepare

    return register


def methods() -> dict[str, Method]:
    """Return every merge method by name."""
    return dict(_METHODS)


def find(name: str) -> Method:
    """Return a method by name.

    Raises
    ------
    ConfigError
        There is no such method; names the nearest one.
    """
    if name not in _METHODS:
        raise ConfigError(
            [f"unknown merge method {name!r}{nearest(name, _METHODS)}; known: {', '.join(sorted(_METHODS))}"]
        )
    return _METHODS[name]
