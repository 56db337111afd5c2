"""A run's directory: made once, never overwritten, read back as it was."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fedforget import runs
from fedforget.config import ClientGroup, RunConfig
from fedforget.errors import RunError
from fedforget.runs import RunDirectory, default_path, git_state, versions

CONFIG = RunConfig(name="mine", clients=[ClientGroup("forget", "herbs")])


def test_create_and_read_back(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "deep" / "run", CONFIG, "firm-ci", "merge.gamma=2")
    assert run.config == CONFIG
    record = RunDirectory(run.path).record
    assert (record["preset"], record["overrides"], record["status"]) == (
        "firm-ci",
        "merge.gamma=2",
        "running",
    )
    assert record["seeds"] == {"data": 0, "model": 0, "training": 0, "evaluation": 0}
    assert record["versions"]["torch"] == versions(["torch"])["torch"]
    assert [path.name for path in run.path.parent.iterdir()] == ["run"]


def test_a_run_never_overwrites_another(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", CONFIG, "a")
    with pytest.raises(RunError, match="exists already; choose another --out"):
        RunDirectory.create(run.path, CONFIG, "b")
    assert run.record["preset"] == "a"
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match="exists already"):
        RunDirectory.create(tmp_path / "file", CONFIG, "b")
    assert (tmp_path / "file").read_text() == "mine"


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run directory"):
        RunDirectory(tmp_path)
    with pytest.raises(RunError, match="not a run directory"):
        RunDirectory(tmp_path / "nowhere")


@pytest.mark.parametrize("content", [b"{", b"", b"\xff"])
def test_a_damaged_record_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(RunError, match=r"run.json: cannot be read as JSON"):
        _ = RunDirectory(tmp_path).record


def test_sections_are_added_and_replaced(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", CONFIG, "a")
    run.update(status="completed", bytes={"up": 3})
    run.update(bytes={"up": 4})
    assert (run.record["status"], run.record["bytes"], run.record["preset"]) == ("completed", {"up": 4}, "a")
    assert run.metrics == {}
    run.update_metrics(before={"x": math.inf})
    run.update_metrics(after=[1.5])
    assert run.metrics == {"before": {"x": "inf"}, "after": [1.5]}


def test_no_summaries(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", CONFIG, "a")
    with pytest.raises(RunError, match="no client summaries"):
        run.load_summaries()


def test_summaries_are_ordered_and_half_written_ones_are_not_seen(stored_run: RunDirectory) -> None:
    (stored_run.summaries / ".forget-x-0.1234.tmp").mkdir()
    found = [summary.client_id for summary in stored_run.load_summaries()]
    assert found == ["forget-herbs-0", "forget-herbs-1", "forget-stars-0", "retain-birds-0"]


def test_summaries_other_than_those_received_are_refused(stored_run: RunDirectory) -> None:
    received = {
        one.client_id: {"role": one.role, "domain": one.domain, "num_examples": 8}
        for one in stored_run.load_summaries()
    }
    stored_run.update(clients=received)
    assert len(stored_run.load_summaries()) == 4
    path = stored_run.summaries / "forget-herbs-0" / "summary.json"
    text = path.read_text()
    path.write_text(text.replace('"herbs"', '"stars"'))
    with pytest.raises(RunError, match=r"'forget-herbs-0' now has domain 'stars', .* has 'herbs'"):
        stored_run.load_summaries()
    path.write_text(text)
    folder = path.parent.rename(stored_run.path / "elsewhere")
    with pytest.raises(RunError, match="summary of 'forget-herbs-0' is missing"):
        stored_run.load_summaries()
    folder.rename(path.parent)
    del received["forget-stars-0"]
    stored_run.update(clients=received)
    with pytest.raises(RunError, match="'forget-stars-0' is of a client that the run did not have"):
        stored_run.load_summaries()


def test_a_value_edited_in_a_stored_summary_is_noticed(stored_run: RunDirectory) -> None:
    for folder in stored_run.summaries.iterdir():
        stored_run.record_received(folder.name)
    assert len(stored_run.load_summaries()) == 4
    assert sorted(stored_run.record["summaries"]) == sorted(p.name for p in stored_run.summaries.iterdir())
    path = stored_run.summaries / "forget-stars-0" / "deltas.safetensors"
    kept = path.read_bytes()
    path.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))  # finite still: the sign or exponent's last bit
    with pytest.raises(RunError, match=r"'forget-stars-0' is not the one that the run received"):
        stored_run.load_summaries()
    path.write_bytes(kept)
    assert len(stored_run.load_summaries()) == 4


def test_a_run_that_was_cut_short_is_not_merged_as_a_whole(stored_run: RunDirectory) -> None:
    (stored_run.summaries / "retain-birds-0").rename(stored_run.path / "elsewhere")
    with pytest.raises(RunError, match=r"summary of 'retain-birds-0' is missing.*complete the run"):
        stored_run.load_summaries()


def test_a_record_without_a_configuration_is_named(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", CONFIG, "a")
    (run.path / "run.json").write_text("{}")
    with pytest.raises(RunError, match=r"run\.json: holds no configuration"):
        _ = run.config
    with pytest.raises(RunError, match=r"run\.json: holds no configuration"):
        _ = run.sequential


def test_default_paths_are_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs.time, "strftime", lambda text: "now")
    monkeypatch.setenv("FEDFORGET_HOME", str(tmp_path))
    first = default_path("mine")
    assert first == tmp_path / "runs" / "mine-now"
    first.mkdir(parents=True)
    assert default_path("mine").name == "mine-now-1"
    assert default_path("mine", tmp_path / "other") == tmp_path / "other" / "mine-now"


def test_versions_of_what_is_not_there() -> None:
    assert versions(["no-such-package-anywhere"]) == {"no-such-package-anywhere": "absent"}


def test_no_checkout_no_git_state(tmp_path: Path) -> None:
    assert git_state(tmp_path) == {}
    (tmp_path / ".git").mkdir()
    assert git_state(tmp_path) == {}


def test_a_record_that_is_no_object(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("[1]")
    run = RunDirectory(tmp_path)
    with pytest.raises(RunError, match=r"run\.json: holds no JSON object"):
        _ = run.record
    (tmp_path / "metrics.json").write_text("5")
    with pytest.raises(RunError, match=r"metrics\.json: holds no JSON object"):
        _ = run.metrics
    (tmp_path / "run.json").write_text('{"own_data": 5}')
    with pytest.raises(RunError, match="its own_data is no list"):
        _ = run.own_data
