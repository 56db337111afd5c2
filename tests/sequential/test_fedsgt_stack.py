"""Stacking: loading leaves no trace of what was loaded before, for every kind of module."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from fedsgt_helpers import chain

from fedforget import presets
from fedforget.errors import ModelError
from fedforget.sequential.classifiers import load_classifier, refuse_batch_norm
from fedforget.sequential.config import ModuleConfig
from fedforget.sequential.stack import ModuleStack

KINDS = [
    ModuleConfig(kind="lora", r=2, alpha=4),
    ModuleConfig(kind="dora", r=2, alpha=4),
    ModuleConfig(kind="ia3", targets=["q_proj", "fc2"], feedforward=["fc2"]),
    ModuleConfig(kind="ia3", targets=["q_proj", "fc2"], feedforward=["fc2"], layers=[0]),
]


@pytest.mark.parametrize("cfg", KINDS, ids=lambda cfg: f"{cfg.kind}{len(cfg.layers)}")
def test_loading_leaves_no_trace(config, corpus, cfg):
    inputs = corpus.test.inputs[:8]
    bare = ModuleStack(load_classifier(config), cfg).logits(inputs)
    used, fresh = (ModuleStack(load_classifier(config), cfg) for _ in range(2))
    long, short = chain(used, (0, 1, 2), 1), chain(used, (2, 0), 2)
    used.load(long)
    differs = used.logits(inputs)
    used.begin(long[:1], None, 7)
    used.load(short)
    fresh.load(short)
    assert torch.equal(used.logits(inputs), fresh.logits(inputs))
    assert not torch.equal(used.logits(inputs), differs)
    used.clear()
    assert torch.equal(used.logits(inputs), bare)
    assert not any(p.requires_grad for p in used.model.parameters())


@pytest.mark.parametrize("cfg", KINDS[:3], ids=lambda cfg: cfg.kind)
def test_a_new_module_leaves_the_prefix_as_it_is(config, corpus, cfg):
    stack = ModuleStack(load_classifier(config), cfg)
    frozen = chain(stack, (0, 1), 3)
    stack.load(frozen)
    before = stack.logits(corpus.test.inputs[:8])
    stack.begin(frozen, None, seed=5)
    torch.testing.assert_close(stack.logits(corpus.test.inputs[:8]), before)
    head = {k: v for k, v in stack.trained().items() if k.startswith("classifier.")}
    assert all(torch.equal(v, frozen[-1].tensors[k]) for k, v in head.items())


def test_only_the_new_module_and_its_head_train(stack):
    frozen = chain(stack, (0, 1), 4)
    stack.begin(frozen, None, 1)
    names = {name for name, p in stack.model.named_parameters() if p.requires_grad}
    assert {n for n in names if not n.startswith("classifier.")} == {
        n for n, _ in stack.model.named_parameters() if ".d3." in n
    }
    assert {n for n in names if n.startswith("classifier.")} == {"classifier.weight", "classifier.bias"}
    before = {name: p.clone() for name, p in stack.model.named_parameters() if not p.requires_grad}
    optimiser = torch.optim.SGD(stack.parameters(), lr=1.0)
    out = stack.model(pixel_values=torch.randn(4, 1, 8, 8)).logits
    torch.autograd.backward(out.square().sum())
    optimiser.step()
    after = dict(stack.model.named_parameters())
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_the_first_head_is_seeded_or_the_classifiers_own(config):
    classifier = load_classifier(config)
    own = {name: value.clone() for name, value in classifier.head_parameters()}
    seeded = ModuleStack(classifier, config.module)
    assert not torch.equal(seeded.initial([], 1)["classifier.weight"], own["classifier.weight"])
    assert not torch.equal(
        seeded.initial([], 1)["classifier.weight"], seeded.initial([], 2)["classifier.weight"]
    )
    kept = ModuleStack(load_classifier(config), dataclasses.replace(config.module, head="backbone"))
    assert torch.equal(kept.initial([], 1)["classifier.weight"], own["classifier.weight"])


def test_modules_of_different_prefixes_are_refused(stack):
    a, b = chain(stack, (0, 1), 1), chain(stack, (2, 1), 2)
    with pytest.raises(ModelError, match=r"modules of prefix \(0, 1\)"):
        stack.load([b[0], a[1]])
    with pytest.raises(ModelError, match="modules of prefix"):
        stack.load([a[1]])


def test_a_module_of_another_kind_is_refused(stack, config):
    other = ModuleStack(load_classifier(config), KINDS[2])
    with pytest.raises(ModelError, match="made for another classifier"):
        stack.load(chain(other, (0,), 1))


def test_a_wrong_target_names_the_nearest(config):
    cfg = ModuleConfig(targets=["q_porj"])
    with pytest.raises(ModelError, match="did you mean 'q_proj'"):
        ModuleStack(load_classifier(config), cfg)
    with pytest.raises(ModelError, match="no block 9"):
        ModuleStack(load_classifier(config), ModuleConfig(layers=[9]))


def test_batch_normalisation_is_refused():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    with pytest.raises(ModelError, match="outlive a deletion"):
        refuse_batch_norm(model, "resnet")


def test_presets_of_the_paper_are_as_in_its_experiments():
    for name in ("cifar10", "cifar100", "sst2", "qqp", "qnli", "mnli"):
        config = presets.load_sequential(f"fedsgt-{name}")
        vision = name.startswith("cifar")
        assert (config.data.clients, config.data.slices) == (10, 5)
        assert (config.grouping.groups, config.sequences.budget) == (10, 10)
        assert config.training.local_epochs == (3 if vision else 5)
        assert config.requests.records == 100
