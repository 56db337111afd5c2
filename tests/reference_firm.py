"""FIRM's merge written out from the paper in NumPy float64; shares no code with the library.

Clients are plain dictionaries: ``{"role", "domain", "delta", "fisher"}``, arrays of one shape, one tensor.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from scipy.optimize import brentq, root

EPS0 = 1e-8


def top(normalised: np.ndarray, alpha_numerator: int, alpha_denominator: int) -> np.ndarray:
    """Equation (3), Top: keep what is at least the max(1, floor(alpha d))-th largest entry, ties included.

    Alpha comes as a fraction, so that floor(alpha d) is exact: 0.29 times 100 is 28.999... in floating point.
    """
    entries = np.sort(normalised.ravel())[::-1]
    count = max(1, alpha_numerator * len(entries) // alpha_denominator)
    return np.where(normalised >= entries[count - 1], normalised, 0.0)


def processed(raw: np.ndarray, alpha: tuple[int, int]) -> np.ndarray:
    """Equation (3): divide by the tensor's own maximum plus eps0, then sparsify."""
    return top(raw / (raw.max() + EPS0), *alpha)


def centroids(clients: list[dict]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Equation (2): plain means of the task vectors and of the raw Fishers of each forget domain."""
    groups: dict[str, list[dict]] = {}
    for client in clients:
        if client["role"] == "forget":
            groups.setdefault(client["domain"], []).append(client)
    return [
        (
            sum(member["delta"].astype(np.float64) for member in members) / len(members),
            sum(member["fisher"].astype(np.float64) for member in members) / len(members),
        )
        for members in groups.values()
    ]


def weighted(pairs: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray | float:
    """Compute one of the two terms of equation (4)."""
    if not pairs:
        return 0.0
    numerator = sum(fisher * delta for delta, fisher in pairs)
    return numerator / (sum(fisher for _, fisher in pairs) + EPS0)


def base_merge(
    clients: list[dict], gamma: float, alpha: tuple[int, int]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Equations (2) to (5): the scaled base merge, and the retain clients' processed Fishers."""
    forget = [(delta, processed(fisher, alpha)) for delta, fisher in centroids(clients)]
    retain = [
        (client["delta"].astype(np.float64), processed(client["fisher"].astype(np.float64), alpha))
        for client in clients
        if client["role"] == "retain"
    ]
    return gamma * (weighted(forget) + weighted(retain)), [fisher for _, fisher in retain]


def proxy(update: np.ndarray, fisher: np.ndarray) -> float:
    """Equation (6)."""
    return 0.5 * float(np.sum(fisher * update**2))


def shrunk(base: np.ndarray, fishers: list[np.ndarray], multipliers: np.ndarray) -> np.ndarray:
    """Equation (8)."""
    return base / (1 + sum(value * fisher for value, fisher in zip(multipliers, fishers, strict=True)))


def projection(base: np.ndarray, fishers: list[np.ndarray], epsilon: float) -> np.ndarray:
    """Equation (7): the base if it is feasible, else the point of form (8) that meets the KKT conditions."""
    if all(proxy(base, fisher) <= epsilon for fisher in fishers):
        return base
    if epsilon == 0:
        return np.where(np.any([fisher > 0 for fisher in fishers], axis=0), 0.0, base)
    # A handful of clients: try every set of active constraints until the KKT conditions (16) to (19) hold.
    for size in range(1, len(fishers) + 1):
        for active in itertools.combinations(range(len(fishers)), size):
            multipliers = boundary(base, [fishers[k] for k in active], epsilon)
            update = shrunk(base, [fishers[k] for k in active], multipliers)
            on_boundary = all(abs(proxy(update, fishers[k]) / epsilon - 1) < 1e-10 for k in active)
            if on_boundary and all(proxy(update, fisher) <= epsilon * (1 + 1e-10) for fisher in fishers):
                return update
    raise ArithmeticError("no set of active constraints satisfies the KKT conditions")


def boundary(base: np.ndarray, fishers: list[np.ndarray], epsilon: float) -> np.ndarray:
    """Multipliers at which every given constraint holds with equality; for several, solved in logarithms."""

    def excess(multipliers: np.ndarray) -> np.ndarray:
        update = shrunk(base, fishers, multipliers)
        return np.array([proxy(update, fisher) / epsilon - 1 for fisher in fishers])

    if len(fishers) == 1:
        if excess([0.0])[0] <= 0:
            return np.zeros(1)
        high = 1.0
        while excess([high])[0] > 0:
            high *= 2
        return np.array([brentq(lambda value: excess([value])[0], 0.0, high, xtol=1e-300, rtol=1e-14)])
    alone = np.array([float(boundary(base, [fisher], epsilon)[0]) for fisher in fishers])
    for share in (0.9, 0.5, 0.1):
        start = np.log(np.maximum(share * alone, 1e-6 * max(alone.max(), 1e-300)))
        with np.errstate(all="ignore"):
            found = root(lambda logs: excess(np.exp(np.clip(logs, -300, 300))), start, tol=1e-14)
        if np.abs(found.fun).max() < 1e-10:
            break
    return np.exp(np.clip(found.x, -300, 300))


def merge(
    clients: list[dict], gamma: float = 1.0, alpha: tuple[int, int] = (1, 10), epsilon: float = math.inf
) -> np.ndarray:
    """FIRM, Algorithm 1, for one tensor."""
    base, fishers = base_merge(clients, gamma, alpha)
    return projection(base, fishers, epsilon)
