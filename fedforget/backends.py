"""Other places to merge in than this process: a package that knows one adds it with its commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedforget.errors import RunError

# Takes an address; returns a function with the signature of fedforget.merging.merge_tensors.
Factory = Callable[[str], Callable[..., Any]]

_BACKENDS: dict[str, Factory] = {}


def add_backend(name: str, factory: Factory) -> None:
    """Make a place to merge in known by name."""
    _BACKENDS[name] = factory


def backend(name: str) -> Factory:
    """Return the factory of a backend.

    Raises
    ------
    RunError
        No installed package brings it.
    """
    if name not in _BACKENDS:
        raise RunError(f"no installed package merges over {name!r}; install fedforget with its simulations")
    return _BACKENDS[name]
