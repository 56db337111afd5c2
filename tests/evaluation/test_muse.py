"""MUSE's numbers by hand, and what is asked of the model."""

from __future__ import annotations

from typing import Any

import pytest

from fedforget.data import Example, Pair
from fedforget.errors import DataError
from fedforget.evaluation import muse
from fedforget.evaluation.generation import generate
from fedforget.evaluation.measures import Subject
from fedforget.evaluation.muse import answer_alone, knowledge, muse_summary, privacy_leak
from fedforget.models import Backbone


@pytest.mark.parametrize(
    ("auc", "retrained", "wanted"),
    [(1.0, 0.5, -100.0), (0.5, 0.5, 0.0), (0.0, 0.5, 100.0), (0.8, 0.6, -50.0)],
)
def test_privacy_leak_by_hand(auc: float, retrained: float, wanted: float) -> None:
    # Of the forget set taken for unseen text: (0.2 - 0.4) / 0.4 is -50 %, it still leaks.
    assert privacy_leak(auc, retrained) == pytest.approx(wanted)


def test_privacy_leak_needs_a_reference_that_never_saw_the_set() -> None:
    with pytest.raises(DataError, match="nothing to relate to"):
        privacy_leak(0.5, 1.0)


@pytest.mark.parametrize(
    "text", [" Hogwarts\n\nmore", "Hogwarts\nQuestion: Who", "Hogwarts question: x", "Hogwarts "]
)
def test_an_answer_ends_before_the_next_question(text: str) -> None:
    assert answer_alone(text) == "Hogwarts"


def test_answered_questions_come_first(byte_backbone: Backbone) -> None:
    pairs = [Pair("a", "x", "Who is he?", "a wizard"), Pair("b", "x", "Where is it?", "there")]
    measure = knowledge(
        "knowmem-forget", pairs, [Pair("s", "x", "Who?", "Someone"), Pair("t", "x", "What?", "It")]
    )
    before = "Question: Who?\nAnswer: Someone\n\nQuestion: What?\nAnswer: It\n\n"
    prompt = f"{before}Question: Who is he?\nAnswer:"
    assert measure.asked[0] == ("a", repr((prompt, "a wizard")))
    rows = measure.compute(Subject(byte_backbone.model, byte_backbone.tokenizer, batch_size=1))
    (alone,) = generate(byte_backbone.model, byte_backbone.tokenizer, [prompt], max_new_tokens=32)
    assert rows[0]["prediction"] == answer_alone(alone)


def summary_rows(known: float) -> dict[str, Any]:
    attacks = ("loss", "min_k", "min_k_plus_plus")
    return {
        "verbmem": [{"rouge_l_f1": 0.25}, {"rouge_l_f1": 0.75}],
        "knowmem-forget": [{"rouge_l_f1": 0.5}],
        "knowmem-retain": [{"rouge_l_f1": known}],
        "privleak-forget": [dict.fromkeys(attacks, v) for v in (-1.0, -3.0)],
        "privleak-holdout": [dict.fromkeys(attacks, v) for v in (-2.0, -4.0)],
    }


def test_the_summary_by_hand() -> None:
    reference = summary_rows(0.5)
    reference["privleak-forget"], reference["privleak-holdout"] = (
        reference["privleak-holdout"],
        reference["privleak-forget"],
    )
    found = muse_summary(summary_rows(0.5), reference)
    assert (found["verbmem"], found["knowmem_forget"], found["collapse"]) == (0.5, 0.5, [])
    # -1 beats both, -3 beats -4 alone: 3 of 4; the reference's is 1 of 4.
    assert found["membership"]["min_k"]["value"] == 0.75
    assert found["privleak"] == pytest.approx(100 * (0.25 - 0.75) / 0.75)
    assert muse_summary(summary_rows(0.0))["collapse"] == ["knowmem_retain"]
    assert "privleak" not in muse_summary(summary_rows(0.5))


def test_answers_are_scored_by_unstemmed_f1_up_to_the_next_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muse, "generate", lambda *_, **__: ["running wild\n\nQuestion: What else is wild?"])
    (row,) = knowledge("x", [Pair("q", "d", "How?", "run wild")], []).compute(Subject(None, None))
    assert row["prediction"] == "running wild"
    assert row["rouge_l_f1"] == 0.5  # "wild" of two words on either side; stems would make it 1


def test_a_continuation_is_compared_with_as_many_tokens_of_the_true_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Words:
        def __call__(self, text: str, **_: Any) -> dict[str, list[str]]:
            return {"input_ids": text.split()}

        def decode(self, words: list[str], **_: Any) -> str:
            return " ".join(words)

    words = [f"w{i}" for i in range(200)]
    monkeypatch.setattr(muse, "generate", lambda *_, max_new_tokens, **__: [" ".join(words[:max_new_tokens])])
    passage = Example("p", "d", " ".join(words), prompt="Once")
    (row,) = muse._verbatim([passage]).compute(Subject(None, Words()))
    assert row["rouge_l_f1"] == 1.0
    assert len(row["reference"].split()) == 128
