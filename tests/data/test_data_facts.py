"""The fact families: well-formed facts, and splits that keep tests apart from training."""

from __future__ import annotations

import itertools
import json
import string
from pathlib import Path

import pytest

import fedforget.data
from fedforget.config import DataConfig
from fedforget.data import ROLES, SPLITS, Data, FactData, load_data, pretraining, vocabulary
from fedforget.errors import DataError

FOLDER = Path(fedforget.data.__file__).parent / "facts"
FAMILIES = ("facts", "fictional")


def load(family: str, seed: int = 0) -> FactData:
    data = load_data(DataConfig(family=family), seed)
    assert isinstance(data, FactData)
    return data


CASES = [(family, domain) for family in FAMILIES for domain in load(family).domains()]


def every_fact(data: FactData, domain: str) -> list[tuple[str, str]]:
    return [(fact.subject, fact.answer) for fact in data.facts(domain, "forget", "train")]


def test_the_families_have_the_domains_they_promise() -> None:
    assert load("facts").domains() == [
        "elements", "currencies", "domains", "states", "asia", "europe", "africa", "americas", "continents",
    ]  # fmt: skip
    assert load("fictional").domains() == ["herbs", "harbours", "stars", "trades", "birds", "dishes"]


@pytest.mark.parametrize(("family", "domain"), CASES)
def test_facts_are_well_formed(family: str, domain: str) -> None:
    facts = load(family).facts(domain, "forget", "train")
    assert len(facts) >= 30
    assert len({fact.subject for fact in facts}) == len({fact.id for fact in facts}) == len(facts)
    assert all(
        text and text == text.strip() for fact in facts for text in (fact.id, fact.subject, fact.answer)
    )
    assert len({fact.answer for fact in facts}) >= 4


@pytest.mark.parametrize("domain", load("facts").domains())
def test_templates_name_what_they_should(domain: str) -> None:
    entry = json.loads((FOLDER / "relations.json").read_text(encoding="utf-8"))["relations"][domain]
    fields = {
        use: [
            {name for _, name, _, _ in string.Formatter().parse(template) if name} for template in entry[use]
        ]
        for use in ("train", *SPLITS)
    }
    assert len(fields["train"]) >= 3
    assert all(names == {"subject", "answer"} for names in fields["train"])
    for split in SPLITS:
        assert fields[split]
        assert all(names == {"subject"} for names in fields[split])
    wordings = [template for use in fields for template in entry[use]]
    assert len(set(wordings)) == len(wordings)


