"""A tiny federation that every method is run on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedforget import presets
from fedforget.sequential.config import SequentialRunConfig

TINY = "data.max_records=60 training.rounds=3 clustering.clusters=2 clustering.rounds=1"


@pytest.fixture(autouse=True)
def _home(tiny_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFORGET_HOME", str(tiny_home))


@pytest.fixture
def config() -> Callable[..., SequentialRunConfig]:
    """Three clients with two slices of ten records each; overrides as text."""

    def make(overrides: str = "") -> SequentialRunConfig:
        return presets.load_sequential("fedsgt-ci", f"{TINY} {overrides}")

    return make
