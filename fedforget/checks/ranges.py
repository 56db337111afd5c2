"""Problems of single values in a configuration, said in one sentence each."""

from __future__ import annotations

import math

from fedforget.errors import nearest


def one_of(key: str, value: str, known: tuple[str, ...]) -> list[str]:
    """Return the problem of a value that is not among the known ones, or nothing."""
    if value in known:
        return []
    return [f"{key}: {value!r} is not one of {', '.join(known)}{nearest(value, known)}"]


def positive(key: str, value: float) -> list[str]:
    """Return the problem of a number that is not positive and finite, or nothing."""
    return [] if 0.0 < value < math.inf else [f"{key}: {value} is not a positive number"]


def at_least(key: str, value: float, low: float) -> list[str]:
    """Return the problem of a number that is below ``low`` or not finite, or nothing."""
    if low <= value < math.inf:
        return []
    return [f"{key}: {value} is less than {low}" if value < low else f"{key}: {value} is not finite"]
