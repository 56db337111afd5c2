"""An optional numba kernel for bf16 clients: one pass from their bits to FIRM's sums, with the same bits.

Each product, sum and quotient is rounded to fp32 by itself, as in :mod:`fedforget.merging.kernels`: without a
fast-math flag the compiler neither contracts nor reorders them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedforget.errors import ConfigError
from fedforget.merging.sources import Part, Source

ENGINES = ("auto", "torch", "numba")

# Coordinates from which compiling, a second or two at the first use, is worth its time.
_WORTH = 1 << 24
# Coordinates summed at a time, in the first-level cache.
_TILE = 2048

Bits = tuple[NDArray[np.uint16], ...]


def use_numba(engine: str, coordinates: int) -> bool:
    """Decide whether to use numba: it is asked for, or it is installed and the merge is large.

    Raises
    ------
    ConfigError
        An unknown engine, or numba is asked for and not installed.
    """
    if engine not in ENGINES:
        raise ConfigError([f"engine: {engine!r} is not one of {', '.join(ENGINES)}"])
    installed = find_spec("numba") is not None
    if engine == "numba" and not installed:
        raise ConfigError(["engine: numba is not installed; pip install 'fedforget[numba]', or give 'auto'"])
    return installed and (engine == "numba" or (engine == "auto" and coordinates >= _WORTH))


def bits_of(source: Source) -> tuple[Bits, Bits] | None:
    """Return the bits of a source's Fishers and task vectors, or None where not all are dense bf16."""
    fishers, deltas = _bits(source.fishers), _bits(source.deltas)
    return None if fishers is None or deltas is None else (fishers, deltas)


def _bits(parts: Sequence[Part]) -> Bits | None:
    plain = [part.plain for part in parts]
    if any(one is None or one.dtype != torch.bfloat16 or one.device.type != "cpu" for one in plain):
        return None
    return tuple(one.view(torch.uint16).numpy() for one in plain if one is not None)


@cache
def weigh() -> Callable[..., None]:
    """Compile the kernel, or load it where it was compiled before.

    Returns
    -------
    callable
        ``(numerator, total, weights, fishers, deltas, start, threshold, scale, first)``: equation (3) for one
        source from the bits of its members, and its share of equation (4). fp32 arrays ``weights``
        (written), ``numerator`` and ``total`` (started with ``first``, else added to).
    """
    import numba
    from llvmlite import ir
    from numba.extending import intrinsic

    def reinterpret(context: Any, bits: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], ir.FloatType())

        return numba.float32(numba.uint32), generate

    as_float: Any = intrinsic(reinterpret)

    def kernel(
        numerator: Any, total: Any, weights: Any, fishers: Any, deltas: Any, start: Any,
        threshold: Any, scale: Any, first: Any,
    ) -> None:  # fmt: skip
        n, t, s, zero = np.float32(len(fishers)), np.float32(threshold), np.float32(scale), np.float32(0.0)
        g, d = np.empty(_TILE, np.float32), np.empty(_TILE, np.float32)
        for at in range(0, len(numerator), _TILE):
            size = min(_TILE, len(numerator) - at)
            begin = start + at
            for i in range(len(fishers)):
                f_bits, d_bits = fishers[i][begin : begin + size], deltas[i][begin : begin + size]
                if i == 0:
                    for j in range(size):
                        g[j] = as_float(np.uint32(f_bits[j]) << np.uint32(16))
                    for j in range(size):
                        d[j] = as_float(np.uint32(d_bits[j]) << np.uint32(16))
                else:
                    for j in range(size):
                        g[j] += as_float(np.uint32(f_bits[j]) << np.uint32(16))
                    for j in range(size):
                        d[j] += as_float(np.uint32(d_bits[j]) << np.uint32(16))
            num, tot, w = numerator[at : at + size], total[at : at + size], weights[at : at + size]
            for j in range(size):
                mean = g[j] / n
                g[j] = mean / s if mean >= t else zero
            for j in range(size):
                w[j] = g[j]
            if first:
                for j in range(size):
                    num[j] = g[j] * (d[j] / n)
                for j in range(size):
                    tot[j] = g[j]
            else:
                for j in range(size):
                    num[j] += g[j] * (d[j] / n)
                for j in range(size):
                    tot[j] += g[j]

    compiled: Callable[..., None] = numba.njit(nogil=True)(kernel)
    return compiled
