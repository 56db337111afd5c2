"""What a monitoring system reads of a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fedforget.presets import load, load_any
from fedforget.run_metrics import export
from fedforget.runs import RunDirectory

CONFIG = load("firm-ci")


def figures(run: RunDirectory, **traffic: float) -> dict[tuple[str, ...], float]:
    """Return what was written, by name and labels other than the run's."""
    text = export(run, traffic).read_text()
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    assert {one.labels.pop("run") for one in samples} == {run.path.name}
    return {(one.name.removeprefix("fedforget_"), *one.labels.values()): one.value for one in samples}


def test_a_round_in_numbers(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "one", CONFIG, "firm-ci")
    found = figures(run)
    assert found["run_status", "running"] == 1
    assert (found["clients", "expected"], found["clients", "received"]) == (4, 0)
    assert found["run_started_timestamp_seconds",] > 1.6e9
    assert found["server_peak_memory_bytes",] > 1e7
    (run.summaries / "forget-herbs-0").mkdir(parents=True)
    run.record_received("forget-herbs-0", {"bytes": 4096, "node": 7})
    run.update(status="failed", left_out={"retain-birds-0": "gone"}, timings={"clients": 1.5})
    found = figures(run)
    assert (found["run_status", "running"], found["run_status", "failed"]) == (0, 1)
    assert (found["clients", "received"], found["clients", "left_out"]) == (1, 1)
    assert found["client_received_bytes", "forget-herbs-0"] == 4096
    assert found["stage_seconds", "clients"] == 1.5


def test_a_fedsgt_training_that_goes_on_adds_to_those_before(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "one", load_any("fedsgt-digits"), "fedsgt-digits")
    run.update(trainings=[{"modules": 3, "rounds": 2, "bytes_received": 100.0}])
    found = figures(run, rounds=1, bytes_received=50.0)
    assert (found["rounds",], found["bytes_received",], found["modules",]) == (3, 150, 3)


def test_a_full_disk_ends_no_run_for_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDirectory.create(tmp_path / "one", CONFIG, "firm-ci")
    before = export(run).read_bytes()

    def full(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    monkeypatch.setattr(os, "replace", full)
    assert export(run).read_bytes() == before
