"""Fixtures of the clients' tests: the ci preset, in a home of its own, as a Flower task."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.supercore.task_identity import TaskIdentity

from fedforget.config import RunConfig
from fedforget.presets import load


@pytest.fixture(autouse=True)
def _task_identity() -> Iterator[None]:
    kept = (TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    yield
    TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = kept


@pytest.fixture(autouse=True)
def _home(tiny_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFORGET_HOME", str(tiny_home))


@pytest.fixture
def config() -> RunConfig:
    return load("firm-ci", "model.device=cpu")
