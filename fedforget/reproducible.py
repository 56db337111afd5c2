"""Stretches of code whose results are the same bits on one kind of machine, however they are run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def deterministic(threads: int = 1) -> Iterator[None]:
    """Use deterministic kernels and a fixed number of threads inside the block; restore both after it.

    How a reduction is split over threads decides how it rounds, so bits depend on the number of
    threads, and the environment (``OMP_NUM_THREADS``, Ray's limits) must not choose it. On CUDA,
    cuBLAS reads ``CUBLAS_WORKSPACE_CONFIG`` when it starts, so set this up before the first use of
    the GPU, or set the variable yourself.

    Parameters
    ----------
    threads : int
        Of torch's operations.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.get_num_threads()
    mode = torch.get_deterministic_debug_mode()
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        torch.set_num_threads(before)


@contextlib.contextmanager
def cpu_share(threads: int | None) -> Iterator[None]:
    """Compute with so many threads inside the block; sums then come out the same wherever they run.

    Clients that run at once would otherwise each take all cores, which is many times slower.
    """
    before = torch.get_num_threads()
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        yield
    finally:
        torch.set_num_threads(before)
