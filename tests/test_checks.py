"""Values out of range and contradictions, one sentence each."""

from __future__ import annotations

from typing import Any

import pytest

from fedforget.checks.run import contradictions
from fedforget.config import RunConfig
from fedforget.errors import ConfigError
from fedforget.presets import parse

RETAIN = {"role": "retain", "domain": "birds"}
CLIENTS = [{"role": "forget", "domain": "herbs", "count": 2}, RETAIN]


def test_nothing_is_wrong_with_the_defaults() -> None:
    config = parse({"clients": CLIENTS}, [])
    assert isinstance(config, RunConfig)
    assert contradictions(config) == []


CASES = [
    ("model.precision=fp8", "model.precision: 'fp8' is not one of fp32, bf16, nf4"),
    ("model.fisher_precision=nf4", "model.fisher_precision: 'nf4' is not one of same, fp32, bf16"),
    ("model.device=gpu", "model.device: 'gpu' is not one of"),
    ("fisher.batch=2 model.fisher_precision=bf16", "fisher.batch: a batch is told apart in fp32 alone"),
    ("fisher.batch=0", "fisher.batch"),
    ("fisher.batch=2 fisher.recompute=true", "works on one sequence at a time"),
    ("model.precision=nf4", "model.fisher_precision: NF4 weights have no gradient"),
    ("lora.r=0", "lora.r: 0 is less than 1"),
    ("lora.alpha=0", "lora.alpha: 0.0 is not a positive number"),
    ("lora.alpha_pattern.q=-1", "lora.alpha_pattern.q: -1.0 is not a positive number"),
    ("lora.dropout=1", "lora.dropout: 1.0 is outside [0, 1)"),
    ("lora.targets=[]", "lora.targets: name at least one module"),
    ("lora.layers=[-1]", "lora.layers: [-1] holds a negative block number"),
    ("data.max_length=1", "data.max_length: 1 is less than 2"),
    ("data.targets=prompt", "data.targets: 'prompt' is not one of answer, all"),
    ("data.family=wmdp data.unseen_share=1", "data.unseen_share: 1.0 is outside [0, 1)"),
    ("data.family=tofu data.unseen_share=0.5", "data.unseen_share: family 'tofu' does not read it"),
    ("data.subset=x", "data.subset, data.split: family 'facts' does not read them"),
    ("data.family=mmlu data.also.mmlu=x", "data.also: 'mmlu' is data.family already"),
    ("data.mmlu.train_splits=[test]", "data.mmlu.train_splits: 'test' is data.mmlu.evaluation_split"),
    ("data.muse.corpus=films", "data.muse.corpus: 'films' is not one of books, news"),
    ("forget.training.loss_limit=0.5", "forget.training.loss_limit: 0.5 is less than 1"),
    ("forget.training.steps=0", "forget.training.steps: 0 is less than 1"),
    ("retain.training.batch_size=0", "retain.training.batch_size: 0 is less than 1"),
    ("forget.training.learning_rate=nan", "forget.training.learning_rate: nan is not a positive number"),
    ("forget.training.max_grad_norm=inf", "forget.training.max_grad_norm: inf is not finite"),
    ("forget.objective.name=rmuu", "forget.objective: unknown objective 'rmuu' (did you mean 'rmu'?)"),
    ("forget.objective.parameters.layr=1", "unknown parameter 'layr' (did you mean 'layer'?)"),
    ("retain.objective.parameters.x=1", "retain.objective: unknown parameter 'x'"),
    ("fisher.num_sequences=0", "fisher.num_sequences: 0 is less than 1"),
    ("merge.gamma=0", "merge.gamma: 0.0 is not a positive number"),
    ("merge.gamma=inf", "merge.gamma: inf is not a positive number"),
    ("merge.alpha=0", "merge.alpha: 0.0 is outside (0, 1]"),
    ("merge.alpha=nan", "merge.alpha: nan is outside (0, 1]"),
    ("merge.epsilon=-1", "merge.epsilon: -1.0 is negative"),
    ("merge.epsilon=nan", "merge.epsilon: nan is negative"),
    ("merge.solver=exat", "merge.solver: 'exat' is not one of exact, increase-only (did you mean 'exact'?)"),
    ("merge.method=firmm", "merge.method: 'firmm' is not one of"),
    ("merge.parameters.gamma=2", "merge.parameters.gamma: has a key of its own; set merge.gamma instead"),
    ("merge.parameters.x=2", "merge.parameters: unknown parameter 'x'"),
    ("merge.method=avg merge.epsilon=1", "merge.epsilon: method 'avg' keeps no budget"),
    ("merge.epsilon=1 merge.epsilon_fraction=.1", "merge: epsilon and epsilon_fraction are both given"),
    ("evaluation.batch_size=0", "evaluation.batch_size: 0 is less than 1"),
    ("evaluation.held_out=[birds]", "evaluation.held_out: 'birds' is a client's domain"),
    ("evaluation.compare.methods=[frm]", "evaluation.compare.methods: 'frm' is not one of"),
    ("evaluation.compare.levels=[0.5,0]", "evaluation.compare.levels: 0.0 is outside (0, 1]"),
    ("evaluation.compare.tolerance=-1", "evaluation.compare.tolerance: -1.0 is less than 0"),
    ("evaluation.compare.parameters.avgg={}", "'avgg' is not one of"),
    ("evaluation.compare.parameters.avg.x=1", "evaluation.compare.parameters.avg: unknown parameter 'x'"),
    (
        "evaluation.compare.parameters.firm-qp.epsilon_fraction=0",
        "epsilon_fraction: 0 is not a positive number",
    ),
    ("simulation.nodes=0", "simulation.nodes: 0 is less than 1"),
    ("simulation.timeout=0", "simulation.timeout: 0.0 is not a positive number"),
]


@pytest.mark.parametrize(("overrides", "message"), CASES)
def test_one_sentence_names_the_key(overrides: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse({"clients": CLIENTS}, overrides.split())
    (problem,) = caught.value.problems
    assert message in problem


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([RETAIN], "clients: no forget client"),
        ([], "clients: no forget client"),
        ([*CLIENTS, {"role": "retian", "domain": "a"}], "(did you mean 'retain'?)"),
        ([*CLIENTS, {"role": "retain", "domain": ""}], "clients[2].domain: is empty"),
        (
            [*CLIENTS, {"role": "retain", "domain": "a/b"}],
            "clients[2].domain: makes the client id 'retain-a/b-1'",
        ),
        ([*CLIENTS, {"role": "retain", "domain": "a", "count": 0}], "clients[2].count: 0 is less than 1"),
        ([*CLIENTS, RETAIN], "clients: 'retain-birds-0' appears twice"),
        ([*CLIENTS, {"role": "retain", "domain": "herbs"}], "domain 'herbs' is both forgotten and retained"),
    ],
)
def test_clients_that_do_not_fit(clients: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse({"clients": clients}, [])
    assert message in "\n".join(caught.value.problems)


def test_a_budget_needs_someone_to_protect() -> None:
    with pytest.raises(ConfigError, match="a finite budget needs a retain client"):
        parse({"clients": CLIENTS[:1]}, ["merge.epsilon=1"])


def test_what_a_budget_may_be() -> None:
    for override in ("merge.epsilon=0", "merge.epsilon=inf", "merge.epsilon_fraction=0.1"):
        assert contradictions(parse({"clients": CLIENTS}, [override])) == []
