"""Fixtures of the strategies' tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.supercore.task_identity import TaskIdentity
from strategies_fakes import make_firm

from fedforget.config import ClientGroup, RunConfig, SimulationConfig
from fedforget.sequential.config import (
    GroupingConfig,
    LocalTrainingConfig,
    RecordsConfig,
    SequencesConfig,
    SequentialRunConfig,
)
from strategies.firm import Firm


@pytest.fixture(autouse=True)
def _task_identity() -> Iterator[None]:
    """Outside a Flower process a message has no sender; give it one."""
    kept = (TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    yield
    TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = kept


@pytest.fixture
def config() -> RunConfig:
    return RunConfig(
        clients=[
            ClientGroup(role="forget", domain="a", count=2),
            ClientGroup(role="forget", domain="b", count=1),
            ClientGroup(role="retain", domain="c", count=1),
        ],
        simulation=SimulationConfig(nodes=2, timeout=60.0),
    )


@pytest.fixture
def firm(config: RunConfig, tmp_path: Path) -> Firm:
    return make_firm(config, tmp_path / "run")


@pytest.fixture
def sequential() -> SequentialRunConfig:
    return SequentialRunConfig(
        data=RecordsConfig(clients=3, slices=2),
        grouping=GroupingConfig(groups=3),
        sequences=SequencesConfig(budget=3),
        training=LocalTrainingConfig(rounds_per_phase=1),
        simulation=SimulationConfig(nodes=2, timeout=60.0),
    )
