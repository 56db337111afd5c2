"""What a run logs, as JSON lines in its directory: time, level, run, the client if it is about one, text."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterator

from fedforget.runs import RunDirectory

FILE = "log.jsonl"


class _Lines(logging.Handler):
    def __init__(self, run: RunDirectory) -> None:
        super().__init__(logging.INFO)
        self._path, self._run = run.path / FILE, run.path.name

    def emit(self, record: logging.LogRecord) -> None:
        """Append one line; what cannot be written is left out, for a log must not end a run."""
        text = record.getMessage().strip()
        if not text:
            return
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(record.created)),
            "level": record.levelname.lower(),
            "run": self._run,
            **({"client": record.client} if hasattr(record, "client") else {}),
            "text": text,
        }
        with contextlib.suppress(OSError), open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def logged(run: RunDirectory) -> Iterator[None]:
    """Append what Flower's logger is given inside the block to the run's ``log.jsonl``."""
    handler, logger = _Lines(run), logging.getLogger("flwr")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
