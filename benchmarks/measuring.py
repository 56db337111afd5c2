"""CPU seconds, wall time and memory of a piece of work; needs neither this library nor torch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


def measure(work: Callable[[], None]) -> dict[str, float]:
    """Run something once.

    Returns
    -------
    dict
        ``wall`` and ``cpu`` seconds (all threads, user and system); ``peak``, MB that the process held at
        most over what it held before, and ``held``, MB that it held at most in all.
    """
    before, cpu, wall = resident(), os.times(), time.perf_counter()
    work()
    after, wall = os.times(), time.perf_counter() - wall
    most = resident("VmHWM")
    return {
        "wall": wall,
        "cpu": after.user - cpu.user + after.system - cpu.system,
        "peak": max(0.0, most - before) / 1e6,
        "held": most / 1e6,
    }


def resident(key: str = "VmRSS") -> float:
    """Bytes that the process holds, or held at most; the peak is set back before a measurement of it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    if key == "VmRSS":
        Path("/proc/self/clear_refs").write_text("5")
    return float(next(line for line in lines if line.startswith(key)).split()[1]) * 1024
