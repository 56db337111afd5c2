"""Questions tokenised once, for as many evaluations as a comparison needs."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from fedforget.errors import DataError
from fedforget.seeds import derive_seed

if TYPE_CHECKING:
    from fedforget.data import Question

Item = TypeVar("Item")


@dataclass(frozen=True)
class PreparedQuestion:
    """One question in tokens.

    Attributes
    ----------
    id, domain : str
        As in the question.
    prefix : tuple of int
        Tokens that all choices share; never empty.
    continuations : tuple of tuple of int
        Per choice, the tokens after the prefix; never empty. These are scored.
    characters : tuple of int
        Length of each choice's text, for normalisation by characters.
    answer : int
        Index of the right choice.
    """

    id: str
    domain: str
    prefix: tuple[int, ...]
    continuations: tuple[tuple[int, ...], ...]
    characters: tuple[int, ...]
    answer: int

    @property
    def packed_length(self) -> int:
        """Tokens that the model reads: a choice's last token is predicted, never read."""
        return len(self.prefix) + sum(len(tokens) - 1 for tokens in self.continuations)


@dataclass(frozen=True)
class PreparedQuestions:
    """Tokenised questions of one domain, in the order they were given."""

    items: tuple[PreparedQuestion, ...]

    @property
    def chance(self) -> float:
        """Expected accuracy of a uniform guess."""
        return sum(1.0 / len(item.continuations) for item in self.items) / len(self.items)

    def __len__(self) -> int:
        return len(self.items)


def prepare(tokenizer: Any, questions: Iterable[Question]) -> PreparedQuestions:
    """Tokenise questions, prompt and choice together.

    Some tokenisers split ``" A"`` differently when it stands alone, so ``prompt + choice`` is
    encoded as one text. The longest run of tokens that the prompt and all choices share is the
    prefix, and everything after it is scored: where a tokeniser merges the end of the prompt
    with a choice, every choice of that question is scored from before the merged token.

    Raises
    ------
    DataError
        There is no question, or one has no prompt, fewer than two choices or an answer that is
        not one of them; names the question.
    """
    items = tuple(_prepare_one(tokenizer, question) for question in questions)
    if not items:
        raise DataError("no questions to evaluate; give a domain and split that has some")
    return PreparedQuestions(items)


def _prepare_one(tokenizer: Any, question: Question) -> PreparedQuestion:
    who = f"question {question.id!r}"
    if len(question.choices) < 2:
        raise DataError(f"{who}: {len(question.choices)} choices; multiple choice needs at least two")
    if not 0 <= question.answer < len(question.choices):
        raise DataError(f"{who}: answer {question.answer} is not the index of one of its choices")
    if not all(question.choices):
        raise DataError(f"{who}: a choice is empty; every choice needs text")
    prompt = encode_text(tokenizer, question.prompt)
    whole = [encode_text(tokenizer, question.prompt + choice) for choice in question.choices]
    split = min(_shared(prompt, tokens) for tokens in whole)
    if split == 0:
        # Nothing stands before the first token to be predicted: give it what begins a text.
        start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        if start is None:
            raise DataError(
                f"{who}: the prompt is empty and the tokenizer has no start token; give it a prompt"
            )
        whole, split = [[start, *tokens] for tokens in whole], 1
    if any(len(tokens) == split for tokens in whole):
        raise DataError(f"{who}: a choice adds no token to the prompt; every choice needs text")
    return PreparedQuestion(
        id=question.id,
        domain=question.domain,
        prefix=tuple(whole[0][:split]),
        continuations=tuple(tuple(tokens[split:]) for tokens in whole),
        characters=tuple(len(choice.strip()) or 1 for choice in question.choices),
        answer=question.answer,
    )


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Encode the beginning of a document: with the start token, if there is one, without the end token."""
    ids = list(tokenizer(text)["input_ids"]) if text else []
    end = tokenizer.eos_token_id
    # Some tokenisers close every text; a prompt and a choice are not the end of one.
    if ids and end is not None and ids[-1] == end and not text.endswith(str(tokenizer.eos_token)):
        ids.pop()
    return ids


def _shared(left: Sequence[int], right: Sequence[int]) -> int:
    n = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        n += 1
    return n


def asked(questions: Sequence[Item], limit: int, seed: int, *key: str) -> list[Item]:
    """Return the questions that are asked of a domain where a limit allows only some.

    Parameters
    ----------
    questions : sequence
        In the data's seeded order, whose prefixes are fair samples.
    limit : int
        0 for all.
    seed : int
        ``seeds.evaluation``; 0 takes the first, another draws that many, in their order.
    *key : str
        Domain, role and split, so that each is drawn by itself.
    """
    if not limit or limit >= len(questions):
        return list(questions)
    if not seed:
        return list(questions[:limit])
    drawn = random.Random(derive_seed(seed, "evaluation", "questions", *key))
    return [questions[i] for i in sorted(drawn.sample(range(len(questions)), limit))]
