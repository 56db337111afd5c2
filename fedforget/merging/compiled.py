"""Optional numba kernels for blocks in fp32: one pass instead of the plain path's many, with the same bits.

Each product, sum and quotient is rounded to fp32 by itself, as in :mod:`fedforget.merging.kernels`: without a
fast-math flag the compiler neither contracts nor reorders them. A kernel works through its block in runs
short enough for the first cache; every loop over a run does one thing, so that LLVM makes vector code of it.

Blocks are given as addresses, since a kernel reads a number of clients that differs from merge to merge. The
caller keeps what lies there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedforget.errors import ConfigError
from fedforget.jit import array_at, as_float, compiled

ENGINES = ("auto", "torch", "numba")

# Coordinates per client from which compiling, some four seconds at the first use, is worth its time.
_WORTH = 1 << 28

# Coordinates per run: the five buffers of a base merge fit into 32 KiB.
RUN = 1024

# Shape of what the base merge's kernel works in, for one thread.
BASE_BUFFERS = (4, RUN)

# The same of an election's kernel.
ELECTION_BUFFERS = (5, RUN)

# From these bits on, a bf16 number is infinite, NaN or negative.
_NOT_A_FISHER = 0x7F80

Addresses = NDArray[np.int64]


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
    """The compiled functions.

    Numbers are fp32 and the arrays of a block as long as it. Addresses are those of a block of bf16 numbers
    per client, whose mean of equation (2) is meant; where the number of clients is given as 0, there is one
    address, of the fp32 mean itself.

    Attributes
    ----------
    mean : callable
        ``(out, addresses)``: the mean of bf16 blocks.
    base : callable
        ``(update, weights, addresses, members, forget, thresholds, scales, numbers, buffers)``: equations (3)
        to (5). Sources come in order, the first ``forget`` of them forget domains. ``addresses`` holds each
        one's Fishers and then its task vectors, ``members`` int64 ``[n, 2]`` how many there are of both;
        ``numbers`` are eps0, the least sum of weights that eps0 hardly changes, and gamma; ``buffers`` fp32
        of shape :data:`BASE_BUFFERS`. Writes the update, and each retain client's processed Fisher into a
        row of ``weights``; returns how many sums of weights are positive, and how many of these are below
        the least.
    elect : callable
        ``(out, addresses, thresholds, buffers)``: TIES on one address per client, with the magnitude from
        which each one's entries are kept; ``buffers`` fp32 of shape :data:`ELECTION_BUFFERS`.
    scan : callable
        ``(size, addresses, low, high, inside, buffers)``: magnitudes of the mean of ``size`` coordinates.
        Returns how many are above ``high``, from ``high``, above ``low``, from ``low``, whether every number
        of a client is finite and non-negative, and the largest magnitude. Writes those between into
        ``inside``, of ``size`` too; ``buffers`` are fp32 and uint8 ``[RUN]``.
    look : callable
        ``(weights, bits, index, fishers, terms)``: where a processed Fisher is positive, write the place, the
        Fisher, and the term ``F x^2`` of equation (6) in fp64, for a bf16 update; returns how many there are.
    """

    mean: Callable[[Any, Addresses], None]
    base: Callable[[Any, Any, Addresses, Any, int, Any, Any, Any, Any], tuple[int, int]]
    elect: Callable[[Any, Addresses, Any, Any], None]
    scan: Callable[
        [int, Addresses, np.float32, np.float32, Any, Any, Any], tuple[int, int, int, int, bool, float]
    ]
    look: Callable[[Any, Any, Any, Any, Any], int]


@cache
def compile_kernels() -> Kernels:
    """Compile the kernels, once in a process: about three seconds."""
    widened, bits_at, floats_at = as_float(), array_at("uint16"), array_at("float32")
    zero, unit = np.float32(0.0), np.float32(1.0)

    @compiled()
    def wide(bits: Any) -> Any:
        return widened(np.uint32(bits) << np.uint32(16))

    @compiled()
    def mean_of_run(out: Any, addresses: Any, first: Any, count: Any, at: Any) -> None:
        n = len(out)
        if count == 0:
            floats = floats_at(addresses[first] + 4 * at, n)
            for j in range(n):
                out[j] = floats[j]
            return
        number, done = np.float32(count), min(count, 3)
        one = bits_at(addresses[first] + 2 * at, n)
        two = bits_at(addresses[first + min(count, 2) - 1] + 2 * at, n)
        three = bits_at(addresses[first + done - 1] + 2 * at, n)
        # Up to three clients in one loop, each sum kept in a register; the common numbers have their own.
        if count == 1:
            for j in range(n):
                out[j] = wide(one[j])
            return
        if count == 2:
            for j in range(n):
                out[j] = (wide(one[j]) + wide(two[j])) / number
            return
        if count == 3:
            for j in range(n):
                out[j] = (wide(one[j]) + wide(two[j]) + wide(three[j])) / number
            return
        for j in range(n):
            out[j] = wide(one[j]) + wide(two[j]) + wide(three[j])
        for i in range(first + done, first + count):
            one = bits_at(addresses[i] + 2 * at, n)
            for j in range(n):
                out[j] += wide(one[j])
        for j in range(n):
            out[j] /= number

    @compiled("void(float32[::1], int64[::1])")
    def mean(out: Any, addresses: Any) -> None:
        for at in range(0, len(out), RUN):
            mean_of_run(out[at : at + RUN], addresses, 0, len(addresses), at)

    @compiled(
        "UniTuple(int64, 2)(float32[::1], float32[:, ::1], int64[::1], int64[:, ::1], int64,"
        " float32[::1], float32[::1], float32[::1], float32[:, ::1])"
    )
    def base(
        update: Any, weights: Any, addresses: Any, members: Any, forget: Any,
        thresholds: Any, scales: Any, numbers: Any, buffers: Any,
    ) -> Any:  # fmt: skip
        eps0, least, gamma = numbers[0], numbers[1], numbers[2]
        positive, enough = 0, 0
        for at in range(0, len(update), RUN):
            n = min(RUN, len(update) - at)
            out = update[at : at + n]
            delta, numerator, total = buffers[1, :n], buffers[2, :n], buffers[3, :n]
            first = 0
            for s in range(len(members)):
                w = buffers[0, :n] if s < forget else weights[s - forget, at : at + n]
                mean_of_run(w, addresses, first, members[s, 0], at)
                first += max(members[s, 0], 1)
                threshold, scale = thresholds[s], scales[s]
                for j in range(n):
                    value = w[j]
                    w[j] = value / scale if value >= threshold else zero
                mean_of_run(delta, addresses, first, members[s, 1], at)
                first += max(members[s, 1], 1)
                if s == 0 or s == forget:
                    for j in range(n):
                        numerator[j] = w[j] * delta[j]
                    for j in range(n):
                        total[j] = w[j]
                else:
                    for j in range(n):
                        numerator[j] += w[j] * delta[j]
                    for j in range(n):
                        total[j] += w[j]
                if s + 1 == forget or s + 1 == len(members):
                    some: Any = np.int32(0)
                    fair: Any = np.int32(0)
                    for j in range(n):
                        some = np.int32(some + np.int32(total[j] > zero))
                        fair = np.int32(fair + np.int32(total[j] >= least))
                    positive, enough = positive + some, enough + fair
                    if s + 1 == forget:
                        for j in range(n):
                            out[j] = numerator[j] / (total[j] + eps0)
                    else:
                        for j in range(n):
                            out[j] += numerator[j] / (total[j] + eps0)
            for j in range(n):
                out[j] *= gamma
        return positive, positive - enough

    @compiled("void(float32[::1], int64[::1], float32[::1], float32[:, ::1])")
    def elect(out: Any, addresses: Any, thresholds: Any, buffers: Any) -> None:
        for at in range(0, len(out), RUN):
            run = out[at : at + RUN]
            n = len(run)
            value, above, below = buffers[0, :n], buffers[1, :n], buffers[2, :n]
            risen, fallen = buffers[3, :n], buffers[4, :n]
            run[:], above[:], below[:], risen[:], fallen[:] = zero, zero, zero, zero, zero
            for i in range(len(addresses)):
                bits, threshold = bits_at(addresses[i] + 2 * at, n), thresholds[i]
                for j in range(n):
                    value[j] = wide(bits[j])
                for j in range(n):
                    value[j] = value[j] if abs(value[j]) >= threshold else zero
                for j in range(n):
                    run[j] += value[j]
                for j in range(n):
                    above[j] += max(value[j], zero)
                    below[j] += min(value[j], zero)
                for j in range(n):
                    risen[j] += np.float32(value[j] > zero)
                    fallen[j] += np.float32(value[j] < zero)
            if len(addresses) == 1:
                continue
            for j in range(n):
                above[j] /= max(risen[j], unit)
            for j in range(n):
                below[j] /= max(fallen[j], unit)
            for j in range(n):
                run[j] = below[j] if run[j] < zero else above[j]

    @compiled(
        "Tuple((int64, int64, int64, int64, boolean, float32))"
        "(int64, int64[::1], float32, float32, float32[::1], float32[::1], uint8[::1])"
    )
    def scan(size: Any, addresses: Any, low: Any, high: Any, inside: Any, keys: Any, flags: Any) -> Any:
        above_high, from_high, above_low, from_low, found = 0, 0, 0, 0, 0
        largest, most = np.uint16(0), np.uint32(0)
        eights = flags.view(np.uint64)
        for at in range(0, size, RUN):
            n = min(RUN, size - at)
            run = keys[:n]
            for i in range(len(addresses)):
                bits = bits_at(addresses[i] + 2 * at, n)
                for j in range(n):
                    largest = max(largest, bits[j])
            mean_of_run(run, addresses, 0, len(addresses), at)
            words = run.view(np.uint32)
            for j in range(n):
                # Without its sign, and as integers: a loop for the largest float is no vector code.
                words[j] &= np.uint32(0x7FFFFFFF)
            for j in range(n):
                most = max(most, words[j])
            a: Any = np.int32(0)
            b: Any = np.int32(0)
            c: Any = np.int32(0)
            d: Any = np.int32(0)
            for j in range(n):
                a = np.int32(a + np.int32(run[j] > high))
                b = np.int32(b + np.int32(run[j] >= high))
                c = np.int32(c + np.int32(run[j] > low))
                d = np.int32(d + np.int32(run[j] >= low))
            above_high, from_high, above_low, from_low = (
                above_high + a,
                from_high + b,
                above_low + c,
                from_low + d,
            )
            if c == b:
                continue
            for j in range(n):
                flags[j] = (run[j] > low) & (run[j] < high)
            flags[n : (n + 7) // 8 * 8] = 0
            for word in range((n + 7) // 8):
                if eights[word]:  # few are set
                    for j in range(8 * word, min(8 * word + 8, n)):
                        inside[found] = run[j]
                        found += flags[j]
        allowed = largest < np.uint16(_NOT_A_FISHER)
        return above_high, from_high, above_low, from_low, allowed, widened(most)

    @compiled("int64(float32[::1], uint16[::1], uint16[::1], float32[::1], float64[::1])")
    def look(weights: Any, bits: Any, index: Any, fishers: Any, terms: Any) -> Any:
        n = 0
        for j in range(len(weights)):
            fisher = weights[j]
            index[n], fishers[n] = j, fisher
            n += fisher > zero
        for i in range(n):
            x = np.float64(widened(np.uint32(bits[index[i]]) << np.uint32(16)))
            terms[i] = np.float64(fishers[i]) * x * x
        return n

    return Kernels(mean, base, elect, scan, look)
