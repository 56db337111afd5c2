"""What data is made of: a training example, a multiple-choice question, and a source of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fedforget.errors import DataError, nearest

ROLES = ("forget", "retain", "held_out")
SPLITS = ("select", "report")


@dataclass(frozen=True)
class Example:
    """One training sequence: ``prompt + text``, concatenated as they are.

    Attributes
    ----------
    id : str
        Unique within its source.
    domain : str
        What the example is about.
    text : str
        The part that a language-modelling loss is taken on; never empty.
    prompt : str
        What precedes ``text``; empty when the whole sequence is trained on.
    label : str
        What a label-skewed partition goes by (subject, author, right answer); may be empty.
    """

    id: str
    domain: str
    text: str
    prompt: str = ""
    label: str = ""


@dataclass(frozen=True)
class Question:
    """One multiple-choice question, answered by the likelihood of the choices' text.

    Attributes
    ----------
    id : str
        Unique within its source and split.
    domain : str
        What the question is about.
    prompt : str
        A statement to complete, or a question.
    choices : tuple of str
        At least two distinct texts; each is appended to ``prompt`` as it is, so it brings its
        leading space.
    answer : int
        Index of the right choice.
    split : str
        ``"select"`` (settings are chosen on it) or ``"report"`` (reported, chosen on by nothing).
    """

    id: str
    domain: str
    prompt: str
    choices: tuple[str, ...]
    answer: int
    split: str


class Data(Protocol):
    """A source of examples and questions, seeded once and the same at every call."""

    def domains(self) -> list[str]:
        """Return the names of all domains."""
        ...

    def units(self, domain: str, role: str) -> list[list[Example]]:
        """Return the training examples of a domain, in groups that sharding keeps together.

        A group holds, for instance, all statements of one fact. Empty for role ``"held_out"``.
        """
        ...

    def training(self, domain: str, role: str) -> list[Example]:
        """Return the training examples of a domain for clients of a role; see :meth:`units`."""
        ...

    def questions(self, domain: str, role: str, split: str) -> list[Question]:
        """Return a domain's questions of one split, in a seeded order whose prefixes are fair samples."""
        ...

    def general_text(self) -> list[str]:
        """Return texts that belong to no domain, for perplexity; may be empty."""
        ...


def interleave(units: list[list[Example]]) -> list[Example]:
    """Flatten groups pass by pass: the first example of each group, then the second of each, ...

    A prefix then touches as many groups as it can, which is what a cap on examples, or a Fisher
    over the first 20 sequences, should see.
    """
    depth = max((len(unit) for unit in units), default=0)
    return [unit[i] for i in range(depth) for unit in units if i < len(unit)]


def check_domain(domain: str, known: list[str], source: str) -> None:
    """Raise a :class:`DataError` that names the nearest domain when ``domain`` is not known."""
    if domain not in known:
        raise DataError(
            f"{source} has no domain {domain!r}{nearest(domain, known)}; its domains: {', '.join(known)}"
        )


def check_role(role: str) -> None:
    """Raise a :class:`DataError` when ``role`` is not one of :data:`ROLES`."""
    if role not in ROLES:
        raise DataError(f"role {role!r} is not one of {', '.join(ROLES)}{nearest(role, ROLES)}")


def check_split(split: str) -> None:
    """Raise a :class:`DataError` when ``split`` is not one of :data:`SPLITS`."""
    if split not in SPLITS:
        raise DataError(f"split {split!r} is not one of {', '.join(SPLITS)}{nearest(split, SPLITS)}")
