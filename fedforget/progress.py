"""Progress bars and advice: the model libraries' are kept out of logs, our bars go to the terminal alone."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def no_progress_bars() -> Iterator[None]:
    """Switch transformers' progress bars off inside the block."""
    from transformers.utils import logging as transformers_logging

    logging: Any = transformers_logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def quiet_libraries() -> None:
    """Silence progress bars and advice of the model libraries; warnings of theirs stay."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.getLogger("matplotlib").setLevel(logging.WARNING)


def quiet_bitsandbytes() -> None:
    """Silence what importing bitsandbytes warns of: a kernel and a function of torch that nothing needs."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", r".*torch\.jit\.script_method", DeprecationWarning)


@contextlib.contextmanager
def quieted(name: str, level: int = logging.WARNING) -> Iterator[None]:
    """Hold back what a library's logger tells below a level, inside the block alone."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextlib.contextmanager
def counter() -> Iterator[Callable[[int, int], None]]:
    """Show on a terminal how many of how many are done; elsewhere show nothing."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, count: bar.update(task, completed=done, total=count)
