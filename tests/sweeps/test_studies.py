"""Studies: every file is valid, subsets and budgets are what they say, one command gives a table."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fedforget import cli
from fedforget.codecs import Instruction, pack, unpack
from fedforget.errors import ConfigError, RunError
from fedforget.merging import calibrate_epsilon, merge
from fedforget.reporting import render
from fedforget.runs import RunDirectory
from fedforget.sweeps.studies import Study, StudyGrid, find_study, studies, study_settings

NAMES = [
    "ablations",
    "baselines",
    "domains",
    "fulm-mean",
    "projection",
    "retain-clients",
    "support-matched",
    "sweep",
    "sweep-muse",
    "sweep-tofu",
    "tolerance",
    "uniform",
]


def settings(run: RunDirectory, study: Study) -> list:
    return study_settings(study, run.config, run.load_summaries())


def test_every_study_is_valid_and_gives_settings(stored_run: RunDirectory) -> None:
    assert sorted(studies()) == NAMES
    # What the paper counts: 17 base and 33 uniform settings, 20 evaluations, three plus two ablations.
    counted = {"uniform": 50, "support-matched": 20, "ablations": 5, "fulm-mean": 24, "projection": 61}
    for name in NAMES:
        study = find_study(name)
        assert study.title
        assert study.source
        if name not in ("domains", "retain-clients"):
            found = settings(stored_run, study)
            assert len(found) == counted.get(name, len(found)) > 0


def test_domains_are_added_one_by_one_with_one_client_each(stored_run: RunDirectory) -> None:
    grids = find_study("domains").grids
    study = Study("d", grids=[replace(one, forget_domains="1,2") for one in grids])
    found = settings(stored_run, study)
    assert [(one.method, one.of) for one in found] == [
        ("fulm", "n=1 each=1 m=1"),
        ("fulm", "n=2 each=1 m=1"),
        ("firm", "n=1 each=1 m=1"),
        ("firm", "n=2 each=1 m=1"),
    ]
    # Herbs has two clients and comes first in the preset, stars one.
    assert found[0].clients == ("forget-herbs-0", "retain-birds-0")
    assert found[1].clients == ("forget-herbs-0", "forget-stars-0", "retain-birds-0")
    with pytest.raises(RunError, match="takes 3 forget domains and the run has 2"):
        settings(stored_run, find_study("domains"))
    with pytest.raises(RunError, match="takes 3 retain clients and the run has 1"):
        settings(stored_run, find_study("retain-clients"))


def test_a_budget_is_calibrated_for_the_clients_and_gamma_of_its_setting(stored_run: RunDirectory) -> None:
    one = StudyGrid(["firm"], {"gamma": "1,2"}, retain_clients="1", epsilon_fraction=0.3)
    found = settings(stored_run, Study("b", grids=[one]))
    summaries = stored_run.load_summaries()
    for setting, gamma in zip(found, (1.0, 2.0), strict=True):
        assert setting.parameters["epsilon"] == calibrate_epsilon(summaries, 0.3, gamma)


def test_one_command_gives_a_table(
    stored_run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(
        "title: Two methods\n"
        "grids:\n"
        "  - {methods: [firm], axes: {gamma: '1', epsilon: inf}, forget_domains: '1,2'}\n"
        "  - {methods: [avg], axes: {gamma: '1,2'}}\n"
        "matches:\n"
        "  - {reference: 'firm:n=2'}\n"
    )
    arguments = ["study", str(stored_run.path), "--study", str(path)]
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert not ended.value.code
    shown = capsys.readouterr()
    folder = stored_run.path / "studies"
    assert (folder / "small.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "small.md").read_text()
    assert "## Two methods" in page
    assert "## Matched to firm:n=2" in page
    rows = list(csv.DictReader((folder / "small.csv").open()))
    assert [row["clients"].count("forget") for row in rows] == [2, 3, 0, 0]
    # The norm is that of a merge of these clients alone.
    herbs = [one for one in stored_run.load_summaries() if one.domain != "stars"]
    assert float(rows[0]["norm"]) == merge(herbs, "firm").report["norm"]
    assert "1/4" in shown.err
    # Again: everything is there already, and the other command finds the sweep.
    for words in (arguments, ["match", str(stored_run.path), "--reference", "avg"]):
        with pytest.raises(SystemExit) as ended:
            cli.main(words)
        assert not ended.value.code
    again = capsys.readouterr()
    assert "4 of 4 settings are measured already" in again.err
    assert "1/4" not in again.err
    assert "Matched to avg" in render(stored_run)
    matched = json.loads((stored_run.path / "match.json").read_text())
    assert [one["curve"] for one in matched["pairs"]] == [
        "firm:n=1",
        "firm:n=2",
    ]


def test_a_study_that_the_summaries_cannot_give_ends_before_it_measures(
    stored_run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    (one,) = [one for one in stored_run.load_summaries() if one.role == "retain"]
    sparse = unpack(*pack(one, fisher=Instruction("top", 0.1)))
    shutil.rmtree(stored_run.summaries / one.client_id)
    sparse.save(stored_run.summaries / one.client_id)
    with pytest.raises(SystemExit) as ended:
        cli.main(["study", str(stored_run.path), "--study", "ablations"])
    assert ended.value.code == 1
    said = " ".join(capsys.readouterr().err.split())
    assert f"client {one.client_id!r}: sent the largest 0.1 of its Fisher alone" in said
    assert said.endswith("run again with communication.fisher=lossless")
    assert not (stored_run.path / "sweep.json").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grids: []", "at least one grid"),
        ("grid: []", r"unknown key 'grid' \(did you mean 'grids'\?\)"),
        ("grids: [{methods: [firmm]}]", r"grids\[0\]: unknown merge method 'firmm'"),
        ("grids: [{methods: [firm], axes: {gama: '1'}}]", "has a parameter 'gama'"),
        ("grids: [{methods: [firm], retain_clients: '0'}]", "retain_clients: '0' is not a list of whole"),
        ("grids: [{axes: {gamma: '1'}}]", r"grids\[0\]: methods: name at least one merge method"),
        (
            "{grids: [{methods: [avg]}], matches: [{rule: seperate}]}",
            r"matches\[0\]\.rule: 'seperate' is not one of joint, separate \(did you mean 'separate'\?\)",
        ),
        ("grids: [{methods: [avg], epsilon_fraction: 0.3}]", "epsilon_fraction: goes with the method firm"),
    ],
)
def test_a_study_that_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        find_study(str(path))


def test_an_unknown_study() -> None:
    with pytest.raises(ConfigError, match=r"no study or YAML file 'ablation' \(did you mean 'ablations'\?\)"):
        find_study("ablation")
