"""One classifier with its stack per process, kept between the messages that a process handles."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import asdict

from fedforget.files import home
from fedforget.sequential.classifiers import load_classifier
from fedforget.sequential.config import SequentialRunConfig
from fedforget.sequential.stack import ModuleStack

_lock = threading.Lock()
_kept: tuple[str, ModuleStack] | None = None


@contextlib.contextmanager
def borrowed_stack(config: SequentialRunConfig) -> Iterator[ModuleStack]:
    """Yield this process's stack for a configuration, loaded once, to one borrower at a time.

    The stack is cleared before and after, so nothing passes from one borrower to the next. Its
    ``classifier`` is then the bare one.

    Raises
    ------
    ModelError
        As :func:`fedforget.sequential.classifiers.load_classifier` and
        :class:`fedforget.sequential.stack.ModuleStack`.
    """
    global _kept
    wanted = json.dumps(
        [asdict(part) for part in (config.model, config.module, config.data)]
        + [config.seeds.model, config.seeds.data, str(home())]
    )
    with _lock:
        if _kept is None or _kept[0] != wanted:
            _kept = None  # two models at once may not fit
            _kept = (wanted, ModuleStack(load_classifier(config), config.module))
        stack = _kept[1]
        stack.clear()
        try:
            yield stack
        finally:
            stack.clear()