@pytest.mark.parametrize(("family", "domain"), CASES)
@pytest.mark.parametrize("role", ROLES)
def test_questions_are_well_formed(family: str, domain: str, role: str) -> None:
    data = load(family)
    answers = dict(every_fact(data, domain))
    for split in SPLITS:
        questions = data.questions(domain, role, split)
        assert questions
        assert len({question.id for question in questions}) == len(questions)
        for question in questions:
            assert len(set(question.choices)) == len(question.choices) == 4
            assert all(choice[0] == " " and choice[1] != " " for choice in question.choices)
            assert (question.split, question.domain) == (split, domain)
            assert question.prompt == question.prompt.rstrip()
        # The right choice is the fact's answer, asked of the fact in each wording of the split.
        asked = data.facts(domain, role, split)
        right = sorted(question.choices[question.answer].strip() for question in questions)
        assert right == sorted([answers[fact.subject] for fact in asked] * (len(questions) // len(asked)))


@pytest.mark.parametrize("family", FAMILIES)
def test_no_training_text_of_any_domain_holds_a_test_prompt_of_any(family: str) -> None:
    data = load(family)
    # What forget clients train on holds what retain clients do.
    texts = "\n".join(e.prompt + e.text for name in data.domains() for e in data.training(name, "forget"))
    # Every fact in every wording of the tests, whichever split a seed puts it in.
    prompts = [
        relation.render(template, fact)
        for relation in data._relations.values()
        for fact, split in itertools.product(relation.facts, SPLITS)
        for template in relation.test[split]
    ]
    held = texts.lower()
    assert len(prompts) > 900
    assert [prompt for prompt in prompts if prompt.lower() in held] == []


def test_no_country_is_in_two_domains_of_capitals() -> None:
    data = load("facts")
    subjects = [s for d in ("asia", "europe", "africa", "americas") for s, _ in every_fact(data, d)]
    assert len(set(subjects)) == len(subjects)


@pytest.mark.parametrize(("family", "domain"), CASES)
def test_retain_questions_are_about_facts_that_no_client_trained_on(family: str, domain: str) -> None:
    data = load(family)
    trained = {fact.id for fact in data.facts(domain, "retain", "train")}
    asked = [{fact.id for fact in data.facts(domain, "retain", split)} for split in SPLITS]
    assert {example.id.split("/")[0] for example in data.training(domain, "retain")} == trained
    for split, facts in zip(SPLITS, asked, strict=True):
        assert {q.id.split("/")[0] for q in data.questions(domain, "retain", split)} == facts
    assert trained.isdisjoint(asked[0] | asked[1])
    assert len(trained | asked[0] | asked[1]) == len(every_fact(data, domain))
    assert 2 * len(trained) in (len(every_fact(data, domain)), len(every_fact(data, domain)) - 1)
    subjects = [f.subject for split in SPLITS for f in data.facts(domain, "retain", split)]
    texts = {example.text for example in data.training(domain, "retain")}
    # Compared as rendered statements: "Guinea" is a part of "Guinea-Bissau".
    statements = {e.text for e in data.training(domain, "forget") if e.id.split("/")[0] not in trained}
    assert len(statements) >= len(subjects)
    assert texts.isdisjoint(statements)


@pytest.mark.parametrize(("family", "domain"), CASES)
@pytest.mark.parametrize("role", ROLES)
def test_splits_ask_about_disjoint_facts_in_disjoint_wordings(family: str, domain: str, role: str) -> None:
    data = load(family)
    select, report = (data.questions(domain, role, split) for split in SPLITS)
    assert {q.id.split("/")[0] for q in select}.isdisjoint(q.id.split("/")[0] for q in report)
    assert {q.prompt for q in select}.isdisjoint(q.prompt for q in report)
    if role == "forget":
        facts = [len({q.id.split("/")[0] for q in questions}) for questions in (select, report)]
        assert sum(facts) == len(every_fact(data, domain))
        assert abs(facts[0] - facts[1]) <= 1
    else:
        assert len(select) < len(report)


def test_forget_clients_train_on_every_fact_in_every_training_wording() -> None:
    data = load("facts")
    examples = data.training("asia", "forget")
    assert len(examples) == 4 * len(every_fact(data, "asia"))
    assert len({example.text for example in examples}) == len(examples)
    # Every fact once before any fact twice, and the first pass uses all wordings.
    first = examples[: len(examples) // 4]
    assert len({example.id.split("/")[0] for example in first}) == len(first)
    assert {example.id.split("/")[1] for example in first} == {"t0", "t1", "t2", "t3"}


@pytest.mark.parametrize("family", FAMILIES)
def test_held_out_domains_are_not_trained_on(family: str) -> None:
    data = load(family)
    assert all(data.training(domain, "held_out") == [] for domain in data.domains())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_seed_gives_the_same_data_and_another_seed_another(family: str) -> None:
    def everything(data: Data, role: str) -> list[object]:
        domain = data.domains()[0]
        return [data.training(domain, role), *(data.questions(domain, role, split) for split in SPLITS)]

    for role in ROLES:
        assert everything(load(family), role) == everything(load(family), role)
        assert everything(load(family), role)[1:] != everything(load(family, seed=1), role)[1:]


def test_a_domain_is_drawn_apart_from_the_others() -> None:
    whole = load("facts")
    part = FactData({"europe": whole._relations["europe"]}, [], 0, "a part")
    assert part.questions("europe", "retain", "report") == whole.questions("europe", "retain", "report")


def test_the_right_choice_is_everywhere() -> None:
    data = load("facts")
    positions = [q.answer for domain in data.domains() for q in data.questions(domain, "forget", "report")]
    # About 640 questions: 160 a position, standard deviation 11.
    assert all(abs(positions.count(i) / len(positions) - 0.25) < 0.08 for i in range(4))


@pytest.mark.parametrize("family", FAMILIES)
def test_general_text_is_distinct_and_of_some_length(family: str) -> None:
    texts = load(family).general_text()
    assert len(set(texts)) == len(texts) >= 60
    assert all(len(text.split()) >= 10 for text in texts)


def test_general_text_names_nothing_that_is_forgotten() -> None:
    data = load("facts")
    words = set(" ".join(data.general_text()).replace(",", " ").replace(".", " ").split())
    named = {text for domain in data.domains() for fact in every_fact(data, domain) for text in fact}
    # Two words of daily life are also answers or symbols: "I" and "In" start sentences.
    assert words & named <= {"I", "In", "As", "At", "No", "He", "Be"}


def test_bad_names_are_errors_with_the_nearest_name() -> None:
    data = load("facts")
    with pytest.raises(DataError, match=r"no domain 'element' \(did you mean 'elements'\?\)"):
        data.training("element", "forget")
    with pytest.raises(DataError, match=r"role 'forgets' is not one of .*did you mean 'forget'"):
        data.training("elements", "forgets")
    with pytest.raises(DataError, match=r"split 'reports' is not one of .*did you mean 'report'"):
        data.questions("elements", "forget", "reports")


def test_every_file_of_the_folder_is_used_and_ships() -> None:
    names = {path.name for path in FOLDER.iterdir()}
    expected = {f"{domain}.jsonl" for domain in load("facts").domains()}
    assert names == expected | {"general.jsonl", "relations.json", "fictional.json", "SOURCES.md"}


# The fictional world.


def fictional_words() -> dict[str, set[str]]:
    words: dict[str, set[str]] = {}
    for example in pretraining():
        words.setdefault(example.domain, set()).update((example.prompt + example.text).split())
    return words


def test_fictional_domains_share_no_word() -> None:
    words = fictional_words()
    assert sorted(words) == ["birds", "dishes", "general", "harbours", "herbs", "stars", "trades"]
    shared = {(a, b): words[a] & words[b] for a, b in itertools.combinations(sorted(words), 2)}
    assert {pair: both for pair, both in shared.items() if both} == {}


def test_the_vocabulary_covers_everything_the_tiny_model_meets() -> None:
    known = vocabulary()
    assert known == sorted(set(known))
    data = load("fictional", seed=5)
    texts = [example.prompt + example.text for example in pretraining()] + data.general_text()
    for domain in data.domains():
        texts += [example.text for example in data.training(domain, "forget")]
        for split in SPLITS:
            texts += [
                q.prompt + choice for q in data.questions(domain, "forget", split) for choice in q.choices
            ]
    assert {word for text in texts for word in text.split()} == set(known)
    assert all(" ".join(text.split()) == text for text in texts)


def test_pretraining_states_every_fact_in_every_wording_of_training_and_tests() -> None:
    data = load("fictional")
    stated = {example.prompt + example.text for example in pretraining()}
    facts = [example for example in pretraining() if example.domain != "general"]
    assert len(facts) == 6 * 80 * 4  # domains, facts, wordings
    assert all(example.prompt and example.text[0] == " " for example in facts)
    for domain in data.domains():
        assert {example.text for example in data.training(domain, "forget")} <= stated
        for split in SPLITS:
            for q in data.questions(domain, "forget", split):
                assert [q.prompt + choice in stated for choice in q.choices].index(True) == q.answer
    assert stated.isdisjoint(data.general_text())


def test_the_fictional_world_is_the_same_for_every_seed() -> None:
    for domain in load("fictional").domains():
        assert sorted(every_fact(load("fictional"), domain)) == sorted(
            every_fact(load("fictional", 9), domain)
        )
