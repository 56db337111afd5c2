"""Ending every process of a run, those that left their parents included, even where this one is killed."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

MARK = "FEDFORGET_PROCESS_MARK"


def new_mark() -> str:
    """Return a value for the environment variable :data:`MARK`, which a run's processes inherit."""
    return f"{os.getpid()}-{secrets.token_hex(8)}"


def marked(mark: str) -> list[psutil.Process]:
    """Return the live processes whose environment carries the mark, this one excepted."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.environ().get(MARK) != mark:
                continue
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue  # another user's, or gone meanwhile
    return found


def end(mark: str, first: str = "", patience: float = 10.0) -> list[int]:
    """End the marked processes: politely, then by force.

    Ray's processes do not end with the process that started them, and Flower's do not end with
    the SuperLink, so each is asked by itself.

    Parameters
    ----------
    mark : str
    first : str
        Processes with this word in their command line are asked first, and waited for: they can
        end their own children in order.
    patience : float
        Seconds between asking and forcing.

    Returns
    -------
    list of int
        Processes that are still there; empty unless the system refuses to end them.
    """
    if first:
        _ask(p for p in marked(mark) if first in " ".join(_command(p)))
        _wait(lambda: any(first in " ".join(_command(p)) for p in marked(mark)), patience)
    _ask(marked(mark))
    _wait(lambda: bool(marked(mark)), patience / 2)
    deadline = time.monotonic() + patience
    while (left := marked(mark)) and time.monotonic() < deadline:
        for process in left:
            try:
                process.kill()
            except psutil.Error:
                continue
        time.sleep(0.2)
    return [process.pid for process in left]


@contextlib.contextmanager
def guarded(mark: str, first: str = "", folder: Path | None = None) -> Iterator[None]:
    """End the marked processes should this one be killed inside the block, and remove a folder then.

    Nothing in this process can run after a ``kill -9``. So another waits at a pipe from it, which the
    system closes when it ends, however that comes.

    Parameters
    ----------
    mark, first : str
        As for :func:`end`.
    folder : Path, optional
    """
    words = [sys.executable, "-m", "simulations.processes", mark, first, str(folder or "")]
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]))
    # A session of its own: Ctrl-C, or a signal to the group, is not for it. It does not carry the mark.
    guard = subprocess.Popen(
        words, stdin=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}, start_new_session=True
    )
    try:
        yield
    finally:
        guard.communicate(b"done")


def _guard(mark: str, first: str, folder: str) -> None:
    if sys.stdin.buffer.read():  # until the other end is closed; without a word, it was killed
        return
    end(mark, first)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _ask(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        try:
            process.terminate()
        except psutil.Error:
            continue


def _wait(busy: object, patience: float) -> None:
    deadline = time.monotonic() + patience
    while callable(busy) and busy() and time.monotonic() < deadline:
        time.sleep(0.2)


if __name__ == "__main__":
    _guard(*sys.argv[1:])
