"""What benchmarks are made of, before anything is formatted: choices, pairs; passages are examples."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from fedforget.data.examples import Example, Question
from fedforget.seeds import derive_seed

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class MultipleChoice:
    """One multiple-choice question, as its data set gives it.

    Attributes
    ----------
    id : str
        The same for every seed and machine: data set, configuration or split, and row.
    domain : str
        What a configuration calls its source.
    question : str
    choices : tuple of str
    label : int
        Index of the right choice.
    subject : str
        In words, as in "questions about ...".
    """

    id: str
    domain: str
    question: str
    choices: tuple[str, ...]
    label: int
    subject: str

    def prompt(self) -> str:
        """Return the zero-shot prompt: subject line, question, lettered choices, and ``Answer:``."""
        lines = [f"{LETTERS[i]}. {choice}" for i, choice in enumerate(self.choices)]
        head = f"The following are multiple choice questions (with answers) about {self.subject}.\n\n"
        return head + "\n".join([self.question.strip(), *lines, "Answer:"])

    def asked(self, split: str) -> Question:
        """Return the question answered by the likelihood of the letters " A", " B", ..."""
        letters = tuple(f" {LETTERS[i]}" for i in range(len(self.choices)))
        return Question(self.id, self.domain, self.prompt(), letters, self.label, split)

    def example(self, domain: str, targets: str) -> Example:
        """Return it as a training sequence that ends in the right letter and choice."""
        answer = f" {LETTERS[self.label]}. {self.choices[self.label]}"
        label = self.subject if self.domain.startswith("mmlu") else LETTERS[self.label]
        return sequence(self.id, domain, self.prompt(), answer, targets, label)


@dataclass(frozen=True)
class Pair:
    """A question with its answer, and what TOFU's metrics compare the answer with.

    Attributes
    ----------
    id, domain, question, answer : str
        As for :class:`MultipleChoice`.
    paraphrased_answer : str
        The answer in other words; empty where the data set has none.
    perturbed_answers : tuple of str
        Wrong answers of the same form; may be empty.
    label : str
        Author or split, for a label-skewed partition.
    """

    id: str
    domain: str
    question: str
    answer: str
    paraphrased_answer: str = ""
    perturbed_answers: tuple[str, ...] = ()
    label: str = ""

    def prompt(self) -> str:
        """Return ``Question: ...`` and ``Answer:`` on two lines; the answer follows after a space."""
        return f"Question: {self.question.strip()}\nAnswer:"

    def example(self, domain: str, targets: str) -> Example:
        """Return it as a training sequence."""
        return sequence(self.id, domain, self.prompt(), f" {self.answer.strip()}", targets, self.label)

    def asked(self, wrong: Sequence[str], split: str, seed: int) -> Question | None:
        """Return a choice between the (paraphrased) answer and wrong ones, in an order seeded by its id.

        None where there is no wrong answer that differs. It is a measure of ours, not the benchmark's.
        """
        right = (self.paraphrased_answer or self.answer).strip()
        others = [one for one in dict.fromkeys(text.strip() for text in wrong) if one and one != right]
        if not others:
            return None
        choices = [right, *others]
        random.Random(derive_seed(seed, "data", "choices", self.id)).shuffle(choices)
        texts = tuple(f" {choice}" for choice in choices)
        return Question(self.id, self.domain, self.prompt(), texts, choices.index(right), split)


def sequence(identity: str, domain: str, prompt: str, answer: str, targets: str, label: str = "") -> Example:
    """Return a training sequence with its loss on the answer, or on all of it (``targets="all"``)."""
    if targets == "all":
        return Example(identity, domain, prompt + answer, label=label)
    return Example(identity, domain, answer, prompt, label)
