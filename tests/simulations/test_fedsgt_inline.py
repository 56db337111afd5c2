"""FedSGT through the real ClientApp and strategy, in this process: exact, resumable, repairable."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import FileLock

from fedforget.errors import PlanError, RunError
from fedforget.files import home
from fedforget.runs import RunDirectory
from fedforget.sequences.ledger import DELETED, Ledger
from fedforget.sequential.deletions import deletion, forget, held
from fedforget.sequential.modules import PrefixModule
from fedforget.sequential.plan import Prefix, SequentialPlan
from fedforget.sequential.reference import train_sequences_locally
from fedforget.sequential.runs import SequentialRun
from fedforget.sequential.verify import verify_run
from simulations.inline import run_inline
from simulations.sequential_upkeep import due, prepare_repair, prepare_retrain, repair_here

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]


def hashes(run: RunDirectory) -> dict[Prefix, str]:
    with Ledger(run.ledger) as ledger:
        return {prefix: module.sha256 for prefix, module in ledger.live_modules().items()}


def plan_of(run: RunDirectory) -> SequentialPlan:
    with Ledger(run.ledger) as ledger:
        return SequentialPlan.of(ledger.groups(), ledger.sequences())


def delete_from(run: RunDirectory, group: int, count: int | None = 1) -> tuple[str, int, list[str]]:
    """Delete some records, or all, of the first slice of a group."""
    client, slice_id, _ = plan_of(run).groups[group][0]
    records = list(held(run)[client][slice_id])[:count]
    (outcome,) = forget(run, [deletion(client, slice_id, records if count else None)])
    assert outcome.status == DELETED
    return client, slice_id, records


def test_it_trains_what_the_reference_trains(six_groups: Path) -> None:
    run = RunDirectory(six_groups)
    reference = train_sequences_locally(run.sequential, plan_of(run))
    assert hashes(run) == {prefix: module.sha256 for prefix, module in reference.items()}
    assert len(reference) == 36


def test_no_prefix_is_trained_twice(six_groups: Path) -> None:
    with Ledger(six_groups / "ledger.sqlite") as ledger:
        entered = [tuple(e.payload["prefix"]) for e in ledger.history() if e.kind == "module"]
    assert len(entered) == len(set(entered)) == 36
    assert len(list((six_groups / "modules").iterdir())) == 36


def test_clients_keep_nothing_after_the_run(six_groups: Path) -> None:
    record = RunDirectory(six_groups).record
    assert not (home() / "modules" / record["run_id"]).exists()
    assert not (six_groups / "spool").exists()


def test_what_serves_is_exact_after_one_two_and_five_deletions(trained: RunDirectory) -> None:
    deleted: set[int] = set()
    for count, group in enumerate([3, 0, 5, 1, 4], start=1):
        delete_from(trained, group)
        deleted.add(group)
        if count not in (1, 2, 5):
            continue
        results = verify_run(trained.path)
        assert results
        assert [one.difference for one in results if not one.ok] == []
        assert all(deleted.isdisjoint(one.prefix) for one in results)
    assert set(hashes(trained)) == {(2,)}
    delete_from(trained, 2)
    assert verify_run(trained.path) == []


def test_repair_gives_what_training_without_the_records_gives(trained: RunDirectory) -> None:
    before = hashes(trained)
    gone = {}
    for group, count in ((2, 1), (4, 2)):
        client, slice_id, records = delete_from(trained, group, count)
        gone[client, slice_id] = tuple(records)
    kept = hashes(trained)
    assert prepare_repair(trained) == [2, 4]
    assert set(due(trained)) == set(before) - set(kept)
    assert hashes(trained) == kept  # they keep serving
    run_inline("", "", trained.path, action="carry on")
    after = hashes(trained)
    assert {prefix: after[prefix] for prefix in kept} == kept
    reference = train_sequences_locally(trained.sequential, plan_of(trained), without=gone)
    assert after == {prefix: module.sha256 for prefix, module in reference.items()}
    assert all(one.ok for one in verify_run(trained.path, [(2, 3, 4, 5, 0, 1)]))
    assert prepare_repair(trained) == []
    assert due(trained) == []


def test_retrain_groups_what_remains(trained: RunDirectory) -> None:
    whole, number, _ = delete_from(trained, 0, None)
    client, slice_id, records = delete_from(trained, 1, 2)
    assert "generation 1: 5 slices" in prepare_retrain(trained, 2, 2)
    run_inline("", "", trained.path, action="carry on")
    with SequentialRun(trained.path).ledger as ledger:
        assert ledger.generation() == 1
        assert len(ledger.requests()) == 2
        assert set(ledger.live_modules()) == {(0,), (1,), (0, 1), (1, 0)}
        slices = {item[:2]: item[2] for group in ledger.groups() for item in group}
    assert (whole, number) not in slices
    assert slices[client, slice_id] == len(held(trained)[client][slice_id]) - len(records)
    assert [one for one in verify_run(trained.path) if not one.ok] == []
    assert trained.record["regroup"] is None


def test_an_interrupted_retraining_is_carried_on(trained: RunDirectory) -> None:
    prepare_retrain(trained, 2, 2)
    with FileLock(trained.path / ".training.lock"), pytest.raises(RunError, match="another process"):
        run_inline("", "", trained.path, action="carry on")
    # Nothing had begun, so it may still be asked for differently; once begun, it may not.
    assert "6 slices" in prepare_retrain(trained, 3, 1)
    run_inline("", "", trained.path, action="carry on")
    trained.update(regroup={"generation": 0, "groups": 3, "sequences": 1})
    with pytest.raises(RunError, match="3 groups and 1 sequences was begun"):
        prepare_retrain(trained, 2, None)
    assert prepare_retrain(trained, None, None) == (
        "generation 1: carrying on with the retraining that was begun"
    )
    run_inline("", "", trained.path, action="carry on")
    assert set(hashes(trained)) == {(0,), (0, 1), (0, 1, 2)}


def test_a_retraining_that_cannot_be_planned_changes_nothing(trained: RunDirectory) -> None:
    before = trained.record
    with pytest.raises(PlanError, match="7 groups cannot be formed from 6 slices"):
        prepare_retrain(trained, 7, None)
    assert trained.record == before


@pytest.mark.parametrize(
    "overrides",
    [
        "grouping.method=barycentre grouping.groups=2 sequences.budget=2 training.rounds_per_phase=2",
        "data.partition=dirichlet module.kind=ia3 grouping.groups=2 sequences.budget=1",
        "module.kind=dora module.dropout=0.1 grouping.groups=2 sequences.budget=2",
    ],
)
def test_other_configurations_agree_with_the_reference(tmp_path: Path, overrides: str) -> None:
    run = run_inline("fedsgt-ci", f"data.max_records=36 {overrides}", tmp_path / "run")
    reference = train_sequences_locally(run.sequential, plan_of(run))
    assert hashes(run) == {prefix: module.sha256 for prefix, module in reference.items()}


def test_killed_in_training_and_resumed(tmp_path: Path) -> None:
    out = tmp_path / "killed"
    code = f"from simulations.inline import run_inline; run_inline('fedsgt-ci', '', {str(out)!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        while _recorded(out) < 4 and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    recorded = _recorded(out)
    assert 4 <= recorded < 9
    before = hashes(RunDirectory(out))
    assert len(before) == recorded
    run = run_inline("fedsgt-ci", "", out)
    assert run.record["status"] == "completed"
    whole = train_sequences_locally(run.sequential, plan_of(run))
    assert hashes(run) == {prefix: module.sha256 for prefix, module in whole.items()}
    assert before.items() <= hashes(run).items()
    with Ledger(run.ledger) as ledger:
        assert sum(event.kind == "module" for event in ledger.history()) == 9


def _recorded(out: Path) -> int:
    path = out / "ledger.sqlite"
    if not path.is_file():
        return 0
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30) as db:
        return int(db.execute("SELECT count(*) FROM modules").fetchone()[0])


def test_a_module_file_that_was_changed_does_not_serve(trained: RunDirectory) -> None:
    from fedforget.errors import ModelError
    from fedforget.sequential.served import measure

    with Ledger(trained.ledger) as ledger:
        path = trained.path / ledger.live_modules()[2,].path
    module = PrefixModule.load(path)
    name = next(name for name in module.tensors if "classifier" in name)
    PrefixModule(module.prefix, {**module.tensors, name: module.tensors[name] + 1}).save(path)
    with pytest.raises(ModelError, match="changed since"):
        measure(trained)


def test_what_an_interrupted_training_left_of_deleted_data_goes_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_short(*_: object) -> bool:
        raise RuntimeError("cut short")

    with monkeypatch.context() as patch:
        patch.setattr("strategies.fedsgt.record", cut_short)
        with pytest.raises(RuntimeError, match="cut short"):
            run_inline("fedsgt-ci", "", tmp_path / "run")
    run = RunDirectory(tmp_path / "run")

    def spooled() -> set[Prefix]:
        facts = (run.path / "spool").glob("*.json")
        return {tuple(json.loads(one.read_text())["prefix"]) for one in facts}

    assert spooled() == {(0,), (1,), (2,)}
    delete_from(run, 1)
    assert spooled() == {(0,), (2,)}
    assert {one.suffix for one in (run.path / "spool").iterdir()} == {".json", ".safetensors"}
    assert len(list((run.path / "spool").glob("*.safetensors"))) == len(
        list((run.path / "spool").glob("*.json"))
    )
    run_inline("fedsgt-ci", "", run.path)
    assert set(hashes(run)) == {(0,), (2,), (2, 0)}


def test_a_repair_does_not_begin_a_retraining_that_was_left_undone(trained: RunDirectory) -> None:
    delete_from(trained, 3)
    before = hashes(trained)
    prepare_retrain(trained, 2, 2)
    repair_here(trained)
    after = hashes(trained)
    assert len(after) == 36
    assert {prefix: after[prefix] for prefix in before} == before
