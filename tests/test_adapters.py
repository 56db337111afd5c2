"""Adapters: names, scales, identity with PEFT, and a backbone that is left as it was."""

from __future__ import annotations

import copy
import dataclasses
import math
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from fedforget.adapters import adapted_weights, deltas_applied, lora_attached, lora_factors
from fedforget.config import LoraConfig
from fedforget.errors import ModelError
from fedforget.models import Backbone
from fedforget.summaries import LoraFactors

DOWN = "model.layers.{}.mlp.down_proj.weight"
IDS = torch.arange(3, 15).reshape(2, 6)


def state(model: Any) -> dict[str, Any]:
    """Everything about a model that an adapter could leave changed."""
    return {
        "bits": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "flags": {
            name: (p.requires_grad, p.grad is None, p.data_ptr()) for name, p in model.named_parameters()
        },
        "modules": {name: (type(m), id(m), m.training) for name, m in model.named_modules()},
        "hooks": {
            name: (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks))
            for name, m in model.named_modules()
        },
        "attributes": {name: sorted(vars(m)) for name, m in model.named_modules()},
        "config": model.config.to_dict(),
    }


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    bits, others = before.pop("bits"), after.pop("bits")
    assert before == after
    assert list(bits) == list(others)
    assert all(torch.equal(bits[name], others[name]) for name in bits)


