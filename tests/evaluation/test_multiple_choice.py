"""The packed scorer against the plain definition, and the bookkeeping around it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fedforget.data import Question
from fedforget.errors import DataError
from fedforget.evaluation import ItemScore, prepare, score, summarise
from fedforget.evaluation.multiple_choice import likeliest, supports_packing
from fedforget.evaluation.token_tree import TokenTree
from fedforget.models import Backbone

PROMPTS = ("the herb of", "the herb of the", "a star", "the herb")
CHOICES = ((" of a star", " the", " herb of the", " a"), (" the", " of"), (" star", " herb star", " a a a"))


def question(i: int, **changes: Any) -> Question:
    values = {
        "id": f"q{i}",
        "domain": "herbs",
        "prompt": PROMPTS[i % len(PROMPTS)],
        "choices": CHOICES[i % len(CHOICES)],
        "answer": i % 2,
        "split": "report",
    }
    return Question(**{**values, **changes})


def by_definition(backbone: Backbone, one: Question) -> list[float]:
    """log p(choice | prompt), token by token from the model's own logits, one text at a time."""
    found = []
    start = len(backbone.tokenizer(one.prompt)["input_ids"])
    for choice in one.choices:
        ids = backbone.tokenizer(one.prompt + choice)["input_ids"]
        with torch.no_grad():
            logp = backbone.model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        found.append(sum(float(logp[at - 1, ids[at]]) for at in range(start, len(ids))))
    return found


@pytest.mark.parametrize("batch_size", [1, 5, 32])
@pytest.mark.parametrize("packed", [True, False])
def test_scores_are_log_likelihoods(tiny_backbone: Backbone, packed: bool, batch_size: int) -> None:
    questions = [question(i) for i in range(12)]
    prepared = prepare(tiny_backbone.tokenizer, questions)
    found = score(tiny_backbone.model, prepared, normalise="none", batch_size=batch_size, packed=packed)
    assert [one.id for one in found] == [one.id for one in questions]
    for one, scored in zip(questions, found, strict=True):
        assert scored.scores == pytest.approx(by_definition(tiny_backbone, one), abs=1e-4)
        assert scored.prediction == max(range(len(scored.scores)), key=scored.scores.__getitem__)
        assert scored.answer == one.answer


def test_a_ruined_model_chooses_nothing() -> None:
    assert likeliest([-2.0, -1.0, -1.0]) == 1
    assert likeliest([-math.inf, -3.0]) == 1
    # Taken for the first choice, NaN would be right wherever the first choice is.
    assert likeliest([math.nan, math.nan]) == likeliest([0.0, math.nan]) == -1


def test_normalisation_divides_by_tokens_or_characters(tiny_backbone: Backbone) -> None:
    prepared = prepare(tiny_backbone.tokenizer, [question(0)])
    raw = score(tiny_backbone.model, prepared, normalise="none")[0].scores
    tokens = [len(one) for one in prepared.items[0].continuations]
    by_tokens = score(tiny_backbone.model, prepared, normalise="tokens")[0].scores
    by_characters = score(tiny_backbone.model, prepared, normalise="characters")[0].scores
    assert by_tokens == pytest.approx([value / n for value, n in zip(raw, tokens, strict=True)])
    # " of a star", " the", " herb of the", " a" without their leading space.
    assert by_characters == pytest.approx([value / n for value, n in zip(raw, (9, 3, 11, 1), strict=True)])


def test_the_tree_reads_shared_beginnings_once() -> None:
    from fedforget.evaluation import PreparedQuestion

    tree = TokenTree()
    tree.add(PreparedQuestion("a", "d", (1, 2), ((3, 4), (3, 5), (6,)), (1, 1, 1), 0))
    tree.add(PreparedQuestion("b", "d", (1, 2, 7), ((8,), (9,)), (1, 1), 0))
    # Nodes: 1, 1-2, 1-2-3 (the last tokens 4, 5, 6 are only predicted), 1-2-7.
    assert tree.tokens == [1, 2, 3, 7]
    assert tree.depths == [0, 1, 2, 2]
    assert tree.places == [1, 2, 1, 2, 1, 3, 3]
    assert tree.targets == [3, 4, 3, 5, 6, 8, 9]
    wanted = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 1]]
    assert tree.visible().int().tolist() == wanted


def test_a_model_with_windows_or_changed_logits_is_scored_plainly(tiny_backbone: Backbone) -> None:
    config = tiny_backbone.model.config
    assert supports_packing(tiny_backbone.model)
    config.final_logit_softcapping = 30.0
    try:
        assert not supports_packing(tiny_backbone.model)
    finally:
        del config.final_logit_softcapping
    config.layer_types = ["sliding_attention", "full_attention"]
    try:
        assert not supports_packing(tiny_backbone.model)
    finally:
        del config.layer_types


def test_scoring_leaves_the_training_mode(tiny_backbone: Backbone) -> None:
    tiny_backbone.model.train()
    score(tiny_backbone.model, prepare(tiny_backbone.tokenizer, [question(0)]))
    assert tiny_backbone.model.training
    tiny_backbone.model.eval()


def test_summary_by_hand() -> None:
    # Three of four right: p = .75, standard error sqrt(.75 * .25 / 4) = .2165; chance (3 * 1/2 + 1/4) / 4.
    scores = [ItemScore(str(i), (0.0, -1.0), 0, int(i == 3)) for i in range(3)]
    scores += [ItemScore("3", (0.0, -1.0, -1.0, -1.0), 0, 1)]
    found = summarise(scores)
    assert (found.accuracy, found.count) == (0.75, 4)
    assert found.standard_error == pytest.approx(math.sqrt(0.75 * 0.25 / 4))
    assert found.chance == pytest.approx(1.75 / 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"choices": (" a",)}, "'q0': 1 choices; multiple choice needs at least two"),
        ({"choices": (" a", "")}, "'q0': a choice is empty"),
        ({"answer": 9}, "'q0': answer 9 is not the index"),
    ],
)
def test_bad_questions_are_named(tiny_backbone: Backbone, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        prepare(tiny_backbone.tokenizer, [question(0, **changes)])


def test_no_questions(tiny_backbone: Backbone) -> None:
    with pytest.raises(DataError, match="no questions"):
        prepare(tiny_backbone.tokenizer, [])


class Merging:
    """A tokenizer of characters that merges "x" and a following "y" into one token, with an end token."""

    bos_token_id = None
    eos_token_id = 0
    eos_token = "</s>"

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(c) for c in text.replace("xy", "z")] + [0]}


def test_a_choice_that_merges_with_the_prompt_is_scored_from_before_it() -> None:
    one = Question("q", "d", "ax", ("yb", "c"), 0, "report")
    item = prepare(Merging(), [one]).items[0]
    # "axyb" is a z b, "axc" is a x c: they share "a" alone, and the end token is no part of either.
    assert item.prefix == (ord("a"),)
    assert item.continuations == ((ord("z"), ord("b")), (ord("x"), ord("c")))


def test_an_empty_prompt_starts_from_the_end_token() -> None:
    item = prepare(Merging(), [Question("q", "d", "", ("b", "c"), 0, "report")]).items[0]
    assert item.prefix == (0,)
    assert item.continuations == ((ord("b"),), (ord("c"),))
