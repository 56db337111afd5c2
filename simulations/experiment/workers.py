"""Running cells: in this process, or several at a time as Ray tasks with one thread each."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedforget.errors import FedForgetError, RunError
from fedforget.progress import quieted
from simulations.experiment.cells import Cell, finished, run_cell


def run_cells(
    cells: Sequence[Cell],
    out: Path,
    *,
    workers: int,
    minutes: float = 0.0,
    again: bool = False,
    say: Callable[[str], None] = print,
) -> int:
    """Run the cells that are not finished, and return how many are left.

    Parameters
    ----------
    cells : sequence of Cell
    out : Path
    workers : int
        Cells at a time; 1 runs them in this process, without Ray.
    minutes : float
        Begin no cell after so many minutes; 0: no limit. The same command carries on later.
    again : bool
        Run cells anew that were made with another configuration, instead of refusing.
    say : callable
        Told of every cell.

    Raises
    ------
    RunError
        A stored cell was made with another configuration, or another process runs cells in ``out``, or cells
        failed; those that could be run are stored.
    """
    out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(out / ".running.lock", timeout=0):
            return _run_due(cells, out, workers, minutes, again, say)
    except Timeout:
        raise RunError(f"{out}: another process is running cells here; wait for it to end") from None


def due_cells(cells: Sequence[Cell], out: Path, again: bool = False) -> list[Cell]:
    """Return the cells without a stored result.

    Raises
    ------
    RunError
        A stored cell was made with another configuration, and ``again`` is not given.
    """
    return [cell for cell in cells if not _done(cell, out, again)]


def _run_due(
    cells: Sequence[Cell], out: Path, workers: int, minutes: float, again: bool, say: Callable[[str], None]
) -> int:
    due = due_cells(cells, out, again)
    say(f"{len(cells)} cells, {len(cells) - len(due)} of them finished before")
    deadline = time.monotonic() + 60.0 * minutes if minutes else float("inf")
    failures: list[str] = []
    if workers == 1:
        left = _here(due, out, deadline, failures, say)
    else:
        left = _on_ray(due, out, workers, deadline, failures, say)
    if failures:
        raise RunError(f"{len(failures)} of {len(due)} cells failed; the first: {failures[0]}")
    if left:
        say(f"The time is up and {left} cells are left; give the same command again to carry on")
    return left


def _done(cell: Cell, out: Path, again: bool) -> bool:
    try:
        return finished(cell, out)
    except RunError:
        if again:
            return False
        raise


def _here(
    due: Sequence[Cell], out: Path, deadline: float, failures: list[str], say: Callable[[str], None]
) -> int:
    for number, cell in enumerate(due):
        if time.monotonic() > deadline:
            return len(due) - number
        say(f"{cell} ...")
        _tell(cell, _attempt(cell, out), failures, say)
    return 0


def _on_ray(
    due: Sequence[Cell],
    out: Path,
    workers: int,
    deadline: float,
    failures: list[str],
    say: Callable[[str], None],
) -> int:
    import ray

    if not due:
        return 0
    variables = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    variables["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    ray.init(
        num_cpus=workers,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        runtime_env={"env_vars": variables},
    )
    try:
        attempt = ray.remote(num_cpus=1, max_retries=0)(_attempt)
        waiting = list(due)
        running: dict[Any, Cell] = {}
        while waiting or running:
            while waiting and len(running) < workers and time.monotonic() < deadline:
                cell = waiting.pop(0)
                say(f"{cell} ...")
                running[attempt.remote(cell, out)] = cell
            if not running:
                break
            (ready,), _ = ray.wait(list(running), num_returns=1)
            _tell(running.pop(ready), _outcome(ready), failures, say)
        return len(waiting)
    finally:
        ray.shutdown()


def _attempt(cell: Cell, out: Path) -> tuple[str, float]:
    """Run a cell; return what went wrong, if anything did, and the seconds."""
    started = time.monotonic()
    try:
        with quieted("flwr"):  # each round of each cell
            run_cell(cell, out)
    except FedForgetError as error:
        return str(error), time.monotonic() - started
    return "", time.monotonic() - started


def _outcome(reference: Any) -> tuple[str, float]:
    import ray

    try:
        problem, seconds = ray.get(reference)
    except ray.exceptions.RayError as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}", 0.0
    return problem, seconds


def _tell(cell: Cell, outcome: tuple[str, float], failures: list[str], say: Callable[[str], None]) -> None:
    problem, seconds = outcome
    if problem:
        failures.append(f"{cell}: {problem}")
    say(f"{cell}: {f'FAILED: {problem}' if problem else f'{seconds:.0f} s'}")
