"""What is measured for which domain, and how domains are averaged."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedforget.config import ClientGroup, EvaluationConfig, RunConfig
from fedforget.data import Example, Question
from fedforget.errors import DataError
from fedforget.evaluation import Accuracy, Suite, collapsed, domains, evaluate
from fedforget.evaluation.suite import mean
from fedforget.models import Backbone
from fedforget.reporting.tables import chance_note

CONFIG = RunConfig(
    clients=[
        ClientGroup("forget", "herbs", count=2),
        ClientGroup("forget", "stars"),
        ClientGroup("retain", "birds"),
    ],
    evaluation=EvaluationConfig(held_out=["tools"], rouge=False),
)


class Source:
    """Questions with one right answer that the test can move, and a count of requests."""

    def __init__(self, empty: str = "") -> None:
        self.empty = empty
        self.asked: list[tuple[str, str, str]] = []

    def questions(self, domain: str, role: str, split: str) -> list[Question]:
        self.asked.append((domain, role, split))
        if domain == self.empty:
            return []
        choices = (" the", " a", " of", " star")
        return [
            Question(f"{domain}-{i}", domain, "the herb of" + " the" * i, choices, i % 4, split)
            for i in range(8)
        ]

    def general_text(self) -> list[str]:
        return ["the herb of a star"]

    def domains(self) -> list[str]:
        return []

    def units(self, domain: str, role: str) -> list[list[Example]]:
        return []

    def training(self, domain: str, role: str) -> list[Example]:
        return []


def test_domains_follow_the_clients() -> None:
    assert domains(CONFIG) == {"forget": ["herbs", "stars"], "retain": ["birds"], "held_out": ["tools"]}


def test_everything_is_measured_with_its_role(tiny_backbone: Backbone) -> None:
    found = evaluate(tiny_backbone, Source(), CONFIG)
    assert {name: one["role"] for name, one in found["domains"].items()} == {
        "herbs": "forget",
        "stars": "forget",
        "birds": "retain",
        "tools": "held_out",
    }
    assert found["forget"]["count"] == 16
    assert found["retain"]["chance"] == 0.25
    assert found["perplexity"]["texts"] == 1
    assert found["split"] == "report"


def test_a_clients_own_file_may_be_of_a_domain_that_the_data_has_no_questions_on(
    tiny_backbone: Backbone,
) -> None:
    own = [ClientGroup("forget", "mine", path="mine.csv"), ClientGroup("retain", "birds", path="more.csv")]
    source = Source()
    source.domains = lambda: ["birds"]  # type: ignore[method-assign]
    found = evaluate(tiny_backbone, source, replace(CONFIG, clients=own), parts=("forget", "retain"))
    assert (list(found["domains"]), found["unasked"], "forget" in found) == (["birds"], ["mine"], False)
    assert "no questions on it: mine." in chance_note(found)


def test_only_the_forget_part(tiny_backbone: Backbone) -> None:
    source = Source()
    found = Suite(tiny_backbone, source, CONFIG).evaluate(split="select", parts=("forget",))
    assert set(found) == {"split", "domains", "forget", "collapse"}
    assert {domain for domain, _, _ in source.asked} == {"herbs", "stars"}
    assert {split for _, _, split in source.asked} == {"select"}


def test_questions_are_asked_for_once(tiny_backbone: Backbone) -> None:
    source = Source()
    suite = Suite(tiny_backbone, source, CONFIG)
    first = suite.evaluate()
    assert suite.evaluate() == first
    assert len(source.asked) == 4


def test_a_limit_takes_the_first_questions(tiny_backbone: Backbone) -> None:
    config = replace(CONFIG, evaluation=replace(CONFIG.evaluation, max_questions=3))
    assert evaluate(tiny_backbone, Source(), config)["forget"]["count"] == 6


def test_deltas_are_added_and_taken_away(tiny_backbone: Backbone) -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    weight = dict(tiny_backbone.model.named_parameters())[name]
    before = weight.clone()
    suite = Suite(tiny_backbone, Source(), CONFIG)
    plain = suite.evaluate()["perplexity"]["perplexity"]
    moved = suite.evaluate({name: torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))})
    assert moved["perplexity"]["perplexity"] != plain
    assert 0.0 < moved["lost_in_rounding"] < 1e-6
    assert torch.equal(weight, before)
    assert suite.evaluate()["perplexity"]["perplexity"] == plain


def test_a_domain_without_questions_is_named(tiny_backbone: Backbone) -> None:
    with pytest.raises(DataError, match=r"domain 'birds' \(retain\) has no questions in the 'report' split"):
        evaluate(tiny_backbone, Source("birds"), CONFIG)


def test_an_unknown_split(tiny_backbone: Backbone) -> None:
    with pytest.raises(DataError, match="split 'test' is neither"):
        evaluate(tiny_backbone, Source(), CONFIG, split="test")


def test_mean_over_domains_by_hand() -> None:
    # (.5 + .9) / 2; errors .03 and .04 independent: sqrt(.03^2 + .04^2) / 2 = .025.
    found = mean([Accuracy(0.5, 10, 0.03, 0.25), Accuracy(0.9, 30, 0.04, 0.5)])
    assert found.accuracy == pytest.approx(0.7)
    assert found.count == 40
    assert found.standard_error == pytest.approx(0.025)
    assert found.chance == pytest.approx(0.375)


@pytest.mark.parametrize(
    ("retain", "held_out", "wanted"),
    [(0.26, 0.9, []), (0.25, 0.9, ["retain"]), (0.1, 0.2, ["retain", "held_out"])],
)
def test_collapse_is_at_or_below_chance(retain: float, held_out: float, wanted: list[str]) -> None:
    result: dict[str, Any] = {
        "retain": {"accuracy": retain, "chance": 0.25},
        "held_out": {"accuracy": held_out, "chance": 0.25},
        "forget": {"accuracy": 0.0, "chance": 0.25},
    }
    assert collapsed(result) == wanted


def test_rouge_is_measured_where_asked(tiny_backbone: Backbone) -> None:
    evaluation = EvaluationConfig(rouge=True, perplexity=False, max_questions=2)
    config = RunConfig(clients=[ClientGroup("forget", "herbs")], evaluation=evaluation)
    found = evaluate(tiny_backbone, Source(), config)["rouge"]["herbs"]
    assert found["count"] == 2
    assert 0.0 <= found["recall"] <= 1.0
    assert not math.isnan(found["f1"])
