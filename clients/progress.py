"""What a deployed client says of its work in its SuperNode's log."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from logging import INFO

from flwr.app import Context
from flwr.supercore import log


@contextlib.contextmanager
def told(client: str, context: Context, what: str) -> Iterator[None]:
    """Say what a client begins inside the block, and how long it took; of simulated ones the server tells."""
    if "client-id" not in context.node_config:
        yield
        return
    started = time.monotonic()
    log(INFO, "%s: %s, run %d", client, what, context.run_id, extra={"client": client})
    yield
    log(INFO, "%s: done in %.1f s, sending", client, time.monotonic() - started, extra={"client": client})
