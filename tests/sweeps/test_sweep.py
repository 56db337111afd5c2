"""Sweeps: grids from text, settings measured once, results that survive an interruption."""

from __future__ import annotations

import csv
import io
import pickle
import shutil
from typing import Any

import pytest

from fedforget.codecs import Instruction, pack, unpack
from fedforget.errors import ConfigError, RunError, SummaryError
from fedforget.files import plain, read_json
from fedforget.runs import RunDirectory
from fedforget.summaries import ClientSummary
from fedforget.sweeps import sweep as module
from fedforget.sweeps.files import results, setting_of, to_csv
from fedforget.sweeps.settings import expand, grid
from fedforget.sweeps.sweep import sweep


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1", ["1"]),
        ("inf,1e-3", ["inf", "1e-3"]),
        # Ends included; 0.5 + 3 * 0.1 is 0.8 and not 0.8000000000000000444.
        ("0.5:0.8:0.1", ["0.5", "0.6", "0.7", "0.8"]),
        ("0.5:1:0.2, 3", ["0.5", "0.7", "0.9", "3"]),
    ],
)
def test_grid(text: str, wanted: list[str]) -> None:
    assert grid(text) == wanted


@pytest.mark.parametrize(
    "text", ["", "1,,2", "1:2", "1:2:0", "2:1:0.5", "a:b:c", "1:2:-1", "0:1e9:1e-9", "0:inf:1"]
)
def test_grids_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="gamma: "):
        grid(text, "gamma")


def test_a_method_varies_along_its_own_parameters() -> None:
    found = expand(["firm", "avg"], {"gamma": ["1", "2"], "epsilon": ["inf", "0.1"]}, lambda name: {})
    assert [(one.method, one.parameters) for one in found] == [
        ("firm", {"gamma": 1.0, "epsilon": float("inf")}),
        ("firm", {"gamma": 1.0, "epsilon": 0.1}),
        ("firm", {"gamma": 2.0, "epsilon": float("inf")}),
        ("firm", {"gamma": 2.0, "epsilon": 0.1}),
        ("avg", {"gamma": 1.0}),
        ("avg", {"gamma": 2.0}),
    ]


def test_every_problem_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        expand(["firmm", "firm"], {"gama": ["1"], "alpha": ["2", "x"]}, lambda name: {})
    text = str(caught.value)
    assert "unknown merge method 'firmm' (did you mean 'firm'?)" in text
    assert "has a parameter 'gama' (did you mean 'gamma'?)" in text
    assert "alpha must be in (0, 1], not 2.0" in text
    assert "alpha: 'x' is not a number" in text


AXES = {"gamma": ["0.5", "1"], "epsilon": ["inf", "0.001"]}


def test_results_are_stored_with_their_settings(stored_run: RunDirectory) -> None:
    found = sweep(stored_run, ["firm", "avg"], AXES)
    assert len(found) == 6
    assert found == read_json(stored_run.path / "sweep.json")["settings"]
    # JSON has no infinity: it is stored as text, and read as the same setting.
    assert found[0]["parameters"]["epsilon"] == "inf"
    assert found[0]["parameters"]["alpha"] == 0.1
    rows = list(csv.DictReader(io.StringIO((stored_run.path / "sweep.csv").read_text())))
    assert [(row["method"], row["gamma"], row["epsilon"]) for row in rows][:2] == [
        ("firm", "0.5", "inf"),
        ("firm", "0.5", "0.001"),
    ]
    assert float(rows[0]["forget_accuracy"]) == found[0]["metrics"]["forget"]["accuracy"]
    assert rows[-1]["epsilon"] == ""


def test_an_interrupted_sweep_goes_on_where_it_was(
    stored_run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Any] = []
    real = module._measure

    def stop_at_third(*arguments: Any) -> Any:
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(arguments[2])
        return real(*arguments)

    monkeypatch.setattr(module, "_measure", stop_at_third)
    with pytest.raises(KeyboardInterrupt):
        sweep(stored_run, ["firm"], AXES)
    assert len(results(stored_run)) == 2

    again: list[Any] = []

    def note(*arguments: Any) -> Any:
        again.append(arguments[2])
        return real(*arguments)

    monkeypatch.setattr(module, "_measure", note)
    assert len(sweep(stored_run, ["firm"], AXES)) == 4
    assert len(again) == 2
    assert not set(map(str, again)) & set(map(str, measured))


def test_a_sweep_file_that_is_none(stored_run: RunDirectory) -> None:
    for content in ("[]", '{"settings": 1}', '{"settings": ['):
        (stored_run.path / "sweep.json").write_text(content)
        with pytest.raises(RunError, match=r"sweep\.json: "):
            results(stored_run)


