"""TOFU's numbers by hand and against scipy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import hmean, ks_2samp

from fedforget.data import Pair
from fedforget.errors import DataError
from fedforget.evaluation import tofu
from fedforget.evaluation.likelihoods import TokenScores
from fedforget.evaluation.measures import Subject
from fedforget.evaluation.tofu import (
    forget_quality,
    forget_truth_ratio,
    likelihood_row,
    model_utility,
    tofu_summary,
    utility_truth_ratio,
)

LOG2 = math.log(2)


def test_a_questions_likelihoods_by_hand() -> None:
    # P(answer) 1/2, P(paraphrase) 1/4, wrong answers 1/4 and 1/16: their geometric mean is 1/8, R 1/2.
    row = likelihood_row(LOG2, 2 * LOG2, [2 * LOG2, 4 * LOG2], relative=False)
    assert row["probability"] == pytest.approx(0.5)
    assert math.exp(row["log_truth_ratio"]) == pytest.approx(0.5)
    # Relative to the wrong ones: (1/2) / (1/2 + 1/4 + 1/16) = 8/13.
    relative = likelihood_row(LOG2, LOG2, [2 * LOG2, 4 * LOG2], relative=True)
    assert relative["probability"] == pytest.approx(8 / 13)
    # A ruined model's probabilities all underflow; what is left is which is larger.
    assert likelihood_row(2000.0, 2000.0, [2000.0], relative=True)["probability"] == 0.5
    assert likelihood_row(9000.0, 9000.0, [1.0], relative=True)["probability"] < 1e-300


def test_truth_ratios() -> None:
    for ratio in (0.5, 2.0):
        assert forget_truth_ratio(math.log(ratio)) == pytest.approx(0.5)
    assert utility_truth_ratio(math.log(0.25)) == pytest.approx(0.75)
    assert utility_truth_ratio(math.log(3)) == 0.0
    assert utility_truth_ratio(5000.0) == 0.0
    assert forget_truth_ratio(-5000.0) == 0.0


def test_model_utility_is_a_harmonic_mean() -> None:
    assert model_utility([1.0, 0.5, 0.25]) == pytest.approx(3 / 7)  # 3 / (1 + 2 + 4)
    assert model_utility([0.9, 0.0, 0.8]) == 0.0


def test_forget_quality_is_scipys() -> None:
    draw = np.random.default_rng(1)
    ours = [{"id": str(i), "log_truth_ratio": float(v)} for i, v in enumerate(draw.normal(0, 1, 40))]
    theirs = [{"id": str(i), "log_truth_ratio": float(v)} for i, v in enumerate(draw.normal(0.6, 1, 40))]
    ratios = [[math.exp(row["log_truth_ratio"]) for row in rows] for rows in (ours, theirs)]
    assert forget_quality(ours, theirs)["p_value"] == pytest.approx(ks_2samp(*ratios).pvalue)
    assert forget_quality(ours, ours)["p_value"] == 1.0
    with pytest.raises(DataError, match="other questions"):
        forget_quality(ours, theirs[:-1])


def rows(right: float = 0.5) -> dict[str, Any]:
    """Two questions a set: NLLs 1 and 2 of the answer, and of three wrong answers ``right`` above."""
    found: dict[str, Any] = {}
    for name in ("forget", "retain", "real_authors", "world_facts"):
        found[f"{name}-rouge"] = [{"id": "a", "rouge_l_recall": 0.5}, {"id": "b", "rouge_l_recall": 1.0}]
        found[f"{name}-likelihoods"] = [
            {"id": i}
            | likelihood_row(n, n, [n + right] * 3, relative=name in ("real_authors", "world_facts"))
            for i, n in (("a", 1.0), ("b", 2.0))
        ]
    return found


def test_the_summary_by_hand() -> None:
    found = tofu_summary(rows(), rows())
    own, ratio = (math.exp(-1) + math.exp(-2)) / 2, math.exp(-0.5)
    relative = 1 / (1 + 3 * math.exp(-0.5))
    assert found["sets"]["forget"]["truth_ratio"] == pytest.approx(ratio)
    assert found["sets"]["retain"] == pytest.approx(
        {"rouge_l_recall": 0.75, "probability": own, "truth_ratio": 1 - ratio, "count": 2}
    )
    assert found["sets"]["world_facts"]["probability"] == pytest.approx(relative)
    numbers = [0.75, own, 1 - ratio] + [0.75, relative, 1 - ratio] * 2
    assert found["model_utility"] == pytest.approx(hmean(numbers))
    assert found["forget_quality"]["p_value"] == 1.0
    assert found["collapse"] == []
    assert "forget_quality" not in tofu_summary(rows())


def test_wrong_answers_that_are_likelier_are_a_collapse() -> None:
    found = tofu_summary(rows(right=-0.5))
    assert found["model_utility"] == 0.0
    assert found["collapse"] == ["real_authors", "world_facts", "model_utility"]


PAIR = Pair(
    "q", "d", "Who?", "He was running", paraphrased_answer="Running he was", perturbed_answers=("She sat",)
)


def test_answers_are_scored_by_stemmed_recall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tofu, "generate", lambda *_, **__: ["He runs fast today"])
    (row,) = tofu.answered("x", [PAIR]).compute(Subject(None, None))
    assert row["rouge_l_recall"] == pytest.approx(
        2 / 3
    )  # "he" and the stem "run" of the answer's three words


@pytest.mark.parametrize(("relative", "base"), [(False, "Running he was"), (True, "He was running")])
def test_the_paraphrase_is_what_wrong_answers_are_compared_with(
    monkeypatch: pytest.MonkeyPatch, relative: bool, base: str
) -> None:
    nothing = np.empty(0)
    losses = {" He was running": 1.0, " Running he was": 2.0, " She sat": 4.0}
    monkeypatch.setattr(tofu, "encode", lambda tokenizer, examples, length: [one.text for one in examples])
    monkeypatch.setattr(
        tofu,
        "token_scores",
        lambda model, texts, **_: [TokenScores(np.array([-losses[one]]), nothing, nothing) for one in texts],
    )
    (row,) = tofu._likelihoods("x", [PAIR], relative=relative).compute(Subject(None, None))
    assert (row["answer_nll"], row["base_nll"], row["perturbed_nll"]) == (1.0, losses[f" {base}"], [4.0])
