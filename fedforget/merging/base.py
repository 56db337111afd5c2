"""The base merge of one weight, what it does to the retain clients, and its projection."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedforget.merging.compiled import compile_kernels
from fedforget.merging.layout import BLOCK, Scratch, squares
from fedforget.merging.sensitivities import BaseBlock, Sensitivities, base_block
from fedforget.parameters import Scaled, fraction, positive
from fedforget.projection import FisherSupport, project, solved_budget

# Values that are put back at a time: their places are widened.
_PLACES = 1 << 20


@dataclass(frozen=True)
class FirmBaseParameters(Scaled):
    """Parameters of the base merge."""

    alpha: float = fraction(0.1, "share of each Fisher tensor's entries that is kept, largest first")
    eps0: float = positive(1.0e-8, "stabiliser added to a Fisher's maximum and to each sum of weights")


@dataclass(frozen=True, eq=False)
class Support:
    """The coordinates where a retain client's processed Fisher is positive, and its values there.

    Attributes
    ----------
    index : Tensor
        int32 or int64 ``[n]``, increasing: the union over the retain clients.
    fishers : Tensor
        ``[m, n]``, a row per retain client, in the working dtype.
    """

    index: Tensor
    fishers: Tensor


# Counted from the start of a block, which has at most 2^16 coordinates.
Places = NDArray[np.uint16]


@dataclass(frozen=True)
class _Seen:
    """What one block tells."""

    squares: float
    damage: list[float]
    support: int
    attenuated: int
    start: int
    index: Places
    fishers: list[NDArray[Any]]


def merge_base(
    s: Sensitivities, p: FirmBaseParameters, dtype: torch.dtype, *, collect: bool = False
) -> tuple[Tensor, Support, dict[str, Any]]:
    """Build the base merge of one weight, equations (2) to (5), rounded once to ``dtype``.

    Parameters
    ----------
    s : Sensitivities
    p : FirmBaseParameters
    dtype : torch.dtype
    collect : bool
        Whether to collect the retain clients' supports, which the projection works on.

    Returns
    -------
    tuple of (Tensor, Support, dict)
        The base merge; the support, empty unless collected; and the report, whose damages are those
        of the rounded values, in fp64.

    Raises
    ------
    SummaryError
        A client's task vector holds a value that is not allowed.
    """
    scratch = Scratch(s.dtype)
    out = torch.empty(s.layout.shape, dtype=dtype)
    flat = out.view(-1)

    def block(start: int, stop: int) -> _Seen:
        base = base_block(s, p.gamma, p.eps0, start, stop, scratch)
        rounded = flat[start:stop].copy_(base.update)
        return _look(base, rounded, start, collect, s.compiled)

    seen = s.layout.map(s.sources, block)
    support = sum(one.support for one in seen)
    damage = [sum((one.damage[k] for one in seen), 0.0) for k in range(len(s.retain))]
    norm = math.sqrt(sum((one.squares for one in seen), 0.0))
    if not math.isfinite(norm):
        s.check()
    report = {
        "base_norm": norm,
        "base_damage": list(damage),
        "damage": list(damage),
        "multipliers": [0.0] * len(s.retain),
        "support": support,
        "attenuated_share": sum(one.attenuated for one in seen) / support if support else 0.0,
        "certificate": None,
    }
    return out, _support(s, seen), report


def _look(base: BaseBlock, rounded: Tensor, start: int, collect: bool, compiled: bool) -> _Seen:
    single = len(base.retain_weights) == 1
    see = _on_support_compiled if compiled and rounded.dtype == torch.bfloat16 else _on_support
    damage: list[float] = []
    union: Places = np.empty(0, np.uint16)
    fishers: list[NDArray[Any]] = []
    for weights in base.retain_weights:
        index, values, terms = see(weights, rounded)
        damage.append(0.5 * float(np.add.reduce(terms)))
        if collect and single:
            union, fishers = index.copy(), [values.copy()]
        elif collect:
            union = np.union1d(union, index)
    if collect and not single:
        fishers = [weights.numpy()[union] for weights in base.retain_weights]
    return _Seen(squares(rounded), damage, base.support, base.attenuated, start, union, fishers)


def _on_support(weights: Tensor, rounded: Tensor) -> tuple[Places, NDArray[Any], NDArray[np.float64]]:
    """Where a processed Fisher is positive: the places, its values, the terms of equation (6) in fp64."""
    index = np.flatnonzero(weights.numpy() > 0.0)
    values = weights.numpy()[index]
    f = values.astype(np.float64)
    x = rounded.index_select(0, torch.from_numpy(index)).to(torch.float64).numpy()
    return index.astype(np.uint16), values, f * x * x


def _on_support_compiled(
    weights: Tensor, rounded: Tensor
) -> tuple[Places, NDArray[Any], NDArray[np.float64]]:
    """Do the same for a bf16 update, into arrays that the next call in this thread overwrites."""
    if not hasattr(_local, "arrays"):
        _local.arrays = np.empty(BLOCK, np.uint16), np.empty(BLOCK, np.float32), np.empty(BLOCK)
    index, values, terms = _local.arrays
    bits = rounded.view(torch.uint16).numpy()
    n = compile_kernels().look(weights.numpy(), bits, index, values, terms)
    return index[:n], values[:n], terms[:n]


_local = threading.local()


def _support(s: Sensitivities, seen: list[_Seen]) -> Support:
    n = sum(len(one.index) for one in seen)
    index = torch.empty(n, dtype=torch.int32 if s.layout.size < 1 << 31 else torch.int64)
    fishers = torch.empty(len(s.retain), n, dtype=s.dtype)
    at, places = 0, index.numpy()
    seen.reverse()
    while seen:  # each goes as soon as it is copied
        one = seen.pop()
        part = slice(at, at := at + len(one.index))
        np.add(one.index, one.start, out=places[part], dtype=places.dtype)
        for k, values in enumerate(one.fishers):
            fishers[k, part] = torch.from_numpy(values)
    return Support(index, fishers)


def project_onto_budgets(
    base: Tensor, support: Support, epsilon: float, solver: str, *, compiled: bool = False
) -> dict[str, Any]:
    """Project a base merge in place, on the coordinates that a retain client minds; return the report."""
    flat = base.view(-1)
    # The paper's routine is to be as in the paper, which promises less.
    budget = solved_budget(epsilon, support.fishers.dtype) if solver == "exact" else epsilon
    fishers: list[Tensor | FisherSupport] = list(support.fishers)
    if len(fishers) == 1:  # the support is its own
        fishers = [FisherSupport(None, support.fishers[0])]
    projection = project(flat.index_select(0, support.index), fishers, budget, solver, compiled=compiled)
    for at in range(0, len(support.index), _PLACES):
        part = slice(at, at + _PLACES)
        flat.index_copy_(0, support.index[part].long(), projection.update[part])
    certificate = projection.certificate
    return {
        "multipliers": [float(value) for value in projection.multipliers],
        "damage": [float(value) for value in projection.damage],
        "certificate": {
            "stationarity": float(certificate.stationarity),
            "primal": float(certificate.primal),
            "dual": float(certificate.dual),
            "complementarity": float(certificate.complementarity),
            "duality_gap": float(certificate.duality_gap),
            "certified": bool(certificate.certified),
        },
    }
