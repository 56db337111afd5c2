"""What a run would train on and ask: read, counted, and compared for overlaps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fedforget.client_specs import expand_clients
from fedforget.config import RunConfig
from fedforget.data.examples import SPLITS, Example, Question
from fedforget.data.registry import load_data
from fedforget.data.shares import client_examples, client_retain_examples, unasked
from fedforget.errors import DataError


@dataclass(frozen=True)
class ClientShare:
    """What one client holds: its id, its role, and how many examples of each domain."""

    client: str
    role: str
    examples: dict[str, int]


@dataclass(frozen=True)
class DomainQuestions:
    """How many questions of a domain there are in each split, and how many of them were trained on."""

    domain: str
    role: str
    questions: dict[str, int]
    trained_on: int


@dataclass(frozen=True)
class Inspection:
    """All clients' shares, all domains' questions, how many examples an expert learns, what is not asked."""

    clients: tuple[ClientShare, ...]
    domains: tuple[DomainQuestions, ...]
    expert: int = 0
    unasked: tuple[str, ...] = ()


def inspect(config: RunConfig) -> Inspection:
    """Read everything that a run's clients train on and its evaluation asks.

    Raises
    ------
    DataError
        Something is missing or malformed; a forget and a retain client hold the same example; or a
        question of a retained or held-out domain, or one that is both selected on and reported, was
        trained on.
    """
    trained: dict[str, list[Example]] = {"forget": [], "retain": []}
    shares = []
    for spec in expand_clients(config.clients):
        own, kept = client_examples(config, spec), client_retain_examples(config, spec)
        trained[spec.role] += own
        trained["retain"] += kept
        counts = {spec.domain: len(own)} | ({spec.retain_domain: len(kept)} if kept else {})
        shares.append(ClientShare(spec.id, spec.role, counts))
    both = _texts(trained["forget"]) & _texts(trained["retain"])
    if both:
        first = next(one for one in trained["forget"] if one.prompt + one.text in both)
        raise DataError(
            f"{len(both)} examples are both forgotten and retained, {first.id!r} of domain {first.domain!r} "
            "among them; give the roles domains that do not share examples"
        )
    found = tuple(_questions(config, [*trained["forget"], *trained["retain"]]))
    data = load_data(config.data, config.seeds.data)
    return Inspection(tuple(shares), found, _expert(config), tuple(unasked(config, data)))


def _expert(config: RunConfig) -> int:
    domain = config.model.expert.domain
    return len(load_data(config.data, config.seeds.data).training(domain, "forget")) if domain else 0


def _questions(config: RunConfig, trained: list[Example]) -> Iterator[DomainQuestions]:
    data = load_data(config.data, config.seeds.data)
    left_out = unasked(config, data)
    asked = {(group.role, group.domain) for group in config.clients if group.domain not in left_out}
    asked |= {("held_out", domain) for domain in config.evaluation.held_out}
    ids = {example.id for example in trained}
    prompts = {example.prompt for example in trained if example.prompt}
    for role, domain in sorted(asked):
        by_split = {split: data.questions(domain, role, split) for split in SPLITS}
        twice = set.intersection(*({one.id for one in questions} for questions in by_split.values()))
        if twice:
            raise DataError(f"domain {domain!r}: question {min(twice)!r} is both selected on and reported")
        seen = [one for questions in by_split.values() for one in questions if _seen(one, ids, prompts)]
        if seen and role != "forget":
            raise DataError(
                f"domain {domain!r} ({role}): {len(seen)} of its questions were trained on, {seen[0].id!r} "
                "among them; what is kept must be measured on other questions"
            )
        yield DomainQuestions(domain, role, {name: len(one) for name, one in by_split.items()}, len(seen))


def _seen(question: Question, ids: set[str], prompts: set[str]) -> bool:
    return question.id in ids or question.prompt in prompts


def _texts(examples: Iterable[Example]) -> set[str]:
    return {example.prompt + example.text for example in examples}
