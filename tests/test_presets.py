"""Loading presets: overrides, and everything that is wrong at once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from fedforget.client_specs import expand_clients
from fedforget.config import ClientGroup, RunConfig
from fedforget.errors import ConfigError
from fedforget.presets import (
    find,
    from_yaml,
    join_overrides,
    load,
    load_sequential,
    parse,
    presets,
    split_overrides,
    to_yaml,
)

CLIENTS = [{"role": "forget", "domain": "herbs"}, {"role": "retain", "domain": "birds", "count": 2}]


def built(raw: dict[str, Any] | None = None, *overrides: str) -> RunConfig:
    return parse({"clients": CLIENTS, **(raw or {})}, list(overrides), "here.yaml")


def problems(raw: dict[str, Any] | None = None, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        built(raw, *overrides)
    assert str(caught.value).startswith("here.yaml: ")
    return caught.value.problems


def written(folder: Path, text: str) -> str:
    path = folder / "own.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", sorted(presets()))
def test_presets_of_this_kind_load_and_come_back(name: str) -> None:
    if "kind: fedsgt" in find(name).read_text(encoding="utf-8"):
        with pytest.raises(ConfigError, match="kind"):
            load(name)
        return
    config = load(name)
    assert from_yaml(to_yaml(config)) == config


def test_clients_are_a_list_of_mappings() -> None:
    config = built()
    assert config.clients == [ClientGroup("forget", "herbs"), ClientGroup("retain", "birds", count=2)]
    assert [spec.id for spec in expand_clients(config.clients)] == [
        "forget-herbs-0",
        "retain-birds-0",
        "retain-birds-1",
    ]


@pytest.mark.parametrize(
    ("override", "value"),
    [("inf", math.inf), (".inf", math.inf), ("1e-3", 1e-3), ("0", 0.0), ("'2'", 2.0)],
)
def test_numbers_in_overrides(override: str, value: float) -> None:
    assert built(None, f"merge.epsilon={override}").merge.epsilon == value


def test_lists_in_overrides() -> None:
    config = built(
        None, "lora.layers=[0,2]", "evaluation.held_out=[tools]", "lora.targets=[]", "lora.targets=[q]"
    )
    assert config.lora.layers == [0, 2]
    assert config.evaluation.held_out == ["tools"]
    assert config.lora.targets == ["q"]


def test_a_list_of_clients_in_an_override() -> None:
    config = built(None, "clients=[{role: forget, domain: stars}]")
    assert config.clients == [ClientGroup("forget", "stars")]


@pytest.mark.parametrize(
    "pairs",
    [["merge.gamma=2", "seeds.data=1"], ["data.path=/a b/c"], ["a='x'", 'b="y"', "c=\t'\"\\"], []],
)
def test_overrides_pass_through_one_string(pairs: list[str]) -> None:
    text = join_overrides(pairs)
    assert split_overrides(text) == pairs
    assert "'" not in text


def test_a_damaged_list_of_overrides() -> None:
    for text in ("[merge.gamma=2", "[1]"):
        with pytest.raises(ConfigError, match="neither key=value pairs nor a JSON list"):
            split_overrides(text)


def test_overrides_in_one_string(tmp_path: Path) -> None:
    path = written(tmp_path, "clients: [{role: forget, domain: herbs}]")
    config = load(path, "merge.gamma=2 seeds.training=7")
    assert (config.merge.gamma, config.seeds.training) == (2.0, 7)


def test_the_later_override_wins() -> None:
    assert built({"merge": {"gamma": 1.0}}, "merge.gamma=2", "merge.gamma=3").merge.gamma == 3.0


def test_an_override_keeps_its_equals_signs() -> None:
    assert built(None, "data.path=a=b").data.path == "a=b"


def test_an_empty_mapping_takes_parameters_away() -> None:
    raw = {"forget": {"objective": {"name": "rmu", "parameters": {"c": 3.0}}}}
    assert built(raw).forget.objective.parameters == {"c": 3.0}
    words = ["forget.objective.name=gradient_ascent", "forget.objective.parameters={}"]
    assert built(raw, *words).forget.objective.parameters == {}


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        ({"clients": "x"}, "clients: 'x' is not a list"),
        ({"clients": None}, "clients: None is not a list"),
        ({"clients": {"role": "forget"}}, "clients: {'role': 'forget'} is not a list"),
        ({"clients": [1]}, "clients[0]: 1 is not a mapping of keys to values"),
        (
            {"clients": [*CLIENTS, {"role": "forget", "domain": "a", "count": "two"}]},
            "clients[2].count: 'two'",
        ),
        ({"clients": [{"role": "forget", "domain": "a", "cuont": 2}]}, "(did you mean 'clients[0].count'?)"),
        ({"model": 3}, "model: 3 is not a mapping of keys to values"),
        ({"model": None}, "model: None is not a mapping"),
        ({"merge": {"gamma": True}}, "merge.gamma: True is not a number"),
        ({"merge": {"gamma": None}}, "merge.gamma: None is not a number"),
        ({"merge": {"gamma": [1]}}, "merge.gamma: [1] is not a number"),
        ({"lora": {"r": 16.5}}, "lora.r: 16.5 is not a whole number"),
        ({"lora": {"r": "1.5"}}, "lora.r: '1.5' is not a whole number"),
        ({"lora": {"r": math.inf}}, "lora.r: inf is not a whole number"),
        ({"lora": {"rslora": 1}}, "lora.rslora: 1 is not true or false"),
        ({"lora": {"targets": "down_proj"}}, "lora.targets: 'down_proj' is not a list"),
        ({"lora": {"layers": [0, "x"]}}, "lora.layers[1]: 'x' is not a whole number"),
        ({"lora": {"alpha_pattern": {"q": "x"}}}, "lora.alpha_pattern.q: 'x' is not a number"),
        ({"model": {"path": None}}, "model.path: None is not a text"),
        ({"name": "???"}, "name: '???' is not a text"),
        ({"name": "${nope}"}, "Interpolation key 'nope' not found"),
        (
            {"evaluation": {"compare": {"parameters": {"firm": 3}}}},
            "compare.parameters.firm: 3 is not a mapping",
        ),
        ({"model": {"tiny": {"widht": 3}}}, "'model.tiny.widht' (did you mean 'model.tiny.width'?)"),
        ({1: 2}, "unknown key '1'"),
        ({"kind": ["firm"]}, "kind: ['firm'] is not one of"),
        ({"kind": "frim"}, "kind: 'frim' is not one of firm, fedsgt (did you mean 'firm'?)"),
    ],
)
def test_each_wrong_value_is_named_by_its_key(raw: dict[str, Any], wanted: str) -> None:
    (problem,) = problems(raw)
    assert wanted in problem


@pytest.mark.parametrize("override", ["merge.gamma", "=3", " =3", ""])
def test_overrides_that_are_none(override: str) -> None:
    assert problems(None, override) == [f"override {override!r} is not of the form key=value"]


@pytest.mark.parametrize("override", ["clients.0.count=3", "clients[0].count=3"])
def test_clients_are_overridden_as_a_whole(override: str) -> None:
    (problem,) = problems(None, override)
    assert "give the whole list" in problem


def test_a_key_of_another_section_is_found() -> None:
    assert problems(None, "epsilon=1") == ["unknown key 'epsilon' (did you mean 'merge.epsilon'?)"]


def test_all_problems_are_told_together() -> None:
    raw = {"merge": {"gama": 1, "alpha": "x"}, "lora": {"r": True}}
    found = problems(raw, "seed.data=1", "merge.epsilon", "data.max_length=long")
    assert len(found) == 6
    with pytest.raises(ConfigError, match="6 problems in the configuration\n  - "):
        built(raw, "seed.data=1", "merge.epsilon", "data.max_length=long")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "cannot be read as YAML"),
        ("\tx", "cannot be read as YAML"),
        ("merge: {gamma: 1, gamma: 2}", "duplicate key gamma"),
        ("x: !!python/object:os.system 1", "cannot be read as YAML"),
        ("- 1", "the top level must be a mapping"),
        ("3", "the top level must be a mapping"),
        ("", "no forget client"),
    ],
)
def test_files_that_are_no_configuration(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as caught:
        load(path)
    assert str(caught.value).startswith(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=message):
        from_yaml(text, "run.json")


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(str(path))


def test_exponents_are_numbers_in_free_parameters_too(tmp_path: Path) -> None:
    text = "clients: [{role: forget, domain: herbs}]\nforget: {objective: {parameters: {c: 2e1}}}"
    config = load(written(tmp_path, text))
    # YAML 1.1 alone would read 2e1, without a dot, as text.
    assert config.forget.objective.parameters == {"c": 20.0}


@pytest.mark.parametrize("name", ["firm-tny", "nope.yaml", "", "..", "/"])
def test_presets_that_are_not_there(name: str) -> None:
    with pytest.raises(ConfigError, match="no preset or YAML file"):
        load(name)


def test_the_nearest_preset_is_named() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'firm-tiny'\?"):
        find("firm-tny")


def test_a_preset_is_found_by_name_and_by_file() -> None:
    assert find("firm-ci") == find("configs/firm-ci.yaml") == find("firm-ci.yaml")


def test_round_trip_of_awkward_values() -> None:
    raw = {
        "name": "on",
        "model": {"path": "a: b #c", "revision": "1e5"},
        "merge": {"epsilon": 1e-5},
        "lora": {"layers": [1], "alpha_pattern": {"a.b": 3}},
        "evaluation": {"compare": {"parameters": {"firm": {"gamma": 4.0}}}},
    }
    config = built(raw)
    assert from_yaml(to_yaml(config)) == config
    assert config.model.revision == "1e5"
    assert from_yaml(to_yaml(built())).merge.epsilon == math.inf


def test_a_text_is_parsed_once_and_its_readers_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    text = to_yaml(load("firm-ci", "merge.gamma=1.75"))
    first = from_yaml(text)
    monkeypatch.setattr("fedforget.presets.parse_any", lambda *_: pytest.fail("parsed again"))
    first.merge.gamma = 9.0
    first.clients.clear()
    second = from_yaml(text)
    assert (second.merge.gamma, len(second.clients)) == (1.75, 3)


def test_contradictions_are_reported_beside_unknown_keys_and_wrong_types() -> None:
    found = problems(
        {"merge": {"gama": 1.2, "alpha": 2, "method": "frim"}, "fisher": {"num_sequences": "many"}},
        "forget.objective.name=rum",
    )
    assert [one.partition(":")[0] for one in found] == [
        "unknown key 'merge.gama' (did you mean 'merge.gamma'?)",
        "fisher.num_sequences",
        "forget.objective",
        "merge.method",
        "merge.alpha",
    ]


def test_nothing_is_said_of_the_default_that_stands_in_for_a_wrong_value() -> None:
    with pytest.raises(ConfigError) as caught:
        parse({"clinets": CLIENTS, "seeds": {"data": "x"}}, [])
    assert caught.value.problems == [
        "unknown key 'clinets' (did you mean 'clients'?)",
        "seeds.data: 'x' is not a whole number",
    ]


def test_prompt_tuning_is_refused_with_the_reason() -> None:
    with pytest.raises(
        ConfigError, match=r"PEFT applies one prompt at a time.*choose one of lora, dora, ia3"
    ):
        load_sequential("fedsgt-ci", "module.kind=prompt_tuning")
