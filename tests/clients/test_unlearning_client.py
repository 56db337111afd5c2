"""One client: what it sends depends on its data and the run's seeds, on nothing else."""

from __future__ import annotations

import dataclasses
import weakref

import numpy as np
import pytest
import torch

from clients import kept_fishers, unlearning
from clients.unlearning import UnlearningClient
from fedforget import protocol
from fedforget.adapters import adapted_weights
from fedforget.client_specs import ClientSpec, expand_clients
from fedforget.codecs import Instruction, unpack
from fedforget.codecs.exchange import PlacesRequest, unpack_values
from fedforget.config import ModelConfig, RunConfig
from fedforget.data import client_retain_examples
from fedforget.defence_config import PrivacyConfig
from fedforget.encoding import encode
from fedforget.errors import DataError, ModelError, TrainingError
from fedforget.models import Backbone, cached_backbone, load_backbone, release_backbone
from fedforget.reproducible import cpu_share
from fedforget.summaries import ClientSummary, LoraFactors


def specs(config: RunConfig) -> dict[str, ClientSpec]:
    return {spec.id: spec for spec in expand_clients(config.clients)}


def sent(config: RunConfig, name: str) -> tuple[list[bytes], dict[str, object]]:
    buckets, _, metrics = UnlearningClient(config, specs(config)[name], threads=1).fit([], {})
    return [bucket.tobytes() for bucket in buckets], metrics


def summary(config: RunConfig, name: str) -> ClientSummary:
    buckets, metrics = sent(config, name)
    arrays = [np.frombuffer(bucket, np.uint8) for bucket in buckets]
    return unpack(arrays, str(metrics[protocol.MANIFEST]))


def test_the_summary_fits_the_backbone(config: RunConfig) -> None:
    found = summary(config, "forget-herbs-0")
    backbone = cached_backbone(config.model, config.seeds.model)
    found.validate()
    found.check_against(adapted_weights(backbone.model, config.lora))
    assert (found.client_id, found.role, found.domain, found.num_examples) == (
        "forget-herbs-0",
        "forget",
        "herbs",
        8,
    )
    assert all(isinstance(delta, LoraFactors) for delta in found.deltas.values())
    assert all(f.dtype == torch.bfloat16 for f in found.fisher.values())
    assert any(delta.dense().abs().max() > 0 for delta in found.deltas.values())


def test_a_client_sends_the_same_before_and_after_another(config: RunConfig) -> None:
    first, _ = sent(config, "forget-herbs-0")
    sent(config, "retain-birds-0")
    again, _ = sent(config, "forget-herbs-0")
    other, _ = sent(config, "forget-herbs-1")
    assert first == again
    assert first != other


def test_the_training_seed_matters(config: RunConfig) -> None:
    first, _ = sent(config, "forget-herbs-0")
    config.seeds.training = 1
    assert sent(config, "forget-herbs-0")[0] != first


def test_a_private_client_sends_noise_of_its_own_and_no_figures(config: RunConfig) -> None:
    config.privacy = PrivacyConfig(clip=0.1, fisher_clip=1e-3, noise_multiplier=2.0)
    first, metrics = sent(config, "forget-herbs-0")
    again, _ = sent(config, "forget-herbs-0")
    assert first != again  # the run's seeds do not tell the noise
    assert not set(metrics) & {"first-loss", "last-loss", "tokens", "steps"}
    found = summary(config, "forget-herbs-0")
    found.validate()
    # B starts at 0 and its change is clipped to a norm of 0.1: what is there is the noise, sigma 0.2.
    spread = torch.cat([one.B.flatten() for one in found.deltas.values() if isinstance(one, LoraFactors)])
    assert float(spread.std()) == pytest.approx(0.2, rel=0.35)
    with pytest.raises(TrainingError, match="privacy is on"):
        UnlearningClient(config, specs(config)["forget-herbs-0"]).evaluate([], {})


