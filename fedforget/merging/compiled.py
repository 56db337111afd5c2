"""Optional numba kernels for blocks in fp32: fewer passes than the plain path makes, with the same bits.

Each product, sum and quotient is rounded to fp32 by itself, as in :mod:`fedforget.merging.kernels`: without a
fast-math flag the compiler neither contracts nor reorders them. Every loop does one thing, since LLVM then
makes vector code of it, and runs over a whole block of one client, since memory is read fastest in a row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from fedforget.errors import ConfigError

ENGINES = ("auto", "torch", "numba")

# Coordinates per client from which compiling, two seconds or three at the first use, is worth its time.
_WORTH = 1 << 28

F = TypeVar("F", bound=Callable[..., Any])

Bits = NDArray[np.uint16]


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


class Kernels(NamedTuple):
    """The compiled functions; arrays of numbers are fp32 and of equal length.

    Attributes
    ----------
    start : callable
        ``(total, bits)``: write the bf16 numbers with these bits, widened.
    add : callable
        ``(total, bits)``: add them.
    divide : callable
        ``(total, number)``: divide by a number.
    process : callable
        ``(values, threshold, scale)``: equation (3), in place.
    weigh : callable
        ``(numerator, total, weights, deltas)``: add one source's share of the sums of equation (4).
    conclude : callable
        ``(numerator, total, eps0, least)``: the quotient of equation (4), in place of the numerator; returns
        how many totals are positive, and how many of these are below ``least``.
    rank : callable
        ``(keys, low, high)``: how many keys are above ``high``, from ``high``, above ``low``, from ``low``.
    between : callable
        ``(keys, low, high, inside)``: tell of each key whether it lies between.
    """

    start: Callable[[Any, Bits], None]
    add: Callable[[Any, Bits], None]
    divide: Callable[[Any, np.float32], None]
    process: Callable[[Any, np.float32, np.float32], None]
    weigh: Callable[[Any, Any, Any, Any], None]
    conclude: Callable[[Any, Any, np.float32, np.float32], tuple[int, int]]
    rank: Callable[[Any, np.float32, np.float32], tuple[int, int, int, int]]
    between: Callable[[Any, np.float32, np.float32, NDArray[np.bool_]], None]


@cache
def compile_kernels() -> Kernels:
    """Compile the kernels, once in a process: two or three seconds."""
    import numba
    from llvmlite import ir
    from numba.extending import intrinsic

    def reinterpret(context: Any, bits: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], ir.FloatType())

        return numba.float32(numba.uint32), generate

    as_float: Any = intrinsic(reinterpret)

    def compiled(signature: str) -> Callable[[F], F]:
        # NumPy's division: a test for zero in every step would keep the loop from becoming vector code.
        return cast(Callable[[F], F], numba.njit(signature, nogil=True, error_model="numpy"))

    zero = np.float32(0.0)

    @compiled("void(float32[::1], uint16[::1])")
    def start(total: Any, bits: Any) -> None:
        for j in range(len(total)):
            total[j] = as_float(np.uint32(bits[j]) << np.uint32(16))

    @compiled("void(float32[::1], uint16[::1])")
    def add(total: Any, bits: Any) -> None:
        for j in range(len(total)):
            total[j] += as_float(np.uint32(bits[j]) << np.uint32(16))

    @compiled("void(float32[::1], float32)")
    def divide(total: Any, number: Any) -> None:
        for j in range(len(total)):
            total[j] /= number

    @compiled("void(float32[::1], float32, float32)")
    def process(values: Any, threshold: Any, scale: Any) -> None:
        for j in range(len(values)):
            value = values[j]
            values[j] = value / scale if value >= threshold else zero

    @compiled("void(float32[::1], float32[::1], float32[::1], float32[::1])")
    def weigh(numerator: Any, total: Any, weights: Any, deltas: Any) -> None:
        for j in range(len(numerator)):
            numerator[j] += weights[j] * deltas[j]
        for j in range(len(total)):
            total[j] += weights[j]

    @compiled("UniTuple(int64, 2)(float32[::1], float32[::1], float32, float32)")
    def conclude(numerator: Any, total: Any, eps0: Any, least: Any) -> Any:
        for j in range(len(numerator)):
            numerator[j] = numerator[j] / (total[j] + eps0)
        positive, enough = np.int32(0), np.int32(0)
        for j in range(len(total)):
            positive = np.int32(positive + np.int32(total[j] > zero))
            enough = np.int32(enough + np.int32(total[j] >= least))
        return positive, positive - enough

    @compiled("UniTuple(int64, 4)(float32[::1], float32, float32)")
    def rank(keys: Any, low: Any, high: Any) -> Any:
        above_high, from_high, above_low, from_low = np.int32(0), np.int32(0), np.int32(0), np.int32(0)
        for j in range(len(keys)):
            key = keys[j]
            above_high = np.int32(above_high + np.int32(key > high))
            from_high = np.int32(from_high + np.int32(key >= high))
            above_low = np.int32(above_low + np.int32(key > low))
            from_low = np.int32(from_low + np.int32(key >= low))
        return above_high, from_high, above_low, from_low

    @compiled("void(float32[::1], float32, float32, boolean[::1])")
    def between(keys: Any, low: Any, high: Any, inside: Any) -> None:
        for j in range(len(keys)):
            inside[j] = (keys[j] > low) & (keys[j] < high)

    return Kernels(start, add, divide, process, weigh, conclude, rank, between)
