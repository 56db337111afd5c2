"""The comparison at matched forgetting: what it may look at, and what it records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from fedforget.config import ClientGroup, CompareConfig, EvaluationConfig, MergeConfig, RunConfig
from fedforget.errors import ConfigError, RunError
from fedforget.merging import calibrate_epsilon
from fedforget.pooling import interval
from fedforget.summaries import ClientSummary
from fedforget.sweeps.compare import compare, pool, variant

SHAPE = (8, 8)


def summary(name: str, role: Any, domain: str, seed: int) -> ClientSummary:
    generator = torch.Generator().manual_seed(seed)
    return ClientSummary(
        name,
        role,
        domain,
        10,
        {"w": torch.randn(SHAPE, generator=generator)},
        {"w": torch.rand(SHAPE, generator=generator)},
    )


SUMMARIES = [
    summary("f0", "forget", "herbs", 0),
    summary("f1", "forget", "stars", 1),
    summary("r0", "retain", "birds", 2),
]


def config(**changes: Any) -> RunConfig:
    settings = CompareConfig(methods=["firm", "firm-qp", "avg"], levels=[0.5], max_evaluations=8)
    return RunConfig(
        clients=[
            ClientGroup("forget", "herbs"),
            ClientGroup("forget", "stars"),
            ClientGroup("retain", "birds"),
        ],
        merge=MergeConfig(epsilon_fraction=0.05, epsilon_gamma=2.0),
        evaluation=EvaluationConfig(compare=settings),
        **changes,
    )


class Measured:
    """Stands for a suite: accuracy falls with the update's norm; utility is what the test says it is."""

    def __init__(self, utility: float = 0.8) -> None:
        self.utility = utility
        self.calls: list[tuple[str, tuple[str, ...] | None]] = []

    def evaluate(
        self,
        deltas: Mapping[str, Tensor] | None = None,
        split: str = "report",
        parts: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        self.calls.append((split, None if parts is None else tuple(parts)))
        norm = 0.0 if deltas is None else float(deltas["w"].norm())
        found = {
            name: {"role": "forget", "accuracy": 0.25 + 0.6 / (1 + norm / scale), "count": 50}
            | {"standard_error": 0.05, "chance": 0.25}
            for name, scale in (("herbs", 4.0), ("stars", 5.0))
        }
        one = {"count": 100, "standard_error": 0.03, "chance": 0.25}
        result: dict[str, Any] = {"split": split, "domains": found, "collapse": []}
        result["forget"] = {"accuracy": sum(v["accuracy"] for v in found.values()) / 2, **one}
        if parts is None:
            result["retain"] = {"accuracy": self.utility, **one}
        return result


def test_every_method_is_matched_and_reported() -> None:
    found = compare(Measured(), SUMMARIES, config())  # type: ignore[arg-type]
    (entry,) = found["levels"]
    # .85 - .5 * (.85 - .25) = .55 in both domains.
    assert entry["target"] == pytest.approx({"herbs": 0.55, "stars": 0.55})
    assert list(entry["methods"]) == ["firm", "firm-qp", "avg"]
    for one in entry["methods"].values():
        assert one["matched"]
        assert abs(one["gap"]) <= 0.04
        assert one["report"]["split"] == "report"
        assert one["gamma"] in [point["gamma"] for point in one["evaluated"]]
        assert one["parameters"]["gamma"] == one["gamma"]
    assert entry["methods"]["firm"]["parameters"]["epsilon"] == math.inf
    assert entry["methods"]["firm-qp"]["parameters"]["epsilon"] == pytest.approx(
        calibrate_epsilon(SUMMARIES, 0.05, 2.0)
    )


def test_without_retain_clients_the_budgeted_method_is_left_out_and_it_is_said() -> None:
    said: list[str] = []
    found = compare(Measured(), SUMMARIES[:2], config(), progress=said.append)  # type: ignore[arg-type]
    assert list(found["levels"][0]["methods"]) == ["firm", "avg"]
    assert said[0].startswith("firm-qp is left out")
    with pytest.raises(ConfigError, match="needs a retain client"):
        compare(Measured(), SUMMARIES[:2], config(), names=["firm-qp"])  # type: ignore[arg-type]


def test_without_a_budget_the_budgeted_method_is_left_out_and_it_is_said() -> None:
    said: list[str] = []
    settings = config()
    settings.merge = MergeConfig()
    found = compare(Measured(), SUMMARIES, settings, progress=said.append)  # type: ignore[arg-type]
    assert list(found["levels"][0]["methods"]) == ["firm", "avg"]
    assert said[0].startswith("firm-qp is left out: the run has no budget; set merge.epsilon_fraction")


def test_what_was_measured_before_is_not_measured_again() -> None:
    suite = Measured()
    before = Measured(0.7).evaluate()
    assert compare(suite, SUMMARIES, config(), before=before)["before"] == before  # type: ignore[arg-type]
    # One report per method, none for the backbone.
    assert [call for call in suite.calls if call[1] is None] == [("report", None)] * 3


def test_selection_sees_forget_questions_of_the_selection_split_alone() -> None:
    suite = Measured()
    compare(suite, SUMMARIES, config())  # type: ignore[arg-type]
    assert {call for call in suite.calls if call[1] is not None} == {("select", ("forget",))}
    # One report before, and one per method.
    assert [call for call in suite.calls if call[1] is None] == [("report", None)] * 4


@pytest.mark.parametrize("utility", [0.0, 0.25, 1.0])
def test_utility_does_not_change_the_choice(utility: float) -> None:
    wanted = compare(Measured(), SUMMARIES, config())["levels"][0]["methods"]  # type: ignore[arg-type]
    found = compare(Measured(utility), SUMMARIES, config())["levels"][0]["methods"]  # type: ignore[arg-type]
    assert {name: one["gamma"] for name, one in found.items()} == {
        name: one["gamma"] for name, one in wanted.items()
    }


def test_a_match_that_cannot_be_had_is_flagged() -> None:
    settings = config()
    settings.evaluation.compare.max_evaluations = 1
    settings.evaluation.compare.parameters = {"avg": {"gamma": 100.0}}
    found = compare(Measured(), SUMMARIES, settings, names=["avg"])["levels"][0]["methods"]["avg"]  # type: ignore[arg-type]
    assert found["gamma"] == 100.0
    assert not found["matched"]
    assert found["gap"] < -0.04


def test_levels_share_their_points() -> None:
    suite = Measured()
    found = compare(suite, SUMMARIES, config(), names=["avg"], levels=[0.5, 0.52])  # type: ignore[arg-type]
    first, second = (entry["methods"]["avg"]["evaluated"] for entry in found["levels"])
    assert [point for point in first if point in second] == first


def test_variants() -> None:
    settings = config()
    settings.evaluation.compare.parameters = {
        "firm-qp": {"epsilon": 0.5, "gamma": 5.0},
        "firm": {"alpha": 0.2},
    }
    qp = variant("firm-qp", settings, SUMMARIES)
    assert (qp.method, qp.parameters["epsilon"], qp.start) == ("firm", 0.5, 5.0)
    assert variant("firm", settings, SUMMARIES).parameters["alpha"] == 0.2
    assert variant("avg", settings, SUMMARIES).parameters == {}


@pytest.mark.parametrize(
    ("name", "merge", "summaries", "message"),
    [
        ("firmm", MergeConfig(), SUMMARIES, r"unknown method 'firmm' to compare \(did you mean 'firm'\?\)"),
        ("firm-qp", MergeConfig(), SUMMARIES, "firm-qp has no budget"),
        ("firm-qp", MergeConfig(epsilon=1.0), SUMMARIES[:2], "firm-qp needs a retain client"),
    ],
)
def test_variants_that_cannot_run(
    name: str, merge: MergeConfig, summaries: list[ClientSummary], message: str
) -> None:
    settings = config()
    settings.merge = merge
    with pytest.raises(ConfigError, match=message):
        variant(name, settings, summaries)


def test_interval_by_hand() -> None:
    # Mean 2, sample deviation 1, n = 3: half width t(.975, 2) / sqrt(3) = 4.303 / 1.732.
    found = interval([1.0, 2.0, 3.0])
    assert found["mean"] == 2.0
    assert found["half_width"] == pytest.approx(float(stats.t.ppf(0.975, 2)) / math.sqrt(3))
    assert found["half_width"] == pytest.approx(2.484, abs=1e-3)
    assert interval([1.0])["half_width"] == math.inf


def test_pooling_seeds() -> None:
    runs = [
        compare(Measured(utility), SUMMARIES, config(), names=["avg"])  # type: ignore[arg-type]
        for utility in (0.7, 0.8, 0.9)
    ]
    (row,) = pool(runs)
    assert (row["level"], row["method"], row["matched"]) == (0.5, "avg", 3)
    assert row["retain"]["mean"] == pytest.approx(0.8)
    assert row["retain"]["values"] == [0.7, 0.8, 0.9]
    assert "held_out" not in row


def test_pooling_what_does_not_belong_together() -> None:
    one = compare(Measured(), SUMMARIES, config(), names=["avg"])  # type: ignore[arg-type]
    other = compare(Measured(), SUMMARIES, config(), names=["sum"])  # type: ignore[arg-type]
    with pytest.raises(RunError, match="differ in levels or methods"):
        pool([one, other])
    with pytest.raises(RunError, match="no comparisons"):
        pool([])
