"""MUSE's metrics on the model (Shi et al. 2024): verbatim memorisation, knowledge, privacy leakage."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedforget.data import Example, Pair
from fedforget.data.benchmark import Benchmark
from fedforget.encoding import encode
from fedforget.errors import DataError
from fedforget.evaluation.generation import generate
from fedforget.evaluation.language_membership import membership_aucs, membership_scores
from fedforget.evaluation.likelihoods import finite, token_scores
from fedforget.evaluation.measures import Measure, Row, Rows, Subject, mean

VERBATIM_TOKENS = 128
KNOWLEDGE_TOKENS = 32
MAX_LENGTH = 2048  # tokens of a passage that membership is inferred from
KNOWLEDGE = ("forget", "retain")
PRIVACY = ("forget", "holdout")
# A base model goes on with a question of its own; its answer ends before that.
_NEXT_QUESTION = re.compile(r"\n\n|\nquestion|question:", re.IGNORECASE)


def muse_measures(data: Benchmark, limit: int = 0, without: Collection[str] = ()) -> list[Measure]:
    """Return VerbMem, KnowMem of both sets, and the membership scores that PrivLeak is made of.

    Parameters
    ----------
    data : Benchmark
        Of family ``muse``.
    limit : int
        First so many items of each set; 0 for all.
    without : collection of str
        Ids of knowledge questions to leave out.
    """
    most = limit or None
    found = [_verbatim(data.passages("verbmem")[:most])]
    for name in KNOWLEDGE:
        pairs = [pair for pair in data.pairs(f"{name}_qa") if pair.id not in without]
        found.append(knowledge(f"knowmem-{name}", pairs[:most], data.pairs(f"{name}_qa_icl")))
    return found + [
        _privacy(f"privleak-{name}", data.passages(f"privleak_{name}")[:most]) for name in PRIVACY
    ]


def _verbatim(passages: Sequence[Example]) -> Measure:
    def compute(subject: Subject) -> list[Row]:
        # As many tokens of the true continuation as the model may write.
        references = [
            subject.tokenizer.decode(
                subject.tokenizer(one.text, add_special_tokens=False)["input_ids"][:VERBATIM_TOKENS],
                skip_special_tokens=True,
            )
            for one in passages
        ]
        prompts = [one.prompt for one in passages]
        return _generated(subject, prompts, references, VERBATIM_TOKENS)

    return Measure("verbmem", tuple((one.id, repr((one.prompt, one.text))) for one in passages), compute)


def knowledge(name: str, pairs: Sequence[Pair], shown: Sequence[Pair]) -> Measure:
    """Return the measure of knowledge questions, asked after answered ones."""
    before = "".join(f"{one.prompt()} {one.answer.strip()}\n\n" for one in shown)
    prompts = [before + pair.prompt() for pair in pairs]
    references = [pair.answer for pair in pairs]

    def compute(subject: Subject) -> list[Row]:
        return _generated(subject, prompts, references, KNOWLEDGE_TOKENS, cut=answer_alone)

    asked = zip((pair.id for pair in pairs), zip(prompts, references, strict=True), strict=True)
    return Measure(name, tuple((identity, repr(text)) for identity, text in asked), compute)


def answer_alone(text: str) -> str:
    """Return a generated answer without the question that follows it."""
    return _NEXT_QUESTION.split(text, maxsplit=1)[0].strip()


def _generated(
    subject: Subject, prompts: Sequence[str], references: Sequence[str], tokens: int, cut: Any = str
) -> list[Row]:
    # The datasets package takes seconds to import and only this needs it.
    from fedforget.evaluation.rouge import per_item

    answers = generate(
        subject.model,
        subject.tokenizer,
        prompts,
        max_new_tokens=tokens,
        batch_size=subject.batch_size,
        progress=subject.progress,
    )
    answers = [cut(answer) for answer in answers]
    scores = per_item(answers, references, use_stemmer=False)
    return [
        {"prediction": answer, "reference": reference, "rouge_l_f1": one["f1"]}
        for answer, reference, one in zip(answers, references, scores, strict=True)
    ]


def _privacy(name: str, passages: Sequence[Example]) -> Measure:
    def compute(subject: Subject) -> list[Row]:
        encoded = encode(subject.tokenizer, passages, MAX_LENGTH)
        scores = token_scores(
            subject.model, encoded, batch_size=subject.batch_size, spread=True, progress=subject.progress
        )
        return [dict(membership_scores(one)) for one in finite(scores)]

    return Measure(name, tuple((one.id, one.text) for one in passages), compute)


def privacy_leak(auc: float, retrained: float) -> float:
    """Return PrivLeak in percent from two membership AUCs, of the model and of a retrained one.

    MUSE counts the other way round: its AUC is that of the forget set being taken for *unseen*
    text, so that a model that still knows it is far below 0, and one that avoids it above.

    Raises
    ------
    DataError
        The retrained model takes every forget passage for a member, so there is nothing to relate to.
    """
    if retrained >= 1:
        raise DataError(
            "PrivLeak: the reference takes every forget passage for a member; there is nothing to relate to"
        )
    return 100.0 * ((1 - auc) - (1 - retrained)) / (1 - retrained)


def muse_summary(rows: Rows, reference: Rows | None = None) -> dict[str, Any]:
    """Return MUSE's numbers.

    Parameters
    ----------
    rows : mapping of str to sequence of dict
        Of every measure of :func:`muse_measures`.
    reference : mapping, optional
        Rows of a model that was retrained without the forget set, for PrivLeak.

    Returns
    -------
    dict
        ``verbmem``, ``knowmem_forget`` and ``knowmem_retain`` (mean ROUGE-L F1, 0 to 1), ``membership``
        (per attack the AUC of forget against holdout), with a reference ``privleak`` in percent,
        and ``collapse``.
    """
    result: dict[str, Any] = {"verbmem": mean(rows["verbmem"], "rouge_l_f1")}
    for name in KNOWLEDGE:
        result[f"knowmem_{name}"] = mean(rows[f"knowmem-{name}"], "rouge_l_f1")
    result["membership"] = _membership(rows)
    if reference is not None:
        of_reference = _membership(reference)
        result["membership_reference"] = of_reference
        result["privleak"] = privacy_leak(
            result["membership"]["min_k"]["value"], of_reference["min_k"]["value"]
        )
    # Not one word of a right answer: the model has no utility left.
    return result | {"collapse": ["knowmem_retain"] if result["knowmem_retain"] <= 0 else []}


def _membership(rows: Rows) -> dict[str, dict[str, Any]]:
    forget, holdout = (rows[f"privleak-{name}"] for name in PRIVACY)
    return membership_aucs(forget, holdout)


def muse_lines(summary: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return what to print, by name."""
    names = {"verbmem": "VerbMem", "knowmem_forget": "KnowMem forget", "knowmem_retain": "KnowMem retain"}
    lines = [(shown, summary[name]) for name, shown in names.items()]
    lines += [
        (f"membership AUC, {name.replace('_', '-')}", one["value"])
        for name, one in summary["membership"].items()
    ]
    if "privleak" in summary:
        lines.append(("PrivLeak (%)", summary["privleak"]))
    return lines
