"""Parameters that describe themselves: a frozen dataclass per method, its fields with help and range."""

from __future__ import annotations

import dataclasses
import math
import numbers
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fedforget.errors import ConfigError, nearest

P = TypeVar("P")

# Says what a value must be, or None where the value is fine.
Check = Callable[[Any], str | None]


@dataclass(frozen=True)
class Parameter:
    """One parameter of a merge method or an objective.

    Attributes
    ----------
    name : str
    type : type
        ``float``, ``int``, ``bool`` or ``str``.
    default : object
    help : str
        One line.
    choices : tuple of str
        The allowed values of a ``str`` parameter.
    """

    name: str
    type: type
    default: Any
    help: str
    choices: tuple[str, ...] = ()


def _field(default: Any, help: str, check: Check, choices: tuple[str, ...] = ()) -> Any:
    return dataclasses.field(default=default, metadata={"help": help, "check": check, "choices": choices})


def positive(default: float, help: str) -> Any:
    """Declare a positive finite number."""
    return _field(default, help, lambda v: None if 0.0 < v < math.inf else "a positive finite number")


def fraction(default: float, help: str) -> Any:
    """Declare a number in (0, 1]."""
    return _field(default, help, lambda v: None if 0.0 < v <= 1.0 else "in (0, 1]")


def share(default: float, help: str) -> Any:
    """Declare a number in [0, 1)."""
    return _field(default, help, lambda v: None if 0.0 <= v < 1.0 else "in [0, 1)")


def between(default: float, low: float, high: float, help: str) -> Any:
    """Declare a number in [low, high]."""
    return _field(default, help, lambda v: None if low <= v <= high else f"in [{low:g}, {high:g}]")


def non_negative(default: float, help: str, *, infinite: bool = False) -> Any:
    """Declare a number >= 0; infinity only where ``infinite`` says so."""
    what = "a number >= 0, or inf" if infinite else "a finite number >= 0"
    return _field(default, help, lambda v: None if v >= 0.0 and (infinite or v < math.inf) else what)


def choice(default: str, options: tuple[str, ...], help: str) -> Any:
    """Declare one of a few words."""

    def check(value: Any) -> str | None:
        return None if value in options else f"one of {', '.join(options)}{nearest(str(value), options)}"

    return _field(default, help, check, choices=options)


def flag(default: bool, help: str) -> Any:
    """Declare a switch."""
    return _field(default, help, lambda v: None)


def integer(default: int, help: str) -> Any:
    """Declare a whole number."""
    return _field(default, help, lambda v: None)


@dataclass(frozen=True)
class Scaled:
    """What every method has: the global scale of the merged update."""

    gamma: float = positive(1.0, "global scale of the merged update")


def describe(schema: type) -> tuple[Parameter, ...]:
    """List the parameters of a dataclass, in the order of its fields."""
    hints = typing.get_type_hints(schema)
    return tuple(
        Parameter(
            name=one.name,
            type=hints[one.name],
            default=one.default,
            help=one.metadata["help"],
            choices=one.metadata["choices"],
        )
        for one in dataclasses.fields(schema)
    )


def parse(schema: type[P], given: Mapping[str, Any], source: str) -> P:
    """Build a method's parameters.

    Raises
    ------
    ConfigError
        Every unknown name (with the nearest right one), wrong type and value out of range, at once.
    """
    known = {parameter.name: parameter for parameter in describe(schema)}
    checks: dict[str, Check] = {
        one.name: one.metadata["check"] for one in dataclasses.fields(typing.cast(Any, schema))
    }
    problems: list[str] = []
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            problems.append(
                f"unknown parameter {name!r}{nearest(name, known)}; the parameters are {', '.join(known)}"
            )
            continue
        wanted = known[name].type
        plain = _plain(value, wanted)
        wrong = f"a {wanted.__name__}" if plain is None else checks[name](plain)
        if wrong:
            problems.append(f"{name} must be {wrong}, not {value!r}")
        else:
            values[name] = plain
    if problems:
        raise ConfigError(problems, source)
    return schema(**values)


def _plain(value: Any, wanted: type) -> Any:
    """Return the value as the wanted Python type, or None where it is of another kind."""
    if wanted is bool:
        return value if isinstance(value, bool) else None
    if isinstance(value, bool):
        return None
    if wanted is float:
        try:
            return float(value) if isinstance(value, numbers.Real) else None
        except OverflowError:  # a whole number beyond every float
            return math.inf if value > 0 else -math.inf
    if wanted is int:
        return int(value) if isinstance(value, numbers.Integral) else None
    return value if isinstance(value, str) else None
