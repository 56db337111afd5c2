"""Raw mappings against a structured configuration: unknown keys and wrong types, each named by its key."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from functools import cache
from typing import Any

from fedforget.errors import nearest


class Cleaner:
    """Drops unknown keys and values of the wrong type from a raw mapping, noting each."""

    def __init__(self, schema: type, problems: list[str]) -> None:
        self._schema = schema
        self._problems = problems
        self._doubtful: set[str] = set()

    def clean(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Return what remains of the whole configuration."""
        return self._mapping(raw, self._schema, "")

    def concerns_dropped(self, problem: str) -> bool:
        """Tell whether a problem, ``key: what is wrong``, is about a key whose value was dropped.

        What is found there is then a default, or an earlier layer's, and not what was meant.
        """
        key = problem.partition(":")[0]
        return any(_within(key, one) or _within(one, key) for one in self._doubtful)

    def _mapping(self, raw: dict[str, Any], schema: Any, prefix: str) -> dict[str, Any]:
        known = hints(schema)
        kept: dict[str, Any] = {}
        for key, value in raw.items():
            dotted = f"{prefix}{key}"
            if key not in known:
                close = self._nearest_key(dotted, str(key), prefix, known)
                self._problems.append(f"unknown key {dotted!r}{close}")
                self._doubtful.update(close.split("'")[1:2])
                continue
            found = self._value(value, known[key], dotted)
            if found is not _WRONG:
                kept[key] = found
        return kept

    def _nearest_key(self, dotted: str, key: str, prefix: str, known: dict[str, Any]) -> str:
        close = nearest(key, known)
        if close:
            return close.replace("'", f"'{prefix}", 1)
        return nearest(dotted, all_keys(self._schema))

    def _value(self, value: Any, hint: Any, dotted: str) -> Any:
        wrong = _mismatch(value, hint)
        if wrong:
            self._problems.append(f"{dotted}: {value!r} is not {wrong}")
            self._doubtful.add(dotted)
            return _WRONG
        if dataclasses.is_dataclass(hint):
            return self._mapping(value, hint, f"{dotted}.")
        if typing.get_origin(hint) is list:
            (item,) = typing.get_args(hint)
            found = [self._value(one, item, f"{dotted}[{i}]") for i, one in enumerate(value)]
            return [one for one in found if one is not _WRONG]
        if typing.get_origin(hint) is dict:
            _, item = typing.get_args(hint)
            pairs = {str(key): self._value(one, item, f"{dotted}.{key}") for key, one in value.items()}
            return {key: one for key, one in pairs.items() if one is not _WRONG}
        return value


def _within(key: str, section: str) -> bool:
    return key == section or key.startswith((f"{section}.", f"{section}["))


_WRONG = object()
_KINDS: dict[Any, str] = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    str: "a text",
    list: "a list, such as [a, b]; give the whole list",
    dict: "a mapping of keys to values",
}


def _mismatch(value: Any, hint: Any) -> str:
    """Say what the value should be and is not; empty where OmegaConf will take it."""
    if hint is Any:
        return ""
    if isinstance(hint, types.UnionType):
        return "" if value is None else _mismatch(value, typing.get_args(hint)[0])
    kind = dict if dataclasses.is_dataclass(hint) else typing.get_origin(hint) or hint
    if kind in (list, dict):
        return "" if isinstance(value, kind) else _KINDS[kind]
    return "" if _is_scalar(value, kind) else _KINDS[kind]


def _is_scalar(value: Any, kind: type) -> bool:
    if value is None or isinstance(value, list | dict) or value == "???":
        return False
    if kind is str:
        return True
    if kind is bool:
        return isinstance(value, bool) or str(value).lower() in {"true", "false"}
    if isinstance(value, bool):
        return False
    try:
        # What an editor or a shell quoted is still a number.
        number = float(value)
    except ValueError:
        return False
    return kind is float or (math.isfinite(number) and not isinstance(value, float) and number.is_integer())


def all_keys(schema: Any, prefix: str = "") -> list[str]:
    """Return every dotted key of a structured configuration."""
    keys = []
    for name, hint in hints(schema).items():
        keys.append(prefix + name)
        if dataclasses.is_dataclass(hint):
            keys += all_keys(hint, f"{prefix}{name}.")
    return keys


@cache
def hints(schema: Any) -> dict[str, Any]:
    """Return the type of every key of a structured configuration."""
    return typing.get_type_hints(schema)
