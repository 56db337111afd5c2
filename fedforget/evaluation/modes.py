"""The mode that a model is measured in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Put a model into evaluation mode for a while."""
    before = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(before)