def test_a_setting_given_twice_is_measured_once(stored_run: RunDirectory) -> None:
    assert len(sweep(stored_run, ["avg"], {"gamma": ["1", "1.0"]})) == 1


def test_a_result_says_what_the_merge_did(stored_run: RunDirectory) -> None:
    base, bounded = sweep(stored_run, ["firm"], {"gamma": ["1"], "epsilon": ["inf", "0.001"]})
    assert "certified" not in base["merge"]
    assert base["merge"]["mean_damage"] == base["merge"]["base_damage"] > 0.001
    assert bounded["merge"]["base_damage"] == base["merge"]["base_damage"]
    assert bounded["merge"]["largest_damage"] <= 0.001 * (1 + 1e-6)
    assert (bounded["merge"]["projected"], bounded["merge"]["certified"]) == (1.0, True)
    assert bounded["merge"]["norm"] < base["merge"]["norm"]


def test_the_splits_are_kept_apart(stored_run: RunDirectory) -> None:
    sweep(stored_run, ["avg"], {"gamma": ["1"]})
    found = sweep(stored_run, ["avg"], {"gamma": ["1"]}, split="select")
    assert [one["split"] for one in found] == ["report", "select"]


def test_what_the_summaries_do_not_hold_is_told_before_anything_is_measured(stored_run: RunDirectory) -> None:
    (name,) = [one.client_id for one in stored_run.load_summaries() if one.role == "retain"]
    path = stored_run.summaries / name
    sparse = unpack(*pack(ClientSummary.load(path), fisher=Instruction("top", 0.1)))
    shutil.rmtree(path)
    sparse.save(path)
    with pytest.raises(SummaryError, match=rf"{name}'.* largest 0\.2 .*communication\.alpha=0\.2"):
        sweep(stored_run, ["firm"], {"alpha": ["0.05", "0.2"]})
    assert results(stored_run) == []
    with pytest.raises(
        SummaryError, match=r"'firm' reads the whole Fisher; .* communication\.fisher=lossless$"
    ):
        sweep(stored_run, ["firm"], {"alpha": ["0.05", "1"]})
    assert results(stored_run) == []
    assert len(sweep(stored_run, ["firm"], {"alpha": ["0.05"]})) == 1


def without_seconds(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in one.items() if key != "seconds"} for one in found]


def test_another_process_measures_the_same(stored_run: RunDirectory) -> None:
    alone = without_seconds(sweep(stored_run, ["firm"], {"gamma": ["0.5"], "epsilon": ["0.001"]}))
    # What is sent to a process, as it comes out there.
    opened = pickle.loads(pickle.dumps(module._Opening(stored_run)))()
    (setting,) = [setting_of(one) for one in alone]
    assert plain(without_seconds([opened((setting, "report"))])) == alone


def test_settings_are_shared_out(stored_run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    shared: list[Any] = []

    def ahead(tasks: Any, here: Any, elsewhere: Any, *, workers: int, say: Any) -> Any:
        shared.append((len(tasks), workers))
        return map(here, tasks)

    monkeypatch.setattr(module, "ahead", ahead)
    sweep(stored_run, ["avg"], {"gamma": ["1", "2"]}, workers=3)
    assert shared == [(2, 3)]


def test_csv_marks_the_frontier_of_each_split() -> None:
    def result(gamma: float, split: str, forget: float, retain: float) -> dict[str, Any]:
        metrics = {"forget": {"accuracy": forget}, "retain": {"accuracy": retain}, "collapse": []}
        metrics["domains"] = {"herbs": {"accuracy": forget}}
        return {"method": "avg", "parameters": {"gamma": gamma}, "split": split, "metrics": metrics}

    found = [
        result(1.0, "report", 0.5, 0.8),
        result(2.0, "report", 0.6, 0.7),  # forgets less and keeps less than the first
        result(2.0, "select", 0.4, 0.6),  # alone on its split
    ]
    rows = list(csv.DictReader(io.StringIO(to_csv(found))))
    assert [row["pareto"] for row in rows] == ["true", "false", "true"]
    assert [row["accuracy_herbs"] for row in rows] == ["0.5", "0.6", "0.4"]
    assert {row["in_place_of_accuracy"] for row in rows} == {""}
    found[0]["metrics"]["domains"]["herbs"]["measure"] = "ROUGE-L F1"
    first = next(csv.DictReader(io.StringIO(to_csv(found))))
    assert first["in_place_of_accuracy"] == "herbs: ROUGE-L F1"
