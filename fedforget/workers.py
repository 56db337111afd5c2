"""Tasks of one kind over processes: as many as memory allows, results in the order of the tasks."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

import psutil

from fedforget.errors import FedForgetError, RunError

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")

# What a process needs beyond what this one holds: room for allocators and for what grows.
_MARGIN = 1.2

_work: Callable[[Any], Any] | None = None
_open: Callable[[], Callable[[Any], Any]] | None = None


def available_cpus() -> int:
    """Return how many CPUs this process may use, by its affinity and its container's quota."""
    from joblib import cpu_count

    return int(cpu_count())


def ahead(
    tasks: Sequence[Task],
    here: Callable[[Task], Outcome],
    elsewhere: Callable[[], Callable[[Task], Outcome]],
    *,
    workers: int,
    say: Callable[[str], None],
) -> Iterator[Outcome]:
    """Yield the outcome of every task, in order.

    The first task is done in this process, which tells how much memory one takes; the others in as
    many new processes as were asked for and fit, or here where that is less than two.

    Parameters
    ----------
    tasks : sequence
    here : callable
        Does a task in this process.
    elsewhere : callable
        Can be pickled; returns such a callable in another process, where it is called once.
    workers : int
        Processes; 0 for one per CPU.
    say : callable
        Told if memory allows fewer.

    Raises
    ------
    RunError
        A process failed, with its reason, or was killed.
    """
    if not tasks:
        return
    yield here(tasks[0])
    rest = tasks[1:]
    wanted = min(workers or available_cpus(), len(rest))
    count = min(wanted, _fitting()) if wanted > 1 else wanted
    if count < wanted:
        say(f"memory allows {max(count, 1)} instead of {wanted} processes")
    if count < 2:
        yield from map(here, rest)
        return
    # Spawned: threads and CUDA do not survive a fork.
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _begin, (elsewhere,))
    try:
        yield from pool.map(_do, rest)
    except BrokenProcessPool as error:
        raise RunError(
            "a worker process ended, perhaps for want of memory; what was measured is kept: "
            "give the command again with fewer --workers"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _fitting() -> int:
    """Return how many more processes like this one fit into the memory that is free now."""
    import torch

    fit = int(psutil.virtual_memory().available / (_MARGIN * psutil.Process().memory_info().rss))
    if torch.cuda.is_available() and (held := torch.cuda.max_memory_reserved()):
        fit = min(fit, int(torch.cuda.mem_get_info()[0] / (_MARGIN * held)))
    return fit


def _begin(elsewhere: Callable[[], Callable[[Any], Any]]) -> None:
    global _open
    _open = elsewhere


def _do(task: Any) -> Any:
    global _work
    assert _open is not None
    try:
        # Not in _begin: an error there would end the process without a reason.
        _work = _work or _open()
        return _work(task)
    except FedForgetError as error:
        # Its subclasses do not survive pickling.
        raise RunError(str(error)) from None
