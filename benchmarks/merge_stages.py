"""Where the seconds of FIRM's merge go: CPU time of each stage, and of ways to read a file.

    python benchmarks/merge_stages.py FOLDER         clients that benchmarks/merging.py wrote

Each stage runs on every tensor but the first, which warms up; seconds and page faults are per tensor, system
time apart from user time. A fault of a fresh page costs its clearing, one of a mapped file its mapping. The
second table reads one Fisher file, kept in the page cache, and takes its largest number block by block.
"""

from __future__ import annotations

import argparse
import math
import mmap
import os
import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from fedforget.merging import base, layout, sensitivities
from fedforget.merging.inputs import Clients
from fedforget.summaries import ClientSummary

EPSILON, BLOCK, STRIPE = 1e-5, 1 << 17, 8
R = TypeVar("R")


class Clock:
    """Adds up what named stages take."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = {}

    def __call__(self, stage: str, work: Callable[[], R]) -> R:
        """Run one stage and return what it returns."""
        before = self._now()
        result = work()
        parts = [after - start for after, start in zip(self._now(), before, strict=True)]
        known = self.spent.setdefault(stage, [0.0] * len(parts))
        self.spent[stage] = [one + more for one, more in zip(known, parts, strict=True)]
        return result

    @staticmethod
    def _now() -> list[float]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return [used.ru_utime, used.ru_stime, used.ru_minflt / 1000]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| engine | stage | user s | system s | thousand page faults |")
    print("| --- | --- | ---: | ---: | ---: |")
    sums = {}
    for engine in ("torch", "numba"):
        clock, tensors = stages(args.folder, engine)
        sums[engine] = [sum(parts[i] for parts in clock.spent.values()) / tensors for i in (0, 1)]
        for stage, parts in clock.spent.items():
            user, system, faults = (part / tensors for part in parts)
            print(f"| {engine} | {stage} | {user:.2f} | {system:.2f} | {faults:.0f} |")
    for engine, (user, system) in sums.items():
        print(
            f"\n{engine}: {user + system:.2f} CPU s per tensor, of which {system:.2f} s go to page faults "
            "and other work of the system, which no kernel of ours shortens."
        )
    path = sorted(args.folder.iterdir())[0] / "fisher.safetensors"
    print("\n| reading | CPU s per GB |\n| --- | ---: |")
    for name, read in READERS.items():
        read(path)  # into the page cache
        clock = Clock()
        clock(name, lambda read=read: read(path))
        print(f"| {name} | {sum(clock.spent[name][:2]) / path.stat().st_size * 1e9:.3f} |")


def stages(folder: Path, engine: str) -> tuple[Clock, int]:
    """Merge every tensor, stage by stage; return the clock and how many tensors it timed."""
    clients = Clients(
        [ClientSummary.load(path) for path in sorted(folder.iterdir())], needs_fisher=True, engine=engine
    )
    parameters, clock = base.FirmBaseParameters(), Clock()
    for i, name in enumerate(clients.names):
        if i == 1:
            clock = Clock()
        s = clock("thresholds", lambda n=name: sensitivities.process(clients, n, 0.1, 1e-8))
        dtype = clients.dtype(name)
        merged, support, _ = clock(
            "base merge", lambda s=s, d=dtype: base.merge_base(s, parameters, d, collect=True)
        )
        clock(
            "projection",
            partial(base.project_onto_budgets, merged, support, EPSILON, "exact", compiled=s.compiled),
        )
        clock("norm", lambda m=merged: math.sqrt(layout.squared_norm(m)))
    return clock, max(1, len(clients.names) - 1)


def mapped(path: Path, advice: int | None = None) -> int:
    """Map the file, and give stripes of blocks back, as the merge does."""
    largest = 0
    with open(path, "rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    numbers, size = np.frombuffer(content, np.uint16), len(content)
    for start in range(0, size, BLOCK * STRIPE):
        stop = min(start + BLOCK * STRIPE, size)
        if advice is not None:
            content.madvise(advice, start, stop - start)
        for at in range(start, stop, BLOCK):
            largest = max(largest, int(numbers[at // 2 : min(at + BLOCK, stop) // 2].max()))
        content.madvise(mmap.MADV_DONTNEED, start, stop - start)
    return largest


def copied(path: Path) -> int:
    """Read the file into one buffer, a block at a time."""
    buffer, largest = bytearray(BLOCK), 0
    numbers = np.frombuffer(buffer, np.uint16)
    with open(path, "rb", buffering=0) as file:
        while read := os.readv(file.fileno(), [buffer]):
            largest = max(largest, int(numbers[: read // 2].max()))
    return largest


READERS: dict[str, Callable[[Path], int]] = {
    "mapped": mapped,
    "mapped, MADV_SEQUENTIAL": lambda path: mapped(path, mmap.MADV_SEQUENTIAL),
    "mapped, MADV_POPULATE_READ": lambda path: mapped(path, 22),
    "readv into one buffer": copied,
}


if __name__ == "__main__":
    main()
