"""FedSGT's rounds after deletions: repair, a new generation, clients that withdrew."""

from __future__ import annotations

from pathlib import Path

import pytest
from sequential_fakes import NAMES, SIZE, FakeClients, hashes, make_fedsgt

from fedforget.errors import RunError
from fedforget.sequences.ledger import Ledger
from fedforget.sequential.config import (
    SequentialRunConfig,
)
from fedforget.sequential.protocol import Work


def test_a_deletion_during_training_takes_its_modules_out(
    sequential: SequentialRunConfig, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    done: list[str] = []

    def before(name: str, work: list[Work]) -> None:
        if len(work[0].prefix) == 2 and not done:
            with Ledger(path / "ledger.sqlite") as ledger:
                client, slice_id, _ = ledger.groups()[0][0]
                done.append(ledger.request_deletion("r1", client, slice_id, ["a"]).status)

    strategy = make_fedsgt(sequential, path)
    strategy.start(FakeClients(NAMES, before=before).mock)  # type: ignore[arg-type]
    assert done == ["deleted"]
    live = strategy.ledger.live_modules()
    assert live
    assert all(0 not in prefix for prefix in live)
    assert set(live) == {prefix for prefix in strategy.plan.tree.nodes if 0 not in prefix}
    strategy.ledger.check()
    files = {f.stem for f in strategy.run.modules.iterdir()}
    assert files == {module.sha256 for module in live.values()}
    # The modules of depth 1 had been recorded before; the ones of depth 2 with group 0 were dropped.
    assert [m.prefix for m in strategy.ledger.modules("off")] == [(0,)]


def test_repair_trains_the_suffixes_without_the_deleted_records(
    sequential: SequentialRunConfig, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    strategy = make_fedsgt(sequential, path)
    strategy.start(FakeClients(NAMES).mock)
    before = hashes(path)
    client, slice_id, _ = strategy.ledger.groups()[1][0]
    strategy.ledger.request_deletion("r1", client, slice_id, ["a", "b"])
    kept = hashes(path)
    assert set(kept) == {prefix for prefix in before if 1 not in prefix}
    strategy.ledger.repair([1])
    again = make_fedsgt(sequential, path)
    grid = FakeClients(NAMES)
    again.start(grid.mock)
    after = hashes(path)
    assert set(after) == set(before)
    assert {p: h for p, h in after.items() if 1 not in p} == kept
    assert all(after[p] != before[p] for p in after if 1 in p)
    assert {p for _, p in grid.trained} == {p for p in after if 1 in p}
    live = again.ledger.live_modules()
    assert live[1,].examples == SIZE * len(again.plan.slices((1,))) - 2


def test_retrain_begins_a_generation_once(sequential: SequentialRunConfig, tmp_path: Path) -> None:
    path = tmp_path / "run"
    strategy = make_fedsgt(sequential, path)
    strategy.start(FakeClients(NAMES).mock)
    strategy.ledger.request_deletion("r1", "client-01", 0)
    regroup = {"generation": 0, "groups": 2, "sequences": 2}
    again = make_fedsgt(sequential, path, regroup=regroup)
    again.start(FakeClients(NAMES).mock)
    assert again.ledger.generation() == 1
    assert len(again.plan.groups) == 2
    assert ("client-01", 0) not in {s[:2] for group in again.plan.groups for s in group}
    assert set(again.ledger.live_modules()) == {(0,), (1,), (0, 1), (1, 0)}
    assert len(again.ledger.requests()) == 1
    third = FakeClients(NAMES)
    make_fedsgt(sequential, path, regroup=regroup).start(third.mock)
    assert third.trained == []
    assert Ledger(path / "ledger.sqlite").generation() == 1


def test_a_client_that_withdrew_is_needed_no_more(sequential: SequentialRunConfig, tmp_path: Path) -> None:
    nodes = {7: "client-02", 8: "client-00", 9: "client-01"}
    sequential.simulation.nodes = 3
    strategy = make_fedsgt(sequential, tmp_path / "run")
    strategy.start(FakeClients(NAMES, nodes=nodes).mock)
    strategy.ledger.request_deletion("r1", "client-02")
    strategy.ledger.repair(sorted(strategy.ledger.deleted_groups()))
    del nodes[7]
    again = make_fedsgt(sequential, tmp_path / "run")
    again.start(FakeClients(NAMES, nodes=nodes).mock)
    assert set(again.clients) == {"client-00", "client-01"}
    assert all("client-02" not in module.participants for module in again.ledger.live_modules().values())
    assert (0,) in again.ledger.live_modules()
    strategy.ledger.request_deletion("r2", "client-01", 0)
    del nodes[9]
    sequential.simulation.timeout = 0.01
    with pytest.raises(RunError, match=r"1 of 2 nodes connected within"):
        make_fedsgt(sequential, tmp_path / "run").start(FakeClients(NAMES, nodes=nodes).mock)


def test_embeddings_are_not_asked_of_a_client_that_withdrew(
    sequential: SequentialRunConfig, tmp_path: Path
) -> None:
    sequential.grouping.method = "barycentre"
    strategy = make_fedsgt(sequential, tmp_path / "run")
    strategy.start(FakeClients(NAMES).mock)
    strategy.ledger.request_deletion("r1", "client-01")
    grid = FakeClients(NAMES)
    again = make_fedsgt(sequential, tmp_path / "run", regroup={"generation": 0, "groups": 2, "sequences": 2})
    again.start(grid.mock)
    assert grid.embeddings_asked == 2
    assert again.ledger.generation() == 1
    assert len(again.ledger.live_modules()) == 4
