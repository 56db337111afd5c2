"""`evaluation.suite: benchmark`: runs and comparisons by the benchmarks' own measures."""

from __future__ import annotations

from pathlib import Path

import benchmark_files
import pytest

from fedforget.config import ClientGroup, EvaluationConfig, RunConfig
from fedforget.data import load_data
from fedforget.data_config import DataConfig
from fedforget.evaluation import Suite, collapsed
from fedforget.evaluation.answers import answers
from fedforget.evaluation.measures import Subject
from fedforget.models import Backbone
from fedforget.sweeps.matching import targets


@pytest.fixture(autouse=True)
def short_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedforget.evaluation.tofu.NEW_TOKENS", 20)  # of 200: for speed alone


def suite(
    family: str, clients: list[ClientGroup], held_out: list[str], folder: Path, model: Backbone
) -> Suite:
    data = DataConfig(
        family=family,
        path=str(getattr(benchmark_files, family)(folder / family)),
        also={"mmlu": str(benchmark_files.mmlu(folder / "mmlu"))},
    )
    evaluation = EvaluationConfig(
        suite="benchmark", perplexity=False, held_out=held_out, max_questions=3, batch_size=3
    )
    return Suite(model, load_data(data, 0), RunConfig(data=data, clients=clients, evaluation=evaluation))


def test_tofu_is_measured_as_in_the_paper(tmp_path: Path, byte_backbone: Backbone) -> None:
    clients = [ClientGroup("forget", "forget01"), ClientGroup("retain", "retain90")]
    one = suite("tofu", clients, ["real_authors", "mmlu"], tmp_path, byte_backbone)
    found = one.evaluate()
    measures = {name: domain["measure"] for name, domain in found["domains"].items()}
    assert measures == {
        "forget01": "ROUGE-L recall",
        "retain90": "ROUGE-L recall",
        "real_authors": "ROUGE-L recall",
        "mmlu": "accuracy",
    }
    assert (found["forget"]["measure"], found["held_out"]["measure"]) == (
        "ROUGE-L recall",
        "several measures",
    )
    asked = answers(one.data, "forget01", "forget", "report", 3)
    assert asked is not None
    rows = asked.measure.compute(Subject(byte_backbone.model, byte_backbone.tokenizer, 3))
    values = [row["rouge_l_recall"] for row in rows]
    assert found["forget"]["accuracy"] == pytest.approx(sum(values) / 3)
    # Settings are chosen on other questions than results are reported on.
    other = answers(one.data, "forget01", "forget", "select")
    assert other is not None
    assert not {name for name, _ in asked.measure.asked} & {name for name, _ in other.measure.asked}
    # What compare matches: the share of the way to no answer at all.
    before = {"forget01": {"accuracy": 0.8, "chance": found["forget"]["chance"]}}
    assert targets(before, 0.25) == {"forget01": pytest.approx(0.6)}


def test_muse_is_measured_by_its_knowledge_questions(tmp_path: Path, byte_backbone: Backbone) -> None:
    clients = [ClientGroup("forget", "books"), ClientGroup("retain", "mmlu")]
    found = suite("muse", clients, [], tmp_path, byte_backbone).evaluate()
    assert found["domains"]["books"]["measure"] == "ROUGE-L F1"
    assert (found["retain"]["measure"], found["retain"]["chance"]) == ("accuracy", 0.25)


def test_of_several_measures_one_at_chance_is_a_collapse() -> None:
    domains = {
        "real_authors": {"role": "held_out", "accuracy": 0.9, "chance": 0.0},
        "mmlu": {"role": "held_out", "accuracy": 0.25, "chance": 0.25},
    }
    mean = {"accuracy": 0.575, "chance": 0.125, "measure": "several measures"}
    assert collapsed({"held_out": mean, "domains": domains}) == ["held_out"]
    domains["mmlu"]["accuracy"] = 0.3
    assert collapsed({"held_out": mean, "domains": domains}) == []
