"""MMLU: multiple-choice questions of 57 subjects, to retain with and to measure utility on."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from fedforget.data.benchmark import ChoiceBenchmark, Uses, apart, numbered
from fedforget.data.items import MultipleChoice
from fedforget.data.rows import Rows, TableSchema
from fedforget.data_config import DataConfig
from fedforget.errors import DataError, nearest

HUB = "cais/mmlu"
TABLE = TableSchema(
    "all", ("auxiliary_train", "dev", "validation", "test"), ("question", "choices", "answer"), ("subject",)
)
_ALL, _SUBJECT = "mmlu", "mmlu-"


class Mmlu(ChoiceBenchmark):
    """Domain ``mmlu``, and ``mmlu-<subject>`` for one subject of it.

    Retain clients train on a seeded sample of ``data.mmlu.train_splits`` (600 questions by
    default), without those that are in ``data.mmlu.evaluation_split`` word for word; that split is
    reported, and what is left of the training splits is there to select on.
    """

    name = "mmlu"

    def __init__(self, cfg: DataConfig, path: str, seed: int) -> None:
        super().__init__(cfg, path, seed)
        self.items = functools.cache(self._items)

    def _rows(self, schema: TableSchema, split: str) -> Rows:
        # There is one configuration, so a directory of split files, or a file, will do.
        return Rows(self.path, schema, split, own=False)

    def domains(self) -> list[str]:
        """Return ``mmlu``; the subjects are known once the questions are read."""
        return [_ALL]

    def has(self, domain: str) -> bool:
        """Return whether the domain is ``mmlu`` or looks like one subject of it."""
        return domain == _ALL or domain.startswith(_SUBJECT)

    def uses(self, domain: str, role: str) -> Uses:
        """Return which questions are trained on and which are asked."""
        if role == "forget":
            raise DataError("family 'mmlu' is there to be retained or held out; give it to no forget client")
        asked = self.items(self.cfg.mmlu.evaluation_split)
        pool = [one for split in self.cfg.mmlu.train_splits for one in self.items(split)]
        order = self.shuffled(apart(self._of(domain, pool), asked), domain, "retain")
        count = self.cfg.mmlu.retain_questions if role == "retain" else 0
        report = self.shuffled(self._of(domain, asked), domain, "report")
        return Uses(tuple(order[:count]), tuple(order[count:]), tuple(report))

    def _of(self, domain: str, items: Sequence[MultipleChoice]) -> list[MultipleChoice]:
        if domain == _ALL:
            return list(items)
        wanted = domain.removeprefix(_SUBJECT).replace("_", " ")
        known = sorted({one.subject for one in items})
        if wanted not in known:
            raise DataError(
                f"family 'mmlu' has no subject {wanted!r}{nearest(wanted, known)}; it has {', '.join(known)}"
            )
        return [dataclasses.replace(one, domain=domain) for one in items if one.subject == wanted]

    def _items(self, split: str) -> tuple[MultipleChoice, ...]:
        rows = self.rows(dataclasses.replace(TABLE, subset=self.cfg.mmlu.subset), split)

        def item(row: int, identity: str) -> MultipleChoice:
            choices, label = rows.choice(row)
            subject = rows.optional_text(row, "subject").replace("_", " ") or "various subjects"
            return MultipleChoice(identity, _ALL, rows.text(row, "question"), choices, label, subject)

        return tuple(numbered(rows, item, f"mmlu-{split}"))
