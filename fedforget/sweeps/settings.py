"""Settings of a merge, and grids of them read from text."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedforget.errors import ConfigError, nearest
from fedforget.files import plain
from fedforget.merging import Parameter
from fedforget.merging.registry import find

_MOST = 10_000  # values in one range: beyond this it is a slip of the pen


@dataclass(frozen=True)
class Setting:
    """A merge method with all its parameters, and whom it merges.

    Attributes
    ----------
    method : str
    parameters : dict
    clients : tuple of str
        Ids of the clients that are merged; empty for all.
    of : str
        What these clients are called in tables.
    budget : tuple of (float, float), optional
        Where epsilon was calibrated on the run's own damage: the share of it, and at which gamma.
    """

    method: str
    parameters: dict[str, Any]
    clients: tuple[str, ...] = ()
    of: str = ""
    budget: tuple[float, float] | None = None

    def key(self, split: str) -> str:
        """Return what tells this setting's result from others."""
        subset = [list(self.clients)] if self.clients else []
        return json.dumps([self.method, plain(self.parameters), split, *subset], sort_keys=True)

    @property
    def line(self) -> str:
        """The setting in one line."""
        values = ", ".join(
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in self.parameters.items()
        )
        return f"{self.method}{f' of {self.of}' if self.of else ''}: {values}"


def grid(text: str, name: str = "value") -> list[str]:
    """Split ``a,b,c`` into its values and expand each ``start:stop:step``, ends included.

    Raises
    ------
    ConfigError
        An empty value or a range that is not three numbers with a positive step.
    """
    values: list[str] = []
    for part in text.split(","):
        part = part.strip()
        if not part:
            raise ConfigError([f"{name}: {text!r} holds an empty value; separate values by single commas"])
        values += _range(part, name) if ":" in part else [part]
    return values


def _range(part: str, name: str) -> list[str]:
    try:
        start, stop, step = (float(number) for number in part.split(":"))
        count = int((stop - start) / step + 1e-9) + 1
    except (ValueError, ZeroDivisionError, OverflowError):
        count = 0
    if not 1 <= count <= _MOST or step <= 0:
        raise ConfigError([f"{name}: {part!r} is not a range start:stop:step, such as 0.5:1.5:0.1"])
    # Twelve digits drop what binary fractions add: 0.5 + 3 * 0.1 is 0.8.
    return [f"{start + i * step:.12g}" for i in range(count)]


def expand(
    methods: Sequence[str], axes: Mapping[str, Sequence[str]], base: Callable[[str], dict[str, Any]]
) -> list[Setting]:
    """Return every setting of a grid.

    Parameters
    ----------
    methods : sequence of str
        Registered names.
    axes : mapping of str to sequence of str
        Values per parameter, as text. A method varies along the parameters that it has.
    base : callable
        A method's parameters where no axis sets them.

    Raises
    ------
    ConfigError
        Unknown methods, parameters that no method has, values of the wrong type or out of
        range; all at once.
    """
    problems: list[str] = []
    settings: list[Setting] = []
    known: dict[str, dict[str, Parameter]] = {}
    for name in methods:
        try:
            known[name] = {parameter.name: parameter for parameter in find(name).parameters}
        except ConfigError as error:
            problems += error.problems
    everything = {name for parameters in known.values() for name in parameters}
    problems += [
        f"no method of {', '.join(known)} has a parameter {axis!r}{nearest(axis, everything)}"
        for axis in axes
        if known and axis not in everything
    ]
    for name, parameters in known.items():
        mine = {axis: values for axis, values in axes.items() if axis in parameters}
        for combination in itertools.product(*mine.values()):
            try:
                given = {
                    axis: convert(parameters[axis], text)
                    for axis, text in zip(mine, combination, strict=True)
                }
                find(name).parse(given)
            except ConfigError as error:
                problems += [f"{name}: {problem}" for problem in error.problems]
                continue
            settings.append(Setting(name, given))
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return [Setting(one.method, base(one.method) | one.parameters) for one in settings]


def convert(parameter: Parameter, text: str) -> Any:
    """Read a parameter's value from the command line.

    Raises
    ------
    ConfigError
        The text is not of the parameter's type.
    """
    try:
        if parameter.type is bool:
            return {"true": True, "false": False}[text.lower()]
        return parameter.type(text)
    except (ValueError, KeyError) as error:
        kind = {float: "a number", int: "a whole number", bool: "true or false"}.get(parameter.type, "a text")
        raise ConfigError([f"{parameter.name}: {text!r} is not {kind}"]) from error
