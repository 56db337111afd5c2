"""What a certificate claims, read from an untrusted file: right in form, and still to be checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedforget.certificates import UNREADABLE, read, unreadable


def read_claims(metadata: Mapping[str, str], path: Path) -> dict[str, Any]:
    """Read a certificate whose parts have the right types; what they claim is still to be checked."""
    try:
        said = read(metadata, path)
        if said:
            said["parameters"] = dict(said["parameters"])
            for key in ("epsilon", "alpha", "eps0"):
                said[key] = float(said[key])
                if float(said["parameters"].get(key, said[key])) != said[key]:
                    raise ValueError(f"two values of {key}")
            for key in ("clients", "forget"):
                if not all(isinstance(client, str) for client in said[key]) or isinstance(said[key], str):
                    raise TypeError(f"{key} are not ids")
                said[key] = list(said[key])
            said["tensors"] = {str(name): dict(one) for name, one in said["tensors"].items()}
            if not (0.0 < said["alpha"] <= 1.0 and said["eps0"] >= 0.0 and said["epsilon"] >= 0.0):
                raise ValueError("alpha, eps0 or epsilon is out of range")
        return said
    except UNREADABLE as error:
        raise unreadable(path, error) from error


def tensor_claims(raw: Mapping[str, Any], clients: int) -> dict[str, Any]:
    """Read what a certificate says of one tensor; raises one of ``UNREADABLE``."""
    lists: dict[str, list[Any]] = {
        "multipliers": [float(value) for value in raw["multipliers"]],
        "ratio": [float(value) for value in raw["ratio"]],
        "fishers": [str(value) for value in raw["fishers"]],
    }
    for key, values in lists.items():
        if len(values) != clients:
            raise ValueError(f"its {key} are not one per client")
    numbers = {key: float(raw[key]) for key in ("slack_gap", "duality_gap", "base_norm")}
    if not isinstance(raw["certified"], bool) or raw["working"] not in ("float32", "float64"):
        raise ValueError("certified or working is not a value of theirs")
    return {**lists, **numbers, "certified": raw["certified"]}