def test_the_fisher_is_that_of_the_untrained_backbone(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More training changes the task vector, not the Fisher; nor does computing activations again."""
    short = summary(config, "retain-birds-0")
    config.retain.training.steps, config.fisher.recompute = 5, True
    asked: list[bool] = []
    taken = unlearning.empirical_fisher
    monkeypatch.setattr(
        unlearning,
        "empirical_fisher",
        lambda *given, **options: asked.append(options["recompute"]) or taken(*given, **options),
    )
    long = summary(config, "retain-birds-0")
    assert asked == [True]
    assert all(torch.equal(short.fisher[name], long.fisher[name]) for name in short.fisher)
    assert any(not torch.equal(short.deltas[n].dense(), long.deltas[n].dense()) for n in short.deltas)  # type: ignore[union-attr]


def test_the_fisher_may_be_taken_at_another_precision(config: RunConfig) -> None:
    same = summary(config, "retain-birds-0")
    config.model.fisher_precision = "bf16"
    other = summary(config, "retain-birds-0")
    # bf16 has 8 bits of precision, squared and averaged over 4 sequences.
    for name, fisher in same.fisher.items():
        a, b = fisher.float(), other.fisher[name].float()
        assert not torch.equal(a, b)
        assert float((a - b).norm() / a.norm()) < 0.1


@pytest.mark.parametrize("hold_both", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "nf4"])
def test_the_training_model_is_gone_when_the_reference_is_loaded(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, precision: str, hold_both: bool
) -> None:
    config.model.precision, config.model.fisher_precision = precision, "bf16"
    config.model.hold_both = hold_both
    alive: dict[str, list[bool]] = {}
    loaded: list[weakref.ref[torch.nn.Module]] = []

    def load(cfg: ModelConfig, seed: int, *, precision: str | None = None) -> Backbone:
        alive[precision or cfg.precision] = [one() is not None for one in loaded]
        backbone = load_backbone(cfg, seed, precision=precision)
        loaded.append(weakref.ref(backbone.model))
        return backbone

    release_backbone()
    monkeypatch.setattr("fedforget.models.load_backbone", load)
    monkeypatch.setattr("clients.unlearning.load_backbone", load)
    _, metrics = sent(config, "retain-birds-0")
    assert alive == {precision: [], "bf16": [hold_both]}
    assert loaded[1]() is None
    # The server compares the fingerprint of the model that was trained.
    assert metrics[protocol.FINGERPRINT] == load_backbone(config.model, config.seeds.model).fingerprint


def test_properties_describe_the_client(config: RunConfig) -> None:
    spec = specs(config)["forget-stars-0"]
    found = protocol.Description.from_properties(UnlearningClient(config, spec).get_properties({}))
    assert found.clients == (spec,)
    assert found.sizes == {"forget-stars-0": 8}
    assert found.fingerprint == cached_backbone(config.model, config.seeds.model).fingerprint


def test_the_local_loss_is_the_mean_over_target_tokens(config: RunConfig) -> None:
    spec = specs(config)["retain-birds-0"]
    loss, count, metrics = UnlearningClient(config, spec, threads=1).evaluate([], {})
    from fedforget.data import client_examples

    backbone = cached_backbone(config.model, config.seeds.model)
    total, tokens = 0.0, 0
    for one in encode(backbone.tokenizer, client_examples(config, spec), config.data.max_length):
        with torch.no_grad():
            scores = backbone.model(input_ids=one.input_ids[None]).logits[0].float().log_softmax(-1)
        for i, label in enumerate(one.labels.tolist()):
            if i and label != -100:
                total -= float(scores[i - 1, label])
                tokens += 1
    assert count == 8
    assert metrics == {"role": "retain", "tokens": tokens}
    assert loss == pytest.approx(total / tokens, rel=1e-5)


def test_the_local_loss_with_an_update(config: RunConfig) -> None:
    client = UnlearningClient(config, specs(config)["retain-birds-0"], threads=1)
    shapes = adapted_weights(cached_backbone(config.model, config.seeds.model).model, config.lora)
    names = list(shapes)

    def loss(value: float) -> float:
        arrays = [np.full(shapes[name], value, np.float32).reshape(-1).view(np.uint8) for name in names]
        return client.evaluate(arrays, {"tensors": names, "dtypes": ["float32"] * len(names)})[0]

    plain = client.evaluate([], {})[0]
    assert loss(0.0) == plain
    assert loss(0.5) != plain
    assert client.evaluate([], {})[0] == plain
    with pytest.raises(ModelError, match="client 'retain-birds-0'"):
        client.evaluate([np.zeros(4, np.uint8)], {"tensors": ["x"], "dtypes": ["float32"]})
    with pytest.raises(ModelError, match="wrong size"):
        client.evaluate(
            [np.zeros(4, np.uint8)] * len(names), {"tensors": names, "dtypes": ["float32"] * len(names)}
        )


def test_a_client_without_data_says_so(config: RunConfig) -> None:
    spec = dataclasses.replace(specs(config)["forget-herbs-0"], domain="nowhere")
    with pytest.raises(DataError, match=r"client 'forget-herbs-0'.*nowhere"):
        UnlearningClient(config, spec).fit([], {})


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    with cpu_share(before + 1):
        assert torch.get_num_threads() == before + 1
    with cpu_share(None):
        assert torch.get_num_threads() == before
    assert torch.get_num_threads() == before


def test_a_collapsed_client_is_named_with_the_step_and_what_to_change(config: RunConfig) -> None:
    config.forget.training = dataclasses.replace(
        config.forget.training, steps=30, learning_rate=50.0, loss_limit=1.5
    )
    with pytest.raises(TrainingError) as caught:
        sent(config, "forget-herbs-0")
    message = str(caught.value)
    assert message.startswith("client 'forget-herbs-0' (forget): training collapsed at step ")
    assert "training.learning_rate, now 50" in message
    assert "raise training.loss_limit (now 1.5)" in message


def test_a_forget_client_may_hold_retain_data_for_its_objective(config: RunConfig) -> None:
    config.forget.objective.name, config.forget.objective.parameters = "grad_diff", {}
    spec = specs(config)["forget-herbs-0"]
    with pytest.raises(TrainingError, match=r"client 'forget-herbs-0' \(forget\): .* name the group's"):
        sent(config, spec.id)
    holding = dataclasses.replace(spec, retain_domain="birds")
    kept = client_retain_examples(config, holding)
    assert {example.domain for example in kept} == {"birds"}
    assert len(kept) == 8
    buckets, _, metrics = UnlearningClient(config, holding, threads=1).fit([], {})
    alone = UnlearningClient(config, spec, threads=1)
    config.forget.objective.parameters = {"alpha": 0.0}
    other, _, fewer = alone.fit([], {})
    assert metrics["tokens"] > fewer["tokens"]
    assert [b.tobytes() for b in buckets] != [b.tobytes() for b in other]


def test_a_kept_fisher_that_is_gone_is_computed_again(config: RunConfig) -> None:
    client = UnlearningClient(config, specs(config)["forget-herbs-0"], threads=1)
    how = Instruction("top", 0.15, first=True)
    _, _, metrics = client.fit([], {protocol.FISHER: how.to_json()})
    digest = str(metrics[protocol.DIGEST])
    fisher = kept_fishers.find(digest)
    assert fisher is not None
    assert metrics["lossless-bytes"] > 0
    request = PlacesRequest()
    for name in fisher:
        request.add(name, torch.tensor([1, 5]))
    buckets, manifest = request.pack()
    keys = {protocol.MANIFEST: manifest, protocol.DIGEST: digest}
    first = client.values(buckets, keys)
    assert kept_fishers.find(digest) is None
    again = client.values(buckets, keys)
    for answered, info in (first, again):
        expected = {name: (2, one.dtype) for name, one in fisher.items()}
        values = unpack_values(answered, info[protocol.MANIFEST], expected, "x")
        assert all(torch.equal(values[name], one.flatten()[[1, 5]]) for name, one in fisher.items())
    for other in ("0" * 64, "../x"):
        with pytest.raises(ModelError, match=r"client 'forget-herbs-0'.*computed again it differs"):
            client.values(buckets, {**keys, protocol.DIGEST: other})
