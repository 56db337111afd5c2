"""TOFU's metrics (Maini et al. 2024): ROUGE, probability, truth ratio, model utility, forget quality.

Four sets are asked: the forget set, ``retain_perturbed``, ``real_authors_perturbed`` and
``world_facts_perturbed``. An answer's NLL is the mean over its tokens and the end of the sequence, after
the prompt that training used too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from scipy.stats import hmean, ks_2samp

from fedforget.data import Pair
from fedforget.data.benchmark import Benchmark
from fedforget.encoding import encode
from fedforget.errors import DataError
from fedforget.evaluation.generation import generate
from fedforget.evaluation.likelihoods import finite, token_scores
from fedforget.evaluation.measures import Measure, Row, Rows, Subject, mean

NEW_TOKENS = 200
MAX_LENGTH = 1024
FORGET = "forget"
UTILITY = ("retain", "real_authors", "world_facts")
# Sets whose probability is taken relative to wrong answers.
GENERAL = ("real_authors", "world_facts")


def tofu_measures(
    data: Benchmark, forget: str, limit: int = 0, without: Collection[str] = ()
) -> list[Measure]:
    """Return ROUGE and likelihoods of the four sets.

    Parameters
    ----------
    data : Benchmark
        Of family ``tofu``.
    forget : str
        ``forget01``, ``forget05`` or ``forget10``.
    limit : int
        First so many questions of each set; 0 for all.
    without : collection of str
        Ids of pairs to leave out.
    """
    found = []
    for name, part in parts(forget).items():
        pairs = [pair for pair in data.pairs(part) if pair.id not in without][: limit or None]
        for pair in pairs:
            if not pair.perturbed_answers:
                raise DataError(f"{pair.id}: has no perturbed answer to compare the answer with")
        found.append(answered(f"{name}-rouge", pairs))
        found.append(_likelihoods(f"{name}-likelihoods", pairs, relative=name in GENERAL))
    return found


def parts(forget: str) -> dict[str, str]:
    """Return the configuration that holds each set."""
    return {FORGET: f"{forget}_perturbed", "retain": "retain_perturbed"} | {
        name: f"{name}_perturbed" for name in GENERAL
    }


def answered(name: str, pairs: Sequence[Pair]) -> Measure:
    """Return the measure of greedy answers: ROUGE-L recall, stemmed."""

    def compute(subject: Subject) -> list[Row]:
        # The datasets package takes seconds to import and only this needs it.
        from fedforget.evaluation.rouge import per_item

        answers = generate(
            subject.model,
            subject.tokenizer,
            [pair.prompt() for pair in pairs],
            max_new_tokens=NEW_TOKENS,
            batch_size=subject.batch_size,
            progress=subject.progress,
        )
        scores = per_item(answers, [pair.answer for pair in pairs], use_stemmer=True)
        return [
            {"prediction": answer, "reference": pair.answer, "rouge_l_recall": one["recall"]}
            for answer, pair, one in zip(answers, pairs, scores, strict=True)
        ]

    return Measure(name, tuple((pair.id, repr((pair.prompt(), pair.answer))) for pair in pairs), compute)


def _likelihoods(name: str, pairs: Sequence[Pair], *, relative: bool) -> Measure:
    # Real authors and world facts have no paraphrase of their own: the answer stands for it.
    bases = [
        pair.answer if relative or not pair.paraphrased_answer else pair.paraphrased_answer for pair in pairs
    ]
    texts = [(pair.answer, base, *pair.perturbed_answers) for pair, base in zip(pairs, bases, strict=True)]

    def compute(subject: Subject) -> list[Row]:
        asked = [
            Pair(pair.id, pair.domain, pair.question, text).example(pair.domain, "answer")
            for pair, own in zip(pairs, texts, strict=True)
            for text in own
        ]
        encoded = encode(subject.tokenizer, asked, MAX_LENGTH)
        found = token_scores(subject.model, encoded, batch_size=subject.batch_size, progress=subject.progress)
        scores = iter(finite(found))
        rows = []
        for own in texts:
            answer, base, *perturbed = (next(scores).loss for _ in own)
            rows.append(likelihood_row(answer, base, perturbed, relative=relative))
        return rows

    asked = tuple((pair.id, repr((pair.prompt(), own))) for pair, own in zip(pairs, texts, strict=True))
    return Measure(name, asked, compute)


def likelihood_row(answer: float, base: float, perturbed: Sequence[float], *, relative: bool) -> Row:
    """Return what a question's NLLs amount to.

    ``probability`` is ``exp(-answer)``, divided, where ``relative``, by its sum with the perturbed
    answers' probabilities. ``log_truth_ratio`` is the logarithm of
    ``R = (product of the n perturbed probabilities)^(1/n) / P(base)``, each probability ``exp(-NLL)``.

    Parameters
    ----------
    answer, base : float
        Mean NLL of the answer, and of its paraphrase.
    perturbed : sequence of float
        Mean NLLs of the wrong answers.
    relative : bool
    """
    own = math.exp(-answer)
    if relative:
        # Differences first: all probabilities of a ruined model may underflow.
        own = 1.0 / (1.0 + math.fsum(_exp(answer - one) for one in perturbed))
    return {
        "answer_nll": answer,
        "base_nll": base,
        "perturbed_nll": list(perturbed),
        "probability": own,
        "log_truth_ratio": base - math.fsum(perturbed) / len(perturbed),
    }


def forget_truth_ratio(log_ratio: float) -> float:
    """Return ``min(R, 1/R)``: 1 where right and wrong answers are equally likely."""
    return math.exp(-abs(log_ratio))


def utility_truth_ratio(log_ratio: float) -> float:
    """Return ``max(0, 1 - R)``: 1 where the right answer is far likelier."""
    return max(0.0, -math.expm1(min(log_ratio, 700.0)))


def model_utility(numbers: Sequence[float]) -> float:
    """Return the harmonic mean, 0 if any number is 0."""
    return 0.0 if min(numbers) <= 0 else float(hmean(numbers))


def forget_quality(rows: Sequence[Row], retained: Sequence[Row]) -> dict[str, float]:
    """Return the two-sample Kolmogorov-Smirnov test of the truth ratios of two models on one forget set.

    A p-value near 1 says that the test cannot tell the model from one that never saw the forget set.

    Raises
    ------
    DataError
        The rows are not about the same questions.
    """
    if [row["id"] for row in rows] != [row["id"] for row in retained]:
        raise DataError("forget quality: the reference's log is about other questions than the model's")
    found: Any = ks_2samp(
        [row["log_truth_ratio"] for row in rows], [row["log_truth_ratio"] for row in retained]
    )
    return {"p_value": float(found.pvalue), "statistic": float(found.statistic)}


def tofu_summary(rows: Rows, reference: Rows | None = None) -> dict[str, Any]:
    """Return TOFU's numbers.

    Parameters
    ----------
    rows : mapping of str to sequence of dict
        Of every measure of :func:`tofu_measures`.
    reference : mapping, optional
        Rows of a retain-only model, for forget quality.

    Returns
    -------
    dict
        ``sets`` (per set ``rouge_l_recall``, ``probability``, ``truth_ratio``, ``count``),
        ``model_utility``, with a reference ``forget_quality``, and ``collapse``: the general sets
        whose right answers are no likelier than wrong ones, and ``model_utility`` where it is 0.
    """
    sets: dict[str, dict[str, Any]] = {}
    collapse = []
    for name in (FORGET, *UTILITY):
        asked = rows[f"{name}-likelihoods"]
        ratio = forget_truth_ratio if name == FORGET else utility_truth_ratio
        sets[name] = {
            "rouge_l_recall": mean(rows[f"{name}-rouge"], "rouge_l_recall"),
            "probability": mean(asked, "probability"),
            "truth_ratio": sum(ratio(row["log_truth_ratio"]) for row in asked) / len(asked),
            "count": len(asked),
        }
        chance = sum(1.0 / (1 + len(row["perturbed_nll"])) for row in asked) / len(asked)
        if name in GENERAL:
            sets[name]["chance"] = chance
            if sets[name]["probability"] <= chance:
                collapse.append(name)
    utility = model_utility([sets[name][one] for name in UTILITY for one in _NUMBERS])
    result: dict[str, Any] = {"sets": sets, "model_utility": utility}
    if utility == 0:
        collapse.append("model_utility")
    if reference is not None:
        measure = f"{FORGET}-likelihoods"
        result["forget_quality"] = forget_quality(rows[measure], reference[measure])
    return result | {"collapse": collapse}


_NUMBERS = ("rouge_l_recall", "probability", "truth_ratio")


def tofu_lines(summary: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return what to print, by name."""
    lines = [
        (f"{name} {one.replace('_', ' ')}", values[one])
        for name, values in summary["sets"].items()
        for one in _NUMBERS
    ]
    lines.append(("model utility", summary["model_utility"]))
    if "forget_quality" in summary:
        lines.append(("forget quality (p-value)", summary["forget_quality"]["p_value"]))
    return lines


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))
