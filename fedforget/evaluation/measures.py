"""What a benchmark's suite is made of: measures that give one row per question, and a summary of the rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedforget.evaluation.likelihoods import Progress

Row = dict[str, Any]
Rows = Mapping[str, Sequence[Row]]


@dataclass(frozen=True, eq=False)
class Subject:
    """The model that is measured.

    Attributes
    ----------
    model, tokenizer : object
        A causal language model with its tokenizer.
    batch_size : int
        Questions per forward pass.
    progress : callable
        Told how many questions of the measure are done, and of how many.
    """

    model: Any
    tokenizer: Any
    batch_size: int = 16
    progress: Progress = lambda done, count: None


@dataclass(frozen=True, eq=False)
class Measure:
    """Questions, and how they are asked.

    Attributes
    ----------
    name : str
        Unique in its suite; a file name.
    asked : tuple of (str, str)
        Per question its id, and everything that its row depends on but the model.
    compute : callable
        Gives a row of scores per question, in order; ids and hashes are added by :func:`rows_of`.
    """

    name: str
    asked: tuple[tuple[str, str], ...]
    compute: Callable[[Subject], list[Row]]

    @property
    def questions_hash(self) -> str:
        """SHA-256 of ids and questions, in order."""
        return hashlib.sha256(repr(self.asked).encode()).hexdigest()


def rows_of(measure: Measure, subject: Subject) -> list[Row]:
    """Measure; each row begins with the question's id and a hash of what was asked."""
    found = measure.compute(subject)
    return [
        {"id": identity, "asked": hashlib.sha256(text.encode()).hexdigest()[:16], **row}
        for (identity, text), row in zip(measure.asked, found, strict=True)
    ]


def mean(rows: Sequence[Row], name: str) -> float:
    """Return the mean of one score over rows."""
    return float(sum(row[name] for row in rows) / len(rows))
