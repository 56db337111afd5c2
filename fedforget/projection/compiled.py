"""Optional numba kernels for one retain client's passes: the numbers that NumPy then adds up, in one go.

NumPy adds each block's terms in either case, so sums have the same bits. Every product and quotient is
rounded to fp64 by itself, as in :mod:`fedforget.projection.passes`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedforget.jit import as_float, compiled

Floats = NDArray[np.float64]
Fishers = NDArray[np.float32]
Bits = NDArray[np.uint16]


class Kernels(NamedTuple):
    """The compiled functions; arrays of one block are equally long, updates and bases in rescaled units.

    Attributes
    ----------
    group : callable
        ``(fishers, base, low, values, sums)``: note each Fisher entry in ``values`` at its leading bits, less
        ``low``, and add the square of its base to ``sums`` there. Tells whether no two entries collided.
    terms : callable
        ``(bits, fishers, down, scale, out)``: ``F x^2`` of bf16 updates, with x multiplied by ``down`` and F
        by ``scale`` first.
    cast : callable
        ``(base, fishers, multiplier, up, bits)``: equation (12), times ``up``, as bf16.
    check : callable
        ``(base, fishers, bits, multiplier, down, out)``: into the rows of ``out`` the terms of the damage,
        of the residual of equation (16), of the base's norm, and of the duality gap.
    """

    group: Callable[[Fishers, Floats, int, Fishers, Floats], bool]
    terms: Callable[[Bits, Fishers, float, float, Floats], None]
    cast: Callable[[Floats, Fishers, float, float, Bits], None]
    check: Callable[[Floats, Fishers, Bits, float, float, Floats], None]


@cache
def compile_kernels() -> Kernels:
    """Compile the kernels, once in a process: about a second."""
    widened, zero, one = as_float(), np.float32(0.0), np.float64(1.0)

    @compiled("boolean(float32[::1], float64[::1], int64, float32[::1], float64[::1])")
    def group(fishers: Any, base: Any, low: Any, values: Any, sums: Any) -> Any:
        words = fishers.view(np.int32)
        alike = True
        for j in range(len(fishers)):
            key = np.int64(words[j] >> np.int32(15)) - low
            known = values[key]
            alike &= (known == zero) | (known == fishers[j])
            values[key] = fishers[j]
            sums[key] += base[j] * base[j]
        return alike

    @compiled("void(uint16[::1], float32[::1], float64, float64, float64[::1])")
    def terms(bits: Any, fishers: Any, down: Any, scale: Any, out: Any) -> None:
        for j in range(len(bits)):
            x = np.float64(widened(np.uint32(bits[j]) << np.uint32(16))) * down
            out[j] = np.float64(fishers[j]) * scale * (x * x)

    @compiled("void(float64[::1], float32[::1], float64, float64, uint16[::1])")
    def cast(base: Any, fishers: Any, multiplier: Any, up: Any, bits: Any) -> None:
        narrow = np.empty(len(base), np.float32)
        for j in range(len(base)):
            narrow[j] = np.float32(base[j] / (one + multiplier * np.float64(fishers[j])) * up)
        words = narrow.view(np.uint32)
        for j in range(len(base)):
            # To the nearest, ties to the even one; nothing here is NaN.
            word = words[j]
            odd = (word >> np.uint32(16)) & np.uint32(1)
            bits[j] = np.uint16((word + np.uint32(0x7FFF) + odd) >> np.uint32(16))

    @compiled("void(float64[::1], float32[::1], uint16[::1], float64, float64, float64[:, ::1])")
    def check(base: Any, fishers: Any, bits: Any, multiplier: Any, down: Any, out: Any) -> None:
        for j in range(len(base)):
            fisher = np.float64(fishers[j])
            x = np.float64(widened(np.uint32(bits[j]) << np.uint32(16))) * down
            diagonal = one + multiplier * fisher
            off = diagonal * x - base[j]
            out[0, j] = fisher * (x * x)
            out[1, j] = off * off
            out[2, j] = base[j] * base[j]
            out[3, j] = off * (off / diagonal)

    return Kernels(group, terms, cast, check)
