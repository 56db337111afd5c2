"""Serving: one batched pass equals separate models, rules and weights are the paper's, the end is said."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fedsgt_helpers import chain

from fedforget.sequences import select
from fedforget.sequential.classifiers import load_classifier
from fedforget.sequential.config import ModuleConfig
from fedforget.sequential.serving import Predictor, ServiceEndedError, serving_selection
from fedforget.sequential.stack import ModuleStack

KINDS = [
    ModuleConfig(kind="lora", r=2, alpha=4, targets=["q_proj", "v_proj", "fc1"]),
    ModuleConfig(kind="ia3", targets=["q_proj", "fc2"], feedforward=["fc2"]),
    ModuleConfig(kind="dora", r=2, alpha=4),
]
SEQUENCES = [(0, 1, 2), (2, 0, 1), (1, 2, 0), (0, 2, 1)]


@pytest.mark.parametrize("deleted", [(), (1,)])
@pytest.mark.parametrize("cfg", KINDS, ids=lambda cfg: cfg.kind)
def test_one_pass_equals_separate_models(config, corpus, cfg, deleted):
    stack = ModuleStack(load_classifier(config), cfg)
    modules = {}
    for seed, sequence in enumerate(SEQUENCES):
        for module in chain(stack, sequence, seed):
            if not set(module.prefix) & set(deleted):
                modules.setdefault(module.prefix, module)
    inputs = corpus.test.inputs[:21]
    predictor = Predictor(load_classifier(config), cfg, modules, SEQUENCES, "AllSeq", batch_size=8)
    expected = np.zeros((len(inputs), 10))
    for one in select(SEQUENCES, deleted, "AllSeq"):
        stack.load([modules[one.prefix[:d]] for d in range(1, len(one.prefix) + 1)])
        expected += one.weight * torch.softmax(stack.logits(inputs).double(), -1).numpy()
    found = predictor.probabilities(inputs)
    # One fp32 product of concatenated factors instead of a sum of several: rounding alone differs.
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    assert predictor.predict(inputs).tolist() == expected.argmax(axis=1).tolist()


def test_serving_leaves_the_classifier_as_it_was(config, corpus, trained):
    classifier = load_classifier(config)
    before = {name: value.clone() for name, value in classifier.model.state_dict().items()}
    predictor = Predictor(classifier, config.module, trained.modules, trained.plan.sequences)
    predictor.predict(corpus.test.inputs[:4])
    after = classifier.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in classifier.model.modules())


def test_shared_prefixes_run_once_with_their_whole_weight(config, trained):
    # After deleting 2, (0, 1, 2) and (0, 2, 1) end as (0, 1) and (0,); after 1 and 2 both as (0,).
    available = {(0,): trained.modules[(0,)]}
    predictor = Predictor(load_classifier(config), config.module, available, [(0, 1, 2), (0, 2, 1)])
    assert [(one.index, one.prefix, one.weight) for one in predictor.selected] == [
        (0, (0,), 0.5),
        (1, (0,), 0.5),
    ]
    assert predictor.state == "1 models serve 2 sequences, the longest with 1 modules"


@pytest.mark.parametrize("rule", ["AllSeq", "MinSeq", "LongSeq"])
@pytest.mark.parametrize("deleted", [(), (0,), (1, 2), (0, 1, 2)])
def test_selection_from_modules_is_selection_from_deletions(rule, deleted):
    available = {s[:d] for s in SEQUENCES for d in (1, 2, 3) if not set(s[:d]) & set(deleted)}
    assert serving_selection(SEQUENCES, available, rule) == select(SEQUENCES, deleted, rule)


def test_a_module_without_its_beginning_does_not_serve():
    assert serving_selection([(0, 1, 2)], [(0,), (0, 1, 2)], "AllSeq")[0].prefix == (0,)


def test_the_end_of_service_is_said(config, corpus):
    predictor = Predictor(load_classifier(config), config.module, {}, SEQUENCES)
    assert not predictor.available
    assert "service has ended" in predictor.state
    with pytest.raises(ServiceEndedError, match="fedforget repair"):
        predictor.predict(corpus.test.inputs[:2])
