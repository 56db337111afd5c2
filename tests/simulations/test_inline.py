"""The whole run in one process: the real ServerApp, ClientApp, merge, projection and evaluation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fedforget.config import ClientGroup, DataConfig, ModelConfig, RunConfig
from fedforget.errors import ConfigError, RunError
from fedforget.merging import merge
from fedforget.presets import load, to_yaml
from fedforget.runs import RunDirectory
from fedforget.updates import load_update
from simulations.inline import run_inline
from simulations.paths import with_absolute_paths
from simulations.server_app import open_run

CLIENTS = ["forget-herbs-0", "forget-herbs-1", "forget-stars-0", "retain-birds-0"]


@pytest.fixture(scope="module")
def done(tiny_home: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDFORGET_HOME", str(tiny_home))
        return run_inline("firm-ci", "merge.gamma=1.2", tmp_path_factory.mktemp("inline") / "run")


def test_the_run_directory_is_complete(done: RunDirectory) -> None:
    record = done.record
    assert record["status"] == "completed"
    assert record["overrides"] == "merge.gamma=1.2"
    assert sorted(record["clients"]) == CLIENTS
    assert {"evaluate_before", "clients", "merge", "evaluate_after"} == set(record["timings"])
    assert record["bytes"]["received"] > record["bytes"]["update"] > 0
    assert len(record["backbone"]["fingerprint"]) == 64
    assert sorted(record["summaries"]) == CLIENTS
    assert sorted(p.name for p in done.path.iterdir() if not p.name.startswith(".")) == [
        "log.jsonl", "merged", "metrics.json", "metrics.prom", "report.html", "run.json", "summaries",
    ]  # fmt: skip
    assert set(done.metrics) == {"before", "after"}
    assert done.metrics["after"]["domains"].keys() == {"herbs", "stars", "birds"}
    assert "<html" in (done.path / "report.html").read_text()
    lines = [json.loads(line) for line in (done.path / "log.jsonl").read_text().splitlines()]
    assert {line["run"] for line in lines} == {"run"}
    received = [line for line in lines if "received" in line["text"] and line.get("client") in CLIENTS]
    assert sorted(line["client"] for line in received) == CLIENTS


def test_the_update_is_the_merge_of_the_spool(done: RunDirectory) -> None:
    report = json.loads((done.merged / "merge.json").read_text())
    assert report["parameters"]["gamma"] == 1.2
    expected = merge(done.load_summaries(), "firm", **report["parameters"])
    update = load_update(done.path)
    assert set(update) == set(expected.deltas)
    for name, tensor in update.items():
        assert torch.equal(tensor, expected.deltas[name])
    for one in report["tensors"].values():
        assert one["certificate"]["certified"]
        assert all(damage <= report["parameters"]["epsilon"] for damage in one["damage"])


def test_a_second_run_gives_the_same_bits_on_one_node(done: RunDirectory, tmp_path: Path) -> None:
    again = run_inline("firm-ci", "merge.gamma=1.2 simulation.nodes=1", tmp_path / "again")
    name = "update.safetensors"
    assert (again.merged / name).read_bytes() == (done.merged / name).read_bytes()
    assert again.metrics["after"] == done.metrics["after"]


def test_a_finished_run_is_not_overwritten(done: RunDirectory) -> None:
    before = (done.path / "run.json").read_bytes()
    with pytest.raises(RunError, match="holds a finished run"):
        run_inline("firm-ci", "merge.gamma=1.2", done.path)
    assert (done.path / "run.json").read_bytes() == before


def test_a_failed_client_fails_the_run_and_it_can_be_carried_on_with(tmp_path: Path) -> None:
    """The retain client's file comes too late; the forget clients are not trained again."""
    data = tmp_path / "birds.jsonl"
    preset = tmp_path / "mine.yaml"
    text = (Path(__file__).resolve().parents[2] / "configs" / "firm-ci.yaml").read_text()
    group = "{role: retain, domain: birds, count: 1, max_examples: 8}"
    assert group in text
    preset.write_text(text.replace(group, f"{{role: retain, domain: birds, count: 1, path: {data}}}"))
    with pytest.raises(RunError, match=r"client 'retain-birds-0' failed: .*birds\.jsonl"):
        run_inline(str(preset), "", tmp_path / "run")
    run = RunDirectory(tmp_path / "run")
    assert run.record["status"] == "failed"
    assert "retain-birds-0" in run.record["error"]
    assert sorted(p.name for p in run.summaries.iterdir()) == CLIENTS[:3]
    stamps = {p.name: p.stat().st_mtime_ns for p in run.summaries.iterdir()}
    with pytest.raises(RunError, match="unfinished run of another configuration"):
        run_inline(str(preset), "merge.gamma=2", tmp_path / "run")
    data.write_text('{"id": "1", "domain": "birds", "text": "a heron hunts a frog"}\n')
    run = run_inline(str(preset), "", tmp_path / "run")
    assert run.record["status"] == "completed"
    assert run.record["error"] is None
    assert {name: (run.summaries / name).stat().st_mtime_ns for name in CLIENTS[:3]} == stamps
    assert sorted(run.record["clients"]) == CLIENTS


def test_other_node_ids_are_no_other_run(tmp_path: Path) -> None:
    """A SuperLink that was started anew gives the clients' keys other ids."""
    config = load("firm-ci")
    open_run(config, "firm-ci", "", str(tmp_path / "run"))
    config.deployment.nodes = {"hospital": 5}
    assert open_run(config, "firm-ci", "", str(tmp_path / "run")).config.deployment.nodes == {"hospital": 5}
    config.merge.gamma = 3.0
    with pytest.raises(RunError, match="another configuration"):
        open_run(config, "firm-ci", "", str(tmp_path / "run"))


def test_a_wrong_override_is_told_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"merge\.gama.*did you mean"):
        run_inline("firm-ci", "merge.gama=1", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_relative_paths_are_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    config = RunConfig(
        model=ModelConfig(path="model"),
        data=DataConfig(family="jsonl", path="data"),
        clients=[ClientGroup("forget", "a", path="a.jsonl"), ClientGroup("retain", "b")],
    )
    monkeypatch.setenv("FEDFORGET_CWD", str(tmp_path))
    found = with_absolute_paths(config)
    assert found.data.path == str(tmp_path / "data")
    assert [group.path for group in found.clients] == [str(tmp_path / "a.jsonl"), ""]
    assert found.model.path == str(tmp_path / "model")
    config.model.path = "owner/model"
    assert to_yaml(with_absolute_paths(config)).count("path: owner/model") == 1


def test_two_phase_pooling_gives_the_same_bits(done: RunDirectory, tiny_home: Path, tmp_path: Path) -> None:
    """Real clients: each message finds the Fisher that the first one kept, on its own disk."""
    two = run_inline("firm-ci", "merge.gamma=1.2 communication.fisher=two-phase", tmp_path / "two")
    name = "update.safetensors"
    assert (two.merged / name).read_bytes() == (done.merged / name).read_bytes()
    codecs = {client: facts["codec"] for client, facts in two.record["clients"].items()}
    assert codecs["forget-herbs-1"] == "two-phase, first top 0.15"
    assert codecs["forget-stars-0"] == codecs["retain-birds-0"] == "top 0.1"
    assert {one.coverage.kind for one in two.load_summaries()} == {"pooled-top", "top"}
    assert not (two.path / "first").exists()
    assert list((tiny_home / "fishers").iterdir()) == []
