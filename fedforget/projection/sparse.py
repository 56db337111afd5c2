"""A retain client's processed Fisher diagonal on its support, the only place where it acts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedforget.errors import SummaryError
from fedforget.projection.compiled import compile_kernels

# Positions in a flattened weight, or a slice of it.
Places = Tensor | slice

# Below this, a power of two and its inverse are normal fp64 numbers.
PLAIN_POWER = 1000

# Coordinates per step over a dense tensor.
_CHUNK = 1 << 18
# Entries per step over a support: 256 KiB of fp64, so that temporaries stay in cache.
_BLOCK = 1 << 15


@dataclass(frozen=True, eq=False)
class FisherSupport:
    """The positive entries ``values / divisor`` of a Fisher diagonal, and where they are.

    A raw Fisher's surviving entries with the maximum as divisor need no copy in fp64.

    Attributes
    ----------
    index : Tensor or None
        int64 ``[n]``, strictly ascending positions in the flattened weight; on the CPU. None where every
        coordinate is in the support.
    values : Tensor
        ``[n]``, any floating dtype, positive and finite; on the CPU.
    divisor : float, default 1.0
        Positive and finite.
    """

    index: Tensor | None
    values: Tensor
    divisor: float = 1.0

    @property
    def places(self) -> Places:
        """What to index the flattened weight with."""
        return slice(0, None) if self.index is None else self.index

    @property
    def positions(self) -> Tensor:
        """The index, spelled out."""
        return torch.arange(len(self.values)) if self.index is None else self.index

    def where(self, keep: Tensor) -> FisherSupport:
        """Return the entries that a boolean ``[n]`` tells to keep."""
        return FisherSupport(self.positions[keep], self.values[keep], self.divisor)

    def check(self, name: str, size: int) -> None:
        """Check that this is a Fisher diagonal of a weight with ``size`` coordinates.

        Raises
        ------
        SummaryError
            Says what is wrong with ``name``.
        """
        n = self.values.numel()
        if not self.values.is_floating_point():
            raise SummaryError(f"{name} has dtype {self.values.dtype}; it must be a floating one")
        if not 0.0 < self.divisor < math.inf:
            raise SummaryError(f"{name} has divisor {self.divisor}; it must be positive and finite")
        index = self.index
        if index is None:
            if self.values.shape != (size,):
                raise SummaryError(
                    f"{name}: without an index, it must have a value for each of {size} coordinates"
                )
        elif index.dtype != torch.int64 or index.shape != (n,) or self.values.shape != (n,):
            raise SummaryError(f"{name}: its index must be int64 and as long as its values")
        elif n and not (
            int(index[0]) >= 0 and int(index[-1]) < size and bool((index[1:] > index[:-1]).all())
        ):
            raise SummaryError(f"{name}: its index does not ascend within the {size} coordinates")
        if n:
            _check_range(name, self.values)
            if not bool(self.values.min() > 0):
                raise SummaryError(f"{name} holds zeros among the values of its support")


def from_dense(name: str, fisher: Tensor) -> FisherSupport:
    """Collect the positive entries of a dense Fisher diagonal, in one pass.

    Raises
    ------
    SummaryError
        It is not floating, or holds NaN, infinite or negative values; says so of ``name``.
    """
    if not fisher.is_floating_point():
        raise SummaryError(f"{name} has dtype {fisher.dtype}; it must be a floating one")
    flat = fisher.detach().reshape(-1).cpu()
    indices, values = [], []
    for start in range(0, flat.numel(), _CHUNK):
        chunk = flat[start : start + _CHUNK]
        _check_range(name, chunk)
        found = torch.nonzero(chunk).squeeze(1)
        if found.numel():
            values.append(chunk[found])
            indices.append(found.add_(start))
    if not indices:
        return FisherSupport(torch.empty(0, dtype=torch.int64), flat[:0])
    return FisherSupport(torch.cat(indices), torch.cat(values))


def damage(update: Tensor, fisher: FisherSupport, *, compiled: bool = False) -> float:
    """Return ``b_k(update)``, equation (6), summed in fp64.

    Parameters
    ----------
    update : Tensor
        One-dimensional, the whole weight's, on the CPU.
    fisher : FisherSupport
    compiled : bool
        Whether numba computes the terms where it can.
    """
    if not fisher.values.numel():
        return 0.0
    c, total = exponent(float(fisher.values.max())), 0.0
    values = update[fisher.places]
    largest = largest_magnitude(values)
    if largest == 0.0:
        return 0.0
    e = exponent(largest)
    narrow = values.dtype == torch.bfloat16 and fisher.values.dtype == torch.float32
    terms = _compiled_terms if compiled and narrow and max(abs(c), abs(e)) < PLAIN_POWER else _terms
    with np.errstate(over="ignore", under="ignore"):
        for start in range(0, values.numel(), _BLOCK):
            part = slice(start, start + _BLOCK)
            total += float(np.add.reduce(terms(values[part], fisher.values[part], -e, -c)))
        return float(np.ldexp(0.5 * total / fisher.divisor, c + 2 * e))


def _terms(values: Tensor, fishers: Tensor, e: int, c: int) -> NDArray[np.float64]:
    """``F x^2``, with x and F multiplied by powers of two."""
    return np.square(rescaled(values, e)) * rescaled(fishers, c)


def _compiled_terms(values: Tensor, fishers: Tensor, e: int, c: int) -> NDArray[np.float64]:
    out = np.empty(len(values))
    bits = values.contiguous().view(torch.uint16).numpy()
    compile_kernels().terms(bits, fishers.contiguous().numpy(), 2.0**e, 2.0**c, out)
    return out


def largest_magnitude(values: Tensor) -> float:
    """Return the largest magnitude of a tensor that is not empty, without a copy of it."""
    low, high = torch.aminmax(values)
    return max(-float(low), float(high))


def exponent(value: float) -> int:
    """Return the e for which ``value`` is in ``[2**(e-1), 2**e)``."""
    return int(np.frexp(value)[1])


def rescaled(tensor: Tensor, power: int) -> NDArray[np.float64]:
    """Return a tensor times a power of two, in fp64: exact unless it leaves fp64's range."""
    return times_power_(tensor.to(torch.float64, copy=True).numpy(), power)


def times_power_(values: NDArray[np.float64], power: int) -> NDArray[np.float64]:
    """Multiply an array by a power of two, in place, and return it."""
    # One product where the power is an fp64 number, which ldexp takes several times as long for.
    if abs(power) < PLAIN_POWER:
        return np.multiply(values, 2.0**power, out=values)
    return np.ldexp(values, power, out=values)


def _check_range(name: str, values: Tensor) -> None:
    # NaN propagates through the extremes, so one pass decides.
    low, high = torch.aminmax(values)
    if not bool(torch.isfinite(low) & torch.isfinite(high)):
        raise SummaryError(f"{name} holds NaN or infinite values; check the client that it comes from")
    if float(low) < 0.0:
        raise SummaryError(f"{name} holds negative values; a Fisher diagonal is a mean of squares")
