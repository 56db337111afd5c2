"""Fixtures that several folders share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from fedforget.adapters import adapted_weights
from fedforget.client_specs import expand_clients
from fedforget.config import ModelConfig, RunConfig, TinyModelConfig
from fedforget.models import Backbone, load_backbone
from fedforget.presets import load
from fedforget.runs import RunDirectory
from fedforget.summaries import ClientSummary

# One thread: kernels that split their work over threads round differently.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fedforget home for the whole session, so that what is built there is built once."""
    return tmp_path_factory.mktemp("fedforget-home")


@pytest.fixture(scope="session")
def tiny_config() -> ModelConfig:
    """A random Llama of two blocks and width 32, with the word tokenizer of the fictional world."""
    return ModelConfig(path="tiny", device="cpu", tiny=TinyModelConfig(layers=2, width=32, heads=2, steps=0))


@pytest.fixture(scope="session")
def tiny_backbone(tiny_home: Path, tiny_config: ModelConfig) -> Iterator[Backbone]:
    """The backbone of ``tiny_config``; every test must leave it as it found it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDFORGET_HOME", str(tiny_home))
        yield load_backbone(tiny_config, seed=0)


@pytest.fixture(scope="session")
def store(tiny_backbone: Backbone) -> Callable[[Path, RunConfig, str], RunDirectory]:
    """Make a run of a preset on the tiny model, with random summaries in place of trained ones."""

    def make(path: Path, config: RunConfig, preset: str) -> RunDirectory:
        run = RunDirectory.create(path, config, preset)
        shapes = adapted_weights(tiny_backbone.model, config.lora)
        for i, spec in enumerate(expand_clients(config.clients)):
            draw = torch.Generator().manual_seed(i)
            deltas = {name: 0.1 * torch.randn(shape, generator=draw) for name, shape in shapes.items()}
            fisher = {name: torch.rand(shape, generator=draw) for name, shape in shapes.items()}
            ClientSummary(spec.id, spec.role, spec.domain, 8, deltas, fisher).save(run.summaries / spec.id)
        run.update(status="completed", backbone={"path": "tiny", "fingerprint": tiny_backbone.fingerprint})
        return run

    return make


@pytest.fixture
def stored_run(
    tmp_path: Path,
    tiny_home: Path,
    store: Callable[[Path, RunConfig, str], RunDirectory],
    monkeypatch: pytest.MonkeyPatch,
) -> RunDirectory:
    """A run of ``firm-ci`` with random summaries."""
    monkeypatch.setenv("FEDFORGET_HOME", str(tiny_home))
    return store(tmp_path / "run", load("firm-ci", "model.device=cpu"), "firm-ci")
