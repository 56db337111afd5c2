"""The expert: made once, to the same bits after an interruption, and where the Fisher is not taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import benchmark_files
import pytest
import torch

from clients.unlearning import UnlearningClient
from fedforget.client_specs import expand_clients
from fedforget.codecs import unpack
from fedforget.config import RunConfig
from fedforget.data import client_examples
from fedforget.encoding import batches, encode
from fedforget.errors import ConfigError, ModelError, TrainingError
from fedforget.expert import adapt, starting_model
from fedforget.fisher import empirical_fisher
from fedforget.models import load_backbone, release_backbone
from fedforget.presets import load
from fedforget.sequential.checkpoints import Checkpoint

OVERRIDES = (
    "model.path=tiny model.precision=fp32 model.fisher_precision=same model.device=cpu model.tiny.layers=2 "
    "model.tiny.width=32 model.tiny.heads=2 model.tiny.steps=0 lora.r=2 lora.targets=[down_proj] "
    "data.max_length=48 data.also={} evaluation.held_out=[] forget.training.steps=1 fisher.num_sequences=2 "
    "model.expert.training.steps=6 model.expert.training.batch_size=4 model.expert.checkpoint_every=2 "
    "model.expert.training.learning_rate=0.01 model.expert.lora.r=2 model.expert.lora.dropout=0.1 "
    "model.expert.lora.targets=[up_proj]"
)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.setenv("FEDFORGET_HOME", str(tmp_path / "home"))
    data = benchmark_files.tofu(tmp_path / "tofu")
    return load("firm-tofu", [*OVERRIDES.split(), f"data.path={data}"])


def weights(folder: Path | str) -> dict[str, torch.Tensor]:
    from transformers import AutoModelForCausalLM

    return dict(AutoModelForCausalLM.from_pretrained(folder).state_dict())


@pytest.mark.parametrize("method", ["lora", "full"])
def test_an_interrupted_adaptation_ends_with_the_same_bits(
    method: str, config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.model.expert.method = method
    with pytest.raises(ModelError, match="fedforget adapt"):
        starting_model(config)
    saves: list[int] = []
    save = Checkpoint.save

    def stop_at_the_second(self: Checkpoint, *state: Any) -> None:
        save(self, *state)
        saves.append(len(state[2]))
        if len(saves) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "save", stop_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            adapt(config)
    assert saves == [2, 4]
    with pytest.raises(ModelError, match="fedforget adapt"):
        starting_model(config)
    resumed = adapt(config)
    assert not list(resumed.parent.glob(".expert-*.checkpoint"))
    said: list[str] = []
    assert adapt(config, said.append) == resumed
    assert "there already" in said[0]
    monkeypatch.setenv("FEDFORGET_HOME", str(tmp_path / "other"))
    through, plain = weights(adapt(config)), weights(load_backbone(config.model, 0).model.name_or_path)
    for name, weight in weights(resumed).items():
        assert torch.equal(weight, through[name]), name
    moved = {name for name, weight in through.items() if not torch.equal(weight, plain[name])}
    assert ("model.layers.0.mlp.up_proj.weight" in moved, "model.norm.weight" in moved) == (
        True,
        method == "full",
    )


def test_clients_start_from_the_expert_and_take_the_fisher_before_it(config: RunConfig) -> None:
    folder = adapt(config)
    assert starting_model(config).path == str(folder)
    release_backbone()
    spec = next(one for one in expand_clients(config.clients) if one.role == "retain")
    config.retain.training.steps = 1
    config.clients[1].max_examples = 4
    spec = next(one for one in expand_clients(config.clients) if one.role == "retain")
    buckets, _, metrics = UnlearningClient(config, spec).fit([], {})
    backbone = load_backbone(config.model, 0)
    expert = load_backbone(starting_model(config), 0)
    assert metrics["fingerprint"] == expert.fingerprint != backbone.fingerprint
    summary = unpack(buckets, metrics["manifest"])
    encoded = encode(backbone.tokenizer, client_examples(config, spec)[:2], config.fisher.max_length)
    for model, same in ((backbone.model, True), (expert.model, False)):
        wanted = empirical_fisher(model, batches(encoded, 0), list(summary.fisher), 2)
        assert all(torch.equal(wanted[name], one) for name, one in summary.fisher.items()) == same
    release_backbone()


def test_an_nf4_backbone_is_adapted_in_the_weights_that_it_was_made_from(config: RunConfig) -> None:
    plain = weights(load_backbone(config.model, 0).model.name_or_path)
    config.model.precision, config.model.fisher_precision = "nf4", "fp32"
    config.model.expert.training.steps = 1
    found = weights(adapt(config))
    moved = {name for name, weight in found.items() if not torch.equal(weight, plain[name])}
    assert moved == {f"model.layers.{i}.mlp.up_proj.weight" for i in range(2)}
    assert {weight.dtype for weight in found.values()} == {torch.float32}


def test_what_the_expert_is_made_of_names_it(config: RunConfig) -> None:
    first = adapt(config)
    config.model.expert.checkpoint_every = 1  # how often it is written down changes nothing
    assert adapt(config) == first
    config.model.expert.training.learning_rate = 0.02
    with pytest.raises(ModelError, match="not there yet"):
        starting_model(config)


def test_a_checkpoint_that_was_cut_off_is_named(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"half")
    weight = torch.nn.Parameter(torch.zeros(2))
    with pytest.raises(TrainingError, match="kept: cannot be gone on with"):
        Checkpoint(tmp_path / "kept", 1).restore([weight], torch.optim.AdamW([weight]))


def test_wrong_settings() -> None:
    with pytest.raises(ConfigError, match="NF4 weights cannot be trained"):
        load("firm-tofu", "model.expert.method=full")
    with pytest.raises(ConfigError, match=r"model\.expert\.domain: is empty"):
        adapt(load("firm-ci"))
