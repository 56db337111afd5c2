"""Facts in several wordings: the split that keeps tests apart from training, and the real-world family.

A *relation* is a domain's facts with its templates. Training words a fact in the training
templates; questions use others, kept for one split each, so that no client trains on the wording
it is tested with. Which facts are asked depends on the role:

- ``forget``: clients train on every fact; half of the facts are asked in ``select``, the other half
  in ``report``.
- ``retain``: clients train on one half of the facts; only the other half is asked, a quarter of it
  in ``select`` and the rest in ``report``. What is measured is what the model keeps, not what clients learnt.
- ``held_out``: no client trains; a quarter of the facts is asked in ``select``, the rest in ``report``.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedforget.data.examples import (
    SPLITS,
    Example,
    Question,
    check_domain,
    check_role,
    check_split,
    interleave,
)
from fedforget.errors import DataError
from fedforget.seeds import derive_seed

_FOLDER = Path(__file__).parent / "facts"
_CHOICES = 4


@dataclass(frozen=True)
class Fact:
    """One fact: what a relation says of a subject."""

    id: str
    subject: str
    answer: str


@dataclass(frozen=True)
class Relation:
    """A domain: its facts, and the wordings of training and of each split.

    Attributes
    ----------
    domain, description : str
        Name, and what the facts say.
    facts : tuple of Fact
        With distinct subjects; answers may repeat.
    train : tuple of str
        Whole statements with ``{subject}`` and ``{answer}``.
    test : mapping of str to tuple of str
        By split, prompts with ``{subject}`` that the answer completes.
    capitalise : bool
        Whether a rendered text starts with a capital.
    """

    domain: str
    description: str
    facts: tuple[Fact, ...]
    train: tuple[str, ...]
    test: Mapping[str, tuple[str, ...]]
    capitalise: bool = True

    def render(self, template: str, fact: Fact) -> str:
        """Fill a template with a fact."""
        text = template.format(subject=fact.subject, answer=fact.answer)
        return text[:1].upper() + text[1:] if self.capitalise else text

    def answers(self) -> list[str]:
        """Return the distinct answers, sorted."""
        return sorted({fact.answer for fact in self.facts})


class FactData:
    """Relations as a :class:`fedforget.data.Data`.

    Parameters
    ----------
    relations : mapping of str to Relation
        By domain.
    general : sequence of str
        Texts for perplexity.
    seed : int
        Of every draw; each domain's draws are independent of the other domains.
    source : str
        For error messages.
    """

    def __init__(
        self, relations: Mapping[str, Relation], general: Sequence[str], seed: int, source: str
    ) -> None:
        self._relations = dict(relations)
        self._general = list(general)
        self._seed = seed
        self._source = source

    def domains(self) -> list[str]:
        """Return the names of all domains."""
        return list(self._relations)

    def facts(self, domain: str, role: str, use: str) -> list[Fact]:
        """Return the facts of one use (``"train"``, ``"select"`` or ``"report"``), in a seeded order.

        ``select`` and ``report`` are disjoint for every role, and for the roles ``retain`` and
        ``held_out`` disjoint from ``train`` as well.
        """
        check_domain(domain, self.domains(), self._source)
        check_role(role)
        facts = list(self._relations[domain].facts)
        self._rng(domain, "facts").shuffle(facts)
        if role == "forget":
            train, asked, num_select = facts, facts, len(facts) // 2
        else:
            middle = len(facts) // 2 if role == "retain" else 0
            train, asked = facts[:middle], facts[middle:]
            num_select = max(1, len(asked) // 4)
        return {"train": train, "select": asked[:num_select], "report": asked[num_select:]}[use]

    def units(self, domain: str, role: str) -> list[list[Example]]:
        """Return, for each training fact, its statements: one for each training template."""
        groups = []
        for i, fact in enumerate(self.facts(domain, role, "train")):
            relation = self._relations[domain]
            # The order of the templates rotates, so that a pass over all facts uses all of them.
            order = _rotated(range(len(relation.train)), i)
            groups.append(
                [Example(f"{fact.id}/t{t}", domain, relation.render(relation.train[t], fact)) for t in order]
            )
        return groups

    def training(self, domain: str, role: str) -> list[Example]:
        """Return the training statements of a domain, each fact once before any fact's second wording."""
        return interleave(self.units(domain, role))

    def questions(self, domain: str, role: str, split: str) -> list[Question]:
        """Return a split's questions: each of its facts in each of its templates, four choices each.

        Every fact is asked once before any is asked again. The wrong choices are answers of other
        facts of the domain; they and their order are seeded by the question alone.
        """
        check_split(split)
        facts = self.facts(domain, role, split)
        relation = self._relations[domain]
        templates = relation.test[split]
        return [
            self._question(relation, facts[i], split, (i + j) % len(templates))
            for j in range(len(templates))
            for i in range(len(facts))
        ]

    def general_text(self) -> list[str]:
        """Return texts that belong to no domain."""
        return list(self._general)

    def _question(self, relation: Relation, fact: Fact, split: str, template: int) -> Question:
        rng = self._rng(relation.domain, "choices", fact.id, split, template)
        wrong = [answer for answer in relation.answers() if answer != fact.answer]
        choices = [fact.answer, *rng.sample(wrong, _CHOICES - 1)]
        rng.shuffle(choices)
        return Question(
            id=f"{fact.id}/{split}{template}",
            domain=relation.domain,
            prompt=relation.render(relation.test[split][template], fact),
            choices=tuple(f" {choice}" for choice in choices),
            answer=choices.index(fact.answer),
            split=split,
        )

    def _rng(self, domain: str, *purpose: object) -> random.Random:
        return random.Random(derive_seed(self._seed, "data", domain, *purpose))


def _rotated(items: Sequence[int], by: int) -> list[int]:
    by %= len(items)
    return [*items[by:], *items[:by]]


def load_facts(seed: int) -> FactData:
    """Return the real-world facts that come with the package.

    Parameters
    ----------
    seed : int
        Of the splits, the orders and the wrong choices.
    """
    return FactData(_relations(), _general(), seed, "family 'facts'")


def relations() -> dict[str, Relation]:
    """Return the real-world relations by domain."""
    return dict(_relations())


@functools.cache
def _relations() -> dict[str, Relation]:
    described: dict[str, Any] = json.loads((_FOLDER / "relations.json").read_text(encoding="utf-8"))[
        "relations"
    ]
    return {
        domain: Relation(
            domain=domain,
            description=entry["description"],
            facts=tuple(Fact(**row) for row in _rows(f"{domain}.jsonl")),
            train=tuple(entry["train"]),
            test={split: tuple(entry[split]) for split in SPLITS},
        )
        for domain, entry in described.items()
    }


@functools.cache
def _general() -> tuple[str, ...]:
    return tuple(row["text"] for row in _rows("general.jsonl"))


def _rows(name: str) -> list[dict[str, str]]:
    path = _FOLDER / name
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise DataError(f"{path}: part of the package is missing; reinstall fedforget") from error
