"""Invented facts for a tiny model that is trained from nothing.

Six domains of 80 facts. Every domain has words of its own, down to the function words: with a
shared vocabulary or shared templates, nothing that a small model forgets is selective. The facts
themselves are the same for every seed, so that one trained model serves every run; a seed decides
splits, orders and shards.

A tiny model does not carry a fact from one wording to another by itself. So it is pretrained on all
facts in *all* templates, those of the tests included (:func:`pretraining`), while the clients that
unlearn or retain see the training templates alone, as in the ``facts`` family.
"""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path
from typing import Any

from fedforget.data.examples import SPLITS, Example
from fedforget.data.facts import Fact, FactData, Relation
from fedforget.seeds import derive_seed

# What the world is drawn from. Another value is another world, and needs another trained model.
_WORLD = 0
_FACTS = 80  # per domain
_PRETRAINING_SENTENCES = 120
_HELD_OUT_SENTENCES = 60
_ONSETS = (
    "b",
    "br",
    "d",
    "dr",
    "f",
    "g",
    "gl",
    "k",
    "kr",
    "l",
    "m",
    "n",
    "p",
    "pl",
    "r",
    "s",
    "t",
    "tr",
    "v",
    "z",
)
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ou")
_CODAS = ("", "k", "l", "m", "n", "r", "s", "x")


def load_fictional(seed: int) -> FactData:
    """Return the fictional facts as a source of data.

    Parameters
    ----------
    seed : int
        Of the splits, the orders and the wrong choices; the facts are the same for every seed.
    """
    return FactData(_relations(), _sentences()[_PRETRAINING_SENTENCES:], seed, "family 'fictional'")


def pretraining() -> list[Example]:
    """Return what the tiny model is trained on: all facts in all templates, and general sentences.

    Returns
    -------
    list of Example
        For a fact, ``prompt`` is the wording up to the answer and ``text`` is the answer with its
        leading space, so that a loss can weigh the two apart. For a general sentence ``prompt`` is
        empty. In a fixed order, by domain.
    """
    examples = []
    for domain, relation in _relations().items():
        for fact in relation.facts:
            prompts = [template.removesuffix(" {answer}") for template in relation.train]
            prompts += [template for split in SPLITS for template in relation.test[split]]
            examples += [
                Example(f"{fact.id}/p{i}", domain, f" {fact.answer}", relation.render(prompt, fact))
                for i, prompt in enumerate(prompts)
            ]
    sentences = _sentences()[:_PRETRAINING_SENTENCES]
    return examples + [Example(f"general-{i}", "general", text) for i, text in enumerate(sentences)]


def vocabulary() -> list[str]:
    """Return every word of the fictional world, sorted; words are separated by single spaces."""
    texts = [example.prompt + example.text for example in pretraining()] + list(_sentences())
    return sorted({word for text in texts for word in text.split()})


@functools.cache
def _world() -> dict[str, Any]:
    path = Path(__file__).parent / "facts" / "fictional.json"
    world: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return world


@functools.cache
def _relations() -> dict[str, Relation]:
    relations = {}
    names = _names(len(_world()["domains"]) * _FACTS)
    for domain, entry in _world()["domains"].items():
        answers = [entry["answers"][i % len(entry["answers"])] for i in range(_FACTS)]
        random.Random(derive_seed(_WORLD, "answers", domain)).shuffle(answers)
        relations[domain] = Relation(
            domain=domain,
            description=entry["description"],
            facts=tuple(
                Fact(f"{domain}-{name}", name, answer) for name, answer in zip(names, answers, strict=False)
            ),
            train=tuple(entry["train"]),
            test={split: tuple(entry[split]) for split in SPLITS},
            capitalise=False,
        )
        names = names[_FACTS:]
    return relations


def _names(count: int) -> list[str]:
    """Return distinct invented names, none of them a word of the templates."""
    rng = random.Random(derive_seed(_WORLD, "names"))
    taken = set(json.dumps(_world()).replace('"', " ").split())
    names: list[str] = []
    while len(names) < count:
        syllables = [rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(2)]
        name = "".join(syllables) + rng.choice(_CODAS)
        if name not in taken:
            taken.add(name)
            names.append(name)
    return names


@functools.cache
def _sentences() -> tuple[str, ...]:
    """Return distinct sentences of a small grammar: those for pretraining, then those held out."""
    grammar = _world()["general"]
    rng = random.Random(derive_seed(_WORLD, "general"))
    sentences: dict[str, None] = {}
    while len(sentences) < _PRETRAINING_SENTENCES + _HELD_OUT_SENTENCES:
        words = [
            rng.choice(grammar[word[1:-1]]) if word.startswith("{") else word
            for word in grammar["pattern"].split()
        ]
        sentences[" ".join(words)] = None
    return tuple(sentences)
