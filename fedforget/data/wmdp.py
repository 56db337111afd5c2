"""WMDP: multiple-choice questions that stand for hazardous knowledge in three domains."""

from __future__ import annotations

import functools

from fedforget.data.benchmark import ChoiceBenchmark, Uses, apart, numbered
from fedforget.data.items import MultipleChoice
from fedforget.data.rows import TableSchema
from fedforget.data_config import DataConfig
from fedforget.errors import DataError

HUB = "cais/wmdp"
_SUBJECTS = {"bio": "biology", "cyber": "cybersecurity", "chem": "chemistry"}
TABLES = tuple(
    TableSchema(f"wmdp-{domain}", ("test",), ("question", "choices", "answer")) for domain in _SUBJECTS
)


class Wmdp(ChoiceBenchmark):
    """Domains ``bio``, ``cyber`` and ``chem``.

    There is one split, and the FIRM paper trains on and asks all of it, so ``forget`` does the
    same unless ``data.unseen_share`` keeps questions back; the asked ones are split for selection
    and report. As ``retain``, half is trained on and the other half asked.
    """

    name = "wmdp"

    def __init__(self, cfg: DataConfig, path: str, seed: int) -> None:
        super().__init__(cfg, path, seed)
        self.items = functools.cache(self._items)

    def domains(self) -> list[str]:
        """Return ``bio``, ``cyber``, ``chem``."""
        return list(_SUBJECTS)

    def uses(self, domain: str, role: str) -> Uses:
        """Return which questions are trained on and which are asked."""
        items = self.shuffled(self.items(domain), domain, "uses")
        if role == "forget":
            unseen = round(len(items) * self.cfg.unseen_share)
            if self.cfg.unseen_share and not unseen:
                raise DataError(
                    f"data.unseen_share: {self.cfg.unseen_share:g} of the {len(items)} questions of domain "
                    f"{domain!r} is none; raise it, or set it to 0 to ask what was trained on"
                )
            asked = items[:unseen] or items
            train = apart(items[unseen:], items[:unseen])
        else:
            middle = len(items) // 2 if role == "retain" else 0
            asked = items[middle:]
            train = apart(items[:middle], asked)
        cut = len(asked) // (2 if role == "forget" else 4)
        return Uses(tuple(train), tuple(asked[:cut]), tuple(asked[cut:]))

    def _items(self, domain: str) -> tuple[MultipleChoice, ...]:
        (schema,) = (table for table in TABLES if table.subset == f"wmdp-{domain}")
        rows = self.rows(schema, "test")

        def item(row: int, identity: str) -> MultipleChoice:
            choices, label = rows.choice(row)
            return MultipleChoice(
                identity, domain, rows.text(row, "question"), choices, label, _SUBJECTS[domain]
            )

        return tuple(numbered(rows, item, schema.subset))
