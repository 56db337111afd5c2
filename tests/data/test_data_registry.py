"""Families by name, and each client's share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedforget.client_specs import ClientSpec, expand_clients
from fedforget.config import ClientGroup, DataConfig, RunConfig, SeedsConfig
from fedforget.data import client_examples, families, load_data
from fedforget.data.shares import unasked
from fedforget.errors import DataError


def run(count: int = 3, seed: int = 0, **group: object) -> tuple[RunConfig, list[ClientSpec]]:
    groups = [ClientGroup(role="forget", domain="asia", count=count, **group)]  # type: ignore[arg-type]
    config = RunConfig(data=DataConfig(family="facts"), clients=groups, seeds=SeedsConfig(data=seed))
    return config, expand_clients(groups)


def facts_of(config: RunConfig, spec: ClientSpec) -> set[str]:
    return {example.id.split("/")[0] for example in client_examples(config, spec)}


def test_every_family_describes_itself() -> None:
    firm = [name for name, family in families().items() if family.kind == "firm"]
    assert firm == ["facts", "fictional", "wmdp", "mmlu", "tofu", "muse", "jsonl", "table"]
    assert {"digits", "cifar100", "mnli"} < families().keys() - set(firm)
    assert all(f.summary.endswith(".") and f.reference and f.name == name for name, f in families().items())


def test_an_unknown_family_names_the_nearest() -> None:
    with pytest.raises(DataError, match=r"data.family: 'fact' is not one of .*did you mean 'facts'"):
        load_data(DataConfig(family="fact"), 0)


def test_jsonl_without_a_path_says_so() -> None:
    with pytest.raises(DataError, match=r"data\.path is empty"):
        load_data(DataConfig(family="jsonl"), 0)


@pytest.mark.parametrize("role", ["forget", "retain"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_shards_are_disjoint_exhaustive_and_even(role: str, count: int) -> None:
    groups = [ClientGroup(role=role, domain="asia", count=count)]
    config = RunConfig(data=DataConfig(family="facts"), clients=groups)
    shares = [client_examples(config, spec) for spec in expand_clients(groups)]
    everything = load_data(config.data, 0).training("asia", role)
    ids = [example.id for share in shares for example in share]
    assert sorted(ids) == sorted(example.id for example in everything)
    facts = [{example.id.split("/")[0] for example in share} for share in shares]
    assert sum(map(len, facts)) == len(set.union(*facts))  # no fact is in two shards
    assert max(map(len, facts)) - min(map(len, facts)) <= 1


def test_shares_depend_on_the_seed_alone() -> None:
    config, specs = run()
    assert client_examples(config, specs[0]) == client_examples(config, specs[0])
    other, _ = run(seed=1)
    assert facts_of(config, specs[0]) != facts_of(other, specs[0])


def test_a_cap_keeps_as_many_facts_as_it_can() -> None:
    config, specs = run(count=1, max_examples=10)
    examples = client_examples(config, specs[0])
    assert len(examples) == 10
    assert len({example.id.split("/")[0] for example in examples}) == 10


def test_a_client_may_bring_its_own_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps({"text": f"text {i}"}) + "\n" for i in range(7)))
    config, specs = run(count=2, path=str(path))
    shares = [client_examples(config, spec) for spec in specs]
    assert [len(share) for share in shares] == [4, 3]
    assert sorted(e.text for share in shares for e in share) == [f"text {i}" for i in range(7)]
    assert {e.domain for share in shares for e in share} == {"asia"}


def test_what_users_bring_without_questions_is_not_asked(tmp_path: Path) -> None:
    (tmp_path / "told.jsonl").write_text('{"text": "x"}')
    (tmp_path / "asked.jsonl").write_text(
        '{"question": "x", "choices": ["a", "b"], "label": 0, "answer": "a"}'
    )
    config = RunConfig(
        data=DataConfig(family="jsonl", path=str(tmp_path)),
        clients=[ClientGroup("forget", "told"), ClientGroup("retain", "asked")],
    )
    assert unasked(config, load_data(config.data, 0)) == ["told"]


def test_rows_of_other_domains_in_a_client_file_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    rows = [{"text": "mine", "domain": "asia"}, {"text": "other", "domain": "europe"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config, specs = run(count=1, path=str(path))
    assert [example.text for example in client_examples(config, specs[0])] == ["mine"]


def test_errors_name_the_client(tmp_path: Path) -> None:
    config, specs = run(count=1, path=str(tmp_path / "absent.jsonl"))
    with pytest.raises(DataError, match=r"client 'forget-asia-0': .*absent.jsonl: no such file"):
        client_examples(config, specs[0])

    config, specs = run(count=60)
    with pytest.raises(DataError, match=r"client '.*' has no examples: domain 'asia' holds 43 .* 60 clients"):
        client_examples(config, next(spec for spec in specs if spec.shard == 59))

    config, _ = run()
    with pytest.raises(DataError, match=r"client 'x': .* no domain 'asai' \(did you mean 'asia'\?\)"):
        client_examples(config, ClientSpec("x", "forget", "asai", 0, 1))
    with pytest.raises(DataError, match="client 'x': shard 3 is not one of 0 to 2"):
        client_examples(config, ClientSpec("x", "forget", "asia", 3, 3))


def test_a_client_whose_file_holds_only_questions_has_no_examples(tmp_path: Path) -> None:
    path = tmp_path / "asked.jsonl"
    path.write_text(json.dumps({"question": "q?", "choices": ["a", "b"], "label": 0}) + "\n")
    config, specs = run(count=1, path=str(path))
    with pytest.raises(DataError, match="client 'forget-asia-0' has no examples"):
        client_examples(config, specs[0])
