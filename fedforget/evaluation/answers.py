"""How well a domain's questions are answered in the model's own words: the measure of TOFU and MUSE.

``evaluation.suite: benchmark`` takes these in place of multiple choice, so that runs, comparisons and
sweeps go by the FIRM paper's numbers: TOFU's sets by ROUGE-L recall, MUSE's by KnowMem's ROUGE-L F1. A
domain whose benchmark is multiple choice stays so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedforget.data import Data
from fedforget.data.benchmark import CombinedData
from fedforget.data.muse import Muse
from fedforget.data.tofu import Tofu
from fedforget.errors import DataError
from fedforget.evaluation.measures import Measure, Subject
from fedforget.evaluation.multiple_choice import Accuracy
from fedforget.evaluation.muse import knowledge
from fedforget.evaluation.prepared import asked
from fedforget.evaluation.tofu import answered

ACCURACY = "accuracy"
MIXED = "several measures"


@dataclass(frozen=True, eq=False)
class Answers:
    """A domain's questions, and what their answers are measured by.

    Attributes
    ----------
    measure : Measure
    score : str
        The score of a row that counts.
    name : str
        What it is called.
    """

    measure: Measure
    score: str
    name: str

    def evaluate(self, model: Any, tokenizer: Any, batch_size: int) -> Accuracy:
        """Return the mean score in place of an accuracy, with its standard error; its chance is 0."""
        rows = self.measure.compute(Subject(model, tokenizer, batch_size))
        values = [float(row[self.score]) for row in rows]
        n = len(values)
        mean = math.fsum(values) / n
        variance = math.fsum((value - mean) ** 2 for value in values) / max(1, n - 1)
        return Accuracy(mean, n, math.sqrt(variance / n), 0.0)


def answers(data: Data, domain: str, role: str, split: str, limit: int = 0, seed: int = 0) -> Answers | None:
    """Return a domain's questions as its benchmark asks them, or None where that is multiple choice.

    Parameters
    ----------
    data : Data
    domain, role, split : str
        As for :meth:`fedforget.data.Data.questions`.
    limit, seed : int
        How many, and which; see :func:`fedforget.evaluation.prepared.asked`.

    Raises
    ------
    DataError
        There is no such domain, or it has no questions in this split.
    """
    family = data.of(domain) if isinstance(data, CombinedData) else data
    if not isinstance(family, Tofu | Muse):
        return None
    pairs = asked(family.asked_pairs(domain, role, split), limit, seed, domain, role, split)
    if not pairs:
        raise DataError(f"domain {domain!r} ({role}) has no questions in the {split!r} split")
    if isinstance(family, Tofu):
        return Answers(answered(domain, pairs), "rouge_l_recall", "ROUGE-L recall")
    shown = family.pairs(f"{family.asked_part(domain)}_icl")
    return Answers(knowledge(domain, pairs, shown), "rouge_l_f1", "ROUGE-L F1")


def common(names: Sequence[str]) -> str:
    """Return the one name that several domains are measured by, or that there is none."""
    return names[0] if len(set(names)) == 1 else MIXED
