"""Tasks over processes: order, reasons of failures, and no more processes than fit."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import pytest

from fedforget import workers
from fedforget.errors import ConfigError, RunError
from fedforget.workers import available_cpus

# Travels to another process by name.
BIT_LENGTH = partial(operator.methodcaller, "bit_length")


def here(task: int) -> str:
    return f"{task} here"


def test_the_first_is_done_here_and_the_rest_elsewhere_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_fitting", lambda: 2)
    said: list[str] = []
    found = list(workers.ahead([1, 2, 4, 256, 8], here, BIT_LENGTH, workers=2, say=said.append))  # type: ignore[misc]
    assert found == ["1 here", 2, 3, 9, 4]
    assert said == []


def test_memory_limits_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_fitting", lambda: 1)
    said: list[str] = []

    def never() -> Any:
        raise AssertionError("another process was started")

    assert list(workers.ahead([1, 2, 3], here, never, workers=4, say=said.append)) == [
        "1 here",
        "2 here",
        "3 here",
    ]
    assert said == ["memory allows 1 instead of 2 processes"]


def test_what_fails_elsewhere_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    # In a process of its own this would come as another class, or as none.
    monkeypatch.setattr(workers, "_open", lambda: _raise)
    monkeypatch.setattr(workers, "_work", None)
    with pytest.raises(RunError, match="gamma: no number"):
        workers._do(1)


def _raise(task: int) -> None:
    raise ConfigError(["gamma: no number"])


def test_cpus_are_no_more_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What limits this process is looked at: its affinity, its container's quota, joblib's own variable."""
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")
    assert available_cpus() == 1
