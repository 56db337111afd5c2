"""TOFU: question-answer pairs about 200 fictional authors, with sets that unlearning must leave alone."""

from __future__ import annotations

import functools

from fedforget.data.benchmark import Benchmark, numbered
from fedforget.data.examples import Example, Question
from fedforget.data.items import Pair
from fedforget.data.rows import TableSchema
from fedforget.data_config import DataConfig
from fedforget.errors import DataError

HUB = "locuslab/TOFU"
_SPLIT = ("train",)
_PAIR = ("question", "answer")
_COMPARED = ("paraphrased_answer", "perturbed_answer")
_FORGET = ("forget01", "forget05", "forget10")
_RETAIN = ("retain90", "retain95", "retain99")
_GENERAL = ("real_authors", "world_facts")
_TRAINED = (*_FORGET, *_RETAIN, "full")
_ASKED_AS = dict.fromkeys((*_RETAIN, "full"), "retain_perturbed") | {
    name: f"{name}_perturbed" for name in (*_FORGET, *_GENERAL)
}
TABLES = (
    *(TableSchema(name, _SPLIT, _PAIR) for name in (*_TRAINED, *_GENERAL)),
    *(
        TableSchema(name, _SPLIT, (*_PAIR, *_COMPARED))
        for name in ("retain_perturbed", *(f"{name}_perturbed" for name in _FORGET))
    ),
    *(
        TableSchema(f"{name}_perturbed", _SPLIT, (*_PAIR, "perturbed_answer"), ("paraphrased_answer",))
        for name in _GENERAL
    ),
)
_AUTHOR = 20  # pairs of each author, one after the other


class Tofu(Benchmark):
    """Domains by configuration: ``forget01`` to ``full``, and ``real_authors``, ``world_facts`` to hold out.

    Retain clients do not train on the 400 pairs of ``retain_perturbed``, which retention is
    measured on. Forgetting is measured, as it must be, on the pairs that were trained on, in the
    paraphrased and perturbed forms of ``forgetXX_perturbed``.
    """

    name = "tofu"

    def __init__(self, cfg: DataConfig, path: str, seed: int) -> None:
        super().__init__(cfg, path, seed)
        self.table = functools.cache(self._table)

    def domains(self) -> list[str]:
        """Return the names of all domains."""
        return [*_TRAINED, *_GENERAL]

    def parts(self) -> dict[str, str]:
        """Return the configurations that hold question-answer pairs."""
        return {schema.subset: "pairs" for schema in TABLES}

    def pairs(self, part: str) -> list[Pair]:
        """Return the pairs of one configuration, in its order; perturbed ones bring wrong answers."""
        if part not in self.parts():
            raise self._no_part(part)
        return list(self.table(part))

    def _training(self, domain: str, role: str) -> list[Example]:
        if domain in _GENERAL:
            raise DataError(
                f"domain {domain!r} of family 'tofu' is there to be held out; no client trains on it"
            )
        pairs = self.table(domain)
        if role == "retain":
            asked = {pair.question for pair in self.table("retain_perturbed")}
            pairs = tuple(pair for pair in pairs if pair.question not in asked)
        return [pair.example(domain, self.cfg.targets) for pair in pairs]

    def asked_pairs(self, domain: str, role: str, split: str) -> list[Pair]:
        """Return the pairs that a domain's questions of one split are made of, in a seeded order.

        The splits are about different authors: answers about one author share names and facts, so what is
        chosen on some of them is chosen on the others too. Pairs of no known author stand by themselves.
        """
        self.check(domain)
        authors = self._authors(domain)
        return self.halves_of_units(
            self.table(_ASKED_AS[domain]),
            lambda pair: authors.get((pair.question, pair.answer), pair.id),
            split,
            role,
            _ASKED_AS[domain],  # not the domain: retain90 and retain99 ask the same
            "asked",
        )

    def _authors(self, domain: str) -> dict[tuple[str, str], str]:
        """Return whom a domain's questions and answers are about; the perturbed tables do not tell."""
        pairs = self.table(domain) if domain in _TRAINED else ()
        return {(pair.question, pair.answer): pair.label for pair in pairs}

    def _questions(self, domain: str, role: str, split: str) -> list[Question]:
        pairs = self.asked_pairs(domain, role, split)
        asked = [pair.asked(pair.perturbed_answers, split, self.seed) for pair in pairs]
        return [one for one in asked if one is not None]

    def _table(self, subset: str) -> tuple[Pair, ...]:
        (schema,) = (table for table in TABLES if table.subset == subset)
        rows = self.rows(schema, _SPLIT[0])
        compared = "perturbed_answer" in schema.columns
        paraphrased = "paraphrased_answer" in schema.columns

        def pair(row: int, identity: str) -> Pair:
            read = rows.text if paraphrased else rows.optional_text
            return Pair(
                id=identity,
                domain=subset,
                question=rows.text(row, "question"),
                answer=rows.text(row, "answer"),
                paraphrased_answer=read(row, "paraphrased_answer"),
                perturbed_answers=rows.texts(row, "perturbed_answer") if compared else (),
                label=f"author-{row // _AUTHOR}",
            )

        return tuple(numbered(rows, pair, f"tofu-{subset}"))
