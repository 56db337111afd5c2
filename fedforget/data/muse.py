"""MUSE: books or news to forget, with verbatim, knowledge and privacy sets."""

from __future__ import annotations

import functools
import random

from fedforget.data.benchmark import Benchmark, numbered
from fedforget.data.examples import Example, Question
from fedforget.data.items import Pair
from fedforget.data.rows import Rows, TableSchema
from fedforget.data_config import DataConfig
from fedforget.errors import DataError
from fedforget.seeds import derive_seed

HUBS = {"books": "muse-bench/MUSE-Books", "news": "muse-bench/MUSE-News"}
RAW = TableSchema("raw", ("forget", "retain1", "retain2", "holdout"), ("text",))
KNOWLEDGE = TableSchema(
    "knowmem", ("forget_qa", "retain_qa", "forget_qa_icl", "retain_qa_icl"), ("question", "answer")
)
VERBATIM = TableSchema("verbmem", ("forget",), ("prompt", "gt"))
PRIVACY = TableSchema("privleak", ("forget", "retain", "holdout"), ("text",))
TABLES = (RAW, KNOWLEDGE, VERBATIM, PRIVACY)
_WRONG = 3  # answers to other questions beside the right one


class Muse(Benchmark):
    """Domains ``books`` (or ``news``) to forget and ``books-retain`` (``news-retain``) to retain.

    Texts are cut into passages of at most ``data.muse.passage_chars`` characters. What is
    evaluated on is apart from training but for the forget set itself.
    """

    name = "muse"

    def __init__(self, cfg: DataConfig, path: str, seed: int) -> None:
        super().__init__(cfg, path, seed)
        self.pairs_of = functools.cache(self._pairs)
        both = set(cfg.muse.forget_splits) & set(cfg.muse.retain_splits)
        self._shared = min(both) if both else ""

    def domains(self) -> list[str]:
        """Return the corpus to forget and the one to retain."""
        return [self.cfg.muse.corpus, f"{self.cfg.muse.corpus}-retain"]

    def parts(self) -> dict[str, str]:
        """Return the sets of MUSE's metrics."""
        found = dict.fromkeys(KNOWLEDGE.splits, "pairs")
        found["verbmem"] = "passages, each the beginning of a text and what continues it"
        return found | {f"privleak_{split}": "passages" for split in PRIVACY.splits}

    def pairs(self, part: str) -> list[Pair]:
        """Return the knowledge questions of ``forget_qa``, ``retain_qa`` or their in-context examples."""
        if part not in KNOWLEDGE.splits:
            raise self._no_part(part)
        return list(self.pairs_of(part))

    def passages(self, part: str) -> list[Example]:
        """Return ``verbmem`` (prompt and continuation) or ``privleak_forget``, ``_retain``, ``_holdout``."""
        if part == "verbmem":
            rows = self.rows(VERBATIM, "forget")
            return numbered(
                rows,
                lambda i, name: Example(name, "verbmem", rows.text(i, "gt"), rows.text(i, "prompt")),
                self._id("verbmem"),
            )
        split = part.removeprefix("privleak_")
        if part == split or split not in PRIVACY.splits:
            raise self._no_part(part)
        rows = self.rows(PRIVACY, split)
        return numbered(rows, lambda i, name: Example(name, part, rows.text(i, "text")), self._id(part))

    def _training(self, domain: str, role: str) -> list[Example]:
        muse = self.cfg.muse
        retained = domain.endswith("-retain")
        if retained and self._shared:
            raise DataError(
                f"data.muse.retain_splits: {self._shared!r} is in data.muse.forget_splits; a passage is "
                "either forgotten or retained"
            )
        if retained == (role == "forget"):
            raise DataError(
                f"domain {domain!r} of family 'muse' is not there to {role}; swap the roles' domains"
            )
        return [
            passage
            for split in (muse.retain_splits if retained else muse.forget_splits)
            for passage in self._passages(self.rows(RAW, split), split, domain)
        ]

    def _passages(self, rows: Rows, split: str, domain: str) -> list[Example]:
        return [
            Example(f"{self._id(split)}-{row:05d}/{i:05d}", domain, text, label=split)
            for row in range(len(rows))
            for i, text in enumerate(cut(rows.text(row, "text"), self.cfg.muse.passage_chars))
        ]

    def asked_part(self, domain: str) -> str:
        """Return which knowledge questions are about a domain."""
        return "retain_qa" if domain.endswith("-retain") else "forget_qa"

    def asked_pairs(self, domain: str, role: str, split: str) -> list[Pair]:
        """Return the pairs that a domain's questions of one split are made of, in a seeded order."""
        self.check(domain)
        return self.halves(self.pairs_of(self.asked_part(domain)), split, role, domain, "asked")

    def _questions(self, domain: str, role: str, split: str) -> list[Question]:
        answers = sorted({pair.answer.strip() for pair in self.pairs_of(self.asked_part(domain))})
        asked = []
        for pair in self.asked_pairs(domain, role, split):
            others = [answer for answer in answers if answer != pair.answer.strip()]
            rng = random.Random(derive_seed(self.seed, "data", "wrong", pair.id))
            asked.append(pair.asked(rng.sample(others, min(_WRONG, len(others))), split, self.seed))
        return [one for one in asked if one is not None]

    def _pairs(self, split: str) -> tuple[Pair, ...]:
        rows = self.rows(KNOWLEDGE, split)

        def pair(row: int, identity: str) -> Pair:
            return Pair(identity, split, rows.text(row, "question"), rows.text(row, "answer"), label=split)

        return tuple(numbered(rows, pair, self._id(split)))

    def _id(self, part: str) -> str:
        return f"muse-{self.cfg.muse.corpus}-{part}"


def cut(text: str, most: int) -> list[str]:
    """Cut a text into pieces of at most ``most`` characters, at the last white space where there is one.

    White space at the cuts is dropped, nothing else is.
    """
    pieces = []
    rest = text.strip()
    while len(rest) > most:
        head = rest[: most + 1]
        at = max((i for i, letter in enumerate(head) if letter.isspace()), default=most)
        pieces.append(rest[:at].rstrip())
        rest = rest[at:].lstrip()
    return [*pieces, rest] if rest else pieces