def perturb(model: Any, seed: int) -> None:
    """Give every factor B values, as training would."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)


def test_attaching_warns_of_nothing(tiny_backbone: Backbone) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with lora_attached(tiny_backbone, LoraConfig(r=2), seed=0):
            pass


def test_adapted_weights_are_named_as_in_the_backbone(tiny_backbone: Backbone) -> None:
    found = adapted_weights(tiny_backbone.model, LoraConfig(targets=["down_proj", "q_proj"], layers=[1]))
    assert found == {
        "model.layers.1.self_attn.q_proj.weight": (32, 32),
        "model.layers.1.mlp.down_proj.weight": (32, 128),
    }
    parameters = dict(tiny_backbone.model.named_parameters())
    assert {name: tuple(parameters[name].shape) for name in found} == found


def test_without_layers_every_block_is_adapted(tiny_backbone: Backbone) -> None:
    assert list(adapted_weights(tiny_backbone.model, LoraConfig())) == [DOWN.format(0), DOWN.format(1)]


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        (LoraConfig(targets=["down_prj"]), "did you mean 'down_proj'.*q_proj"),
        (LoraConfig(layers=[0, 2]), "no block 2; the model has blocks 0 to 1"),
        (LoraConfig(targets=["embed_tokens"]), "is a Embedding; adapters are for linear modules"),
        (LoraConfig(targets=["mlp"]), "is a LlamaMLP"),
        (LoraConfig(targets=["lm_head"]), "shares its weight with 'model.embed_tokens'"),
        (LoraConfig(targets=["lm_head"], layers=[0]), "outside the decoder blocks"),
    ],
)
def test_wrong_targets_are_refused(tiny_backbone: Backbone, lora: LoraConfig, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        adapted_weights(tiny_backbone.model, lora)


def test_a_convolution_is_refused() -> None:
    model = nn.ModuleDict({"conv": nn.Conv1d(2, 2, 1)})
    with pytest.raises(ModelError, match="is a Conv1d"):
        adapted_weights(model, LoraConfig(targets=["conv"]))


def test_the_backbone_is_left_as_it_was(tiny_backbone: Backbone) -> None:
    model = tiny_backbone.model
    before = state(model)
    with lora_attached(tiny_backbone, LoraConfig(r=4, dropout=0.1), seed=1) as attached:
        perturb(attached, 0)
        attached.train()
        attached(input_ids=IDS, labels=IDS).loss.backward()
    assert_same(before, state(model))


def test_the_backbone_is_left_as_it_was_after_an_exception(tiny_backbone: Backbone) -> None:
    before = state(tiny_backbone.model)
    with pytest.raises(ZeroDivisionError), lora_attached(tiny_backbone, LoraConfig(r=4), seed=1):
        _ = 1 // 0
    assert_same(before, state(tiny_backbone.model))


def test_a_client_gives_the_same_bits_before_and_after_another(tiny_backbone: Backbone) -> None:
    def client(seed: int) -> dict[str, LoraFactors]:
        with lora_attached(tiny_backbone, LoraConfig(r=4), seed=seed) as attached:
            optimizer = torch.optim.SGD([p for p in attached.parameters() if p.requires_grad], lr=1.0)
            for _ in range(2):
                optimizer.zero_grad()
                attached(input_ids=IDS + seed, labels=IDS + seed).loss.backward()
                optimizer.step()
            return lora_factors(attached)

    first, other, again = client(1), client(2), client(1)
    for name, factors in first.items():
        assert torch.equal(factors.A, again[name].A)
        assert torch.equal(factors.B, again[name].B)
        assert not torch.equal(factors.B, other[name].B)
        assert factors.B.any()


def test_attaching_leaves_the_global_random_state(tiny_backbone: Backbone) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with lora_attached(tiny_backbone, LoraConfig(r=4), seed=1):
        pass
    assert torch.equal(torch.rand(3), expected)


def test_only_the_adapter_is_trainable_in_fp32(tiny_backbone: Backbone) -> None:
    half = dataclasses.replace(tiny_backbone, model=copy.deepcopy(tiny_backbone.model).to(torch.bfloat16))
    with lora_attached(half, LoraConfig(r=4), seed=1) as attached:
        trainable = {name: p.dtype for name, p in attached.named_parameters() if p.requires_grad}
    assert trainable
    assert all("lora_" in name and dtype == torch.float32 for name, dtype in trainable.items())


def test_two_adapters_at_once_are_refused(tiny_backbone: Backbone) -> None:
    with (
        lora_attached(tiny_backbone, LoraConfig(r=4), seed=1),
        pytest.raises(ModelError, match="already"),
        lora_attached(tiny_backbone, LoraConfig(r=4), seed=2),
    ):
        pass


@pytest.mark.parametrize(
    ("lora", "scales"),
    [
        (LoraConfig(r=4, alpha=32.0), (8.0, 8.0)),  # 32 / 4
        (LoraConfig(r=4, alpha=32.0, rslora=True), (16.0, 16.0)),  # 32 / sqrt(4)
        (LoraConfig(r=4, alpha=32.0, alpha_pattern={"layers.1.mlp.down_proj": 2.0}), (8.0, 0.5)),  # 2 / 4
        (LoraConfig(r=4, alpha=8.0, rslora=True, alpha_pattern={"layers.0.mlp.down_proj": 1.0}), (0.5, 4.0)),
        (LoraConfig(r=3, alpha=1.5, rslora=True), (1.5 / math.sqrt(3), 1.5 / math.sqrt(3))),
    ],
)
def test_scales(tiny_backbone: Backbone, lora: LoraConfig, scales: tuple[float, float]) -> None:
    with lora_attached(tiny_backbone, lora, seed=0) as attached:
        factors = lora_factors(attached)
    assert [factors[DOWN.format(i)].scale for i in (0, 1)] == pytest.approx(scales)


def test_an_alpha_pattern_that_matches_nothing_is_refused(tiny_backbone: Backbone) -> None:
    lora = LoraConfig(r=4, alpha_pattern={"up_proj": 1.0})
    with (
        pytest.raises(ModelError, match="'up_proj' matches no adapted module"),
        lora_attached(tiny_backbone, lora, 0),
    ):
        pass


def test_factors_of_a_model_without_adapter_are_refused(tiny_backbone: Backbone) -> None:
    with pytest.raises(ModelError, match="no LoRA adapter"):
        lora_factors(tiny_backbone.model)


@pytest.mark.parametrize("rslora", [False, True])
def test_the_update_is_what_peft_computes(tiny_backbone: Backbone, rslora: bool) -> None:
    model = tiny_backbone.model
    lora = LoraConfig(r=4, rslora=rslora, targets=["down_proj", "q_proj"], alpha_pattern={"q_proj": 5.0})
    with torch.no_grad():
        plain = model(input_ids=IDS).logits
        with lora_attached(tiny_backbone, lora, seed=3) as attached:
            perturb(attached, 1)
            expected = attached(input_ids=IDS).logits
            factors = lora_factors(attached)
        with deltas_applied(model, factors):
            from_factors = model(input_ids=IDS).logits
        with deltas_applied(model, {name: one.dense() for name, one in factors.items()}):
            from_dense = model(input_ids=IDS).logits
        assert torch.equal(model(input_ids=IDS).logits, plain)
    assert (expected - plain).abs().max() > 1e-2
    torch.testing.assert_close(from_factors, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(from_dense, expected, rtol=1e-4, atol=1e-5)


def test_applied_deltas_return_the_exact_bits_after_an_exception(tiny_backbone: Backbone) -> None:
    before = state(tiny_backbone.model)
    # 1e8 + w - 1e8 is not w, so this fails if the update were subtracted back.
    deltas = {DOWN.format(0): torch.full((32, 128), 1.0e8)}
    with pytest.raises(ZeroDivisionError), deltas_applied(tiny_backbone.model, deltas):
        _ = 1 // 0
    assert_same(before, state(tiny_backbone.model))


def test_nothing_is_applied_when_one_update_is_refused(tiny_backbone: Backbone) -> None:
    before = state(tiny_backbone.model)
    good = torch.ones(32, 128)
    for name, delta, message in (
        ("model.layers.0.mlp.down_prj.weight", good, "no weight.*did you mean"),
        (DOWN.format(1), good.T, r"shape \(128, 32\), the weight has \(32, 128\)"),
    ):
        with (
            pytest.raises(ModelError, match=message),
            deltas_applied(tiny_backbone.model, {DOWN.format(0): good, name: delta}),
        ):
            pass
    assert_same(before, state(tiny_backbone.model))


def test_what_rounding_loses_is_reported() -> None:
    linear = nn.Linear(2, 1, bias=False, dtype=torch.bfloat16)
    linear.weight.data = torch.tensor([[1.0, 1.0]], dtype=torch.bfloat16)
    # bf16 has 8 bits: above 1 the next value is 1 + 2^-7. The first update is one such step and is
    # kept, the second is a quarter of it and is lost: of (4, 1) / 512 the norm lost is 1 / sqrt(17).
    update = torch.tensor([[2.0**-7, 2.0**-9]])
    with deltas_applied(linear, {"weight": update}) as lost:
        assert linear.weight.tolist() == [[1.0 + 2.0**-7, 1.0]]
    assert lost == {"weight": pytest.approx(1.0 / math.sqrt(17.0))}
    assert linear.weight.tolist() == [[1.0, 1.0]]
