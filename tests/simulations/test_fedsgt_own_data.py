"""FedSGT over deployed clients with data of their own, and verification where the data are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clients.client_app import app
from fedforget import cli
from fedforget.data.own_records import own_client, own_records, own_slices
from fedforget.errors import DataError, RunError
from fedforget.presets import load_sequential
from fedforget.runs import RunDirectory
from fedforget.sequences.ledger import Ledger
from fedforget.sequential.deletions import deletion, forget
from fedforget.sequential.verify import VerificationError, verify_run
from simulations import sequential_upkeep
from simulations.inline import InlineGrid, task_identity
from simulations.options import Backend
from simulations.sequential import verify_sequential
from simulations.sequential_upkeep import prepare_repair
from simulations.server_app import carry_on, run_unlearning

pytestmark = pytest.mark.integration

SMALL = "data.clients=2 data.slices=2 grouping.groups=2 sequences.budget=2 simulation.nodes=2"


def rows(seed: int, count: int = 14) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [
        {"id": f"scan-{i}", "image": rng.integers(0, 17, (8, 8)).tolist(), "label": i % 10}
        for i in range(count)
    ]


def write(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in records))


@pytest.fixture
def grid(tmp_path: Path) -> InlineGrid:
    names = ["client-00", "client-01"]
    for seed, name in enumerate(names):
        write(tmp_path / f"{name}.jsonl", rows(seed))
    nodes = [{"client-id": name, "data": str(tmp_path / f"{name}.jsonl")} for name in names]
    with task_identity():
        return InlineGrid(app, nodes)


def test_a_federation_with_data_of_its_own(grid: InlineGrid, tmp_path: Path) -> None:
    file = tmp_path / "client-00.jsonl"
    with task_identity():
        run = run_unlearning(grid, "fedsgt-ci", SMALL, str(tmp_path / "run"), poll=0.0)
    config = run.sequential
    slices = own_slices(config, "client-00", [row["id"] for row in rows(0)])
    with Ledger(run.ledger) as ledger:
        declared = {item[:2]: item[2] for group in ledger.groups() for item in group}
        assert len(ledger.live_modules()) == 4
    assert run.own_data == ["client-00", "client-01"]
    assert {i: declared["client-00", i] for i in slices} == {i: len(ids) for i, ids in slices.items()}
    # The server cannot read the data, and says so.
    with pytest.raises(RunError, match=r"out of this machine's reach.*--through-clients"):
        verify_run(run.path)
    with pytest.raises(RunError, match="delete the slice or the client"):
        forget(run, [deletion("client-00", 0, ["scan-1"])])
    with Ledger(run.ledger) as ledger:
        assert ledger.requests() == []
    forget(run, [deletion("client-00", 0, None)])
    assert prepare_repair(run)
    with pytest.raises(RunError, match="deployed one with --superlink"):
        sequential_upkeep.carry_on(run, Backend.INLINE)
    bare = InlineGrid(app, [{"partition-id": 0}, {"partition-id": 1}])
    with task_identity(), pytest.raises(RunError, match="this node declares none"):
        carry_on(bare, str(run.path), poll=0.0)
    with task_identity():
        carry_on(grid, str(run.path), poll=0.0)
        verify_sequential(grid, config, run, 0.0)
    compared = run.metrics["verification"]["modules"]
    assert len(compared) == 4
    assert all(one["ok"] for one in compared)
    assert not (run.path / ".verification").exists()
    # Removing the rows themselves moves no other record, so the bits stay.
    write(file, [row for row in rows(0) if row["id"] not in slices[0]])
    run.update(to_verify=[[1]])
    with task_identity():
        verify_sequential(grid, config, run, 0.0)
        assert [one["prefix"] for one in run.metrics["verification"]["modules"]] == [[1]]
        # A client whose records are not what the modules were trained on does not pass.
        write(file, [{**row, "label": 0} for row in rows(0) if row["id"] not in slices[0]])
        run.update(to_verify=None)
        with pytest.raises(VerificationError, match="not what the remaining data give"):
            verify_sequential(grid, config, run, 0.0)
        write(file, [row for row in rows(0) if row["id"] not in (*slices[0], slices[1][0])])
        with pytest.raises(RunError, match=r"client-00.*its slices hold"):
            verify_sequential(grid, config, run, 0.0)
    assert "its slices hold" in run.metrics["verification"]["error"]


def test_data_without_a_client_id_are_refused(tmp_path: Path) -> None:
    with task_identity():
        grid = InlineGrid(app, [{"partition-id": 0, "data": str(tmp_path)}])
        with pytest.raises(RunError, match="gives data but no client-id"):
            run_unlearning(grid, "fedsgt-ci", "simulation.nodes=1", str(tmp_path / "run"), poll=0.0)


def test_slices_depend_on_ids_alone(tmp_path: Path) -> None:
    config = load_sequential("fedsgt-ci", SMALL)
    whole = own_slices(config, "client-00", [f"r{i}" for i in range(40)])
    half = own_slices(config, "client-00", [f"r{i}" for i in range(39, 0, -2)])
    assert all(set(half[i]) <= set(whole[i]) for i in whole)
    assert min(map(len, whole.values())) > 8
    assert own_slices(config, "client-01", [f"r{i}" for i in range(40)]) != whole


def test_texts_from_a_folder_of_csv_files(tmp_path: Path) -> None:
    config = load_sequential("fedsgt-text", "data.columns.id=number data.columns.label=kind")
    (tmp_path / "a.csv").write_text("number,text,kind\n7,Iron is an element,0\n")
    (tmp_path / "b.csv").write_text("number,text,kind\n3,Rome is a city,1\n")
    found = own_records(config, tmp_path)
    assert found.ids == ("3", "7")
    assert found.inputs == ("Rome is a city", "Iron is an element")
    assert found.labels.tolist() == [1, 0]
    kept = own_client(config, "c", tmp_path, without={0: None, 1: ("3", "7", "gone")})
    assert 0 not in kept.slices


def test_ids_and_texts_of_a_csv_file_are_what_is_written_there(tmp_path: Path) -> None:
    config = load_sequential("fedsgt-text")
    (tmp_path / "a.csv").write_text("id,text,label\n007,NA,0\n7,1.50,1\n")
    found = own_records(config, tmp_path)
    assert dict(zip(found.ids, found.inputs, strict=True)) == {"007": "NA", "7": "1.50"}


def _drop(key: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda row: {name: value for name, value in row.items() if name != key}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_drop("label"), "there is no column 'label'"),
        (lambda row: {**row, "id": "same"}, "record 'same' appears twice"),
        (lambda row: {**row, "id": None}, "row 0: its 'id' is empty"),
        (lambda row: {**row, "label": 10}, "row 0: its label is 10"),
        (lambda row: {**row, "image": [[1, 2]]}, r"data\.jsonl: .*8 lists of 8 numbers"),
        (lambda row: {**row, "image": [[17] * 8] * 8}, "from 0 to 16"),
        (lambda row: {**row, "image": [[float("nan")] * 8] * 8}, "from 0 to 16"),
    ],
)
def test_rows_that_are_no_records(
    tmp_path: Path, change: Callable[[dict[str, Any]], dict[str, Any]], message: str
) -> None:
    config = load_sequential("fedsgt-ci", SMALL)
    write(tmp_path / "data.jsonl", [change(row) for row in rows(0, 3)])
    with pytest.raises(DataError, match=message):
        own_client(config, "client-00", tmp_path / "data.jsonl")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    config = load_sequential("fedsgt-ci", SMALL)
    with pytest.raises(DataError, match=r"client 'client-00'.*is not there"):
        own_client(config, "client-00", tmp_path / "none.jsonl")
    with pytest.raises(DataError, match=r"holds no \.jsonl"):
        own_records(config, tmp_path)
    (tmp_path / "a.jsonl").write_text("{")
    with pytest.raises(DataError, match="cannot be read as records"):
        own_records(config, tmp_path)
    (tmp_path / "b.csv").write_text("id\n")
    with pytest.raises(DataError, match="holds csv and json; keep one"):
        own_records(config, tmp_path)


@pytest.mark.parametrize(
    ("name", "content"), [("a.jsonl", ""), ("a.jsonl", "\n\n"), ("a.csv", "id,image,label\n")]
)
def test_files_without_rows(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=r"client 'client-00'.*holds no rows"):
        own_client(load_sequential("fedsgt-ci", SMALL), "client-00", tmp_path / name)


def test_verify_through_simulated_clients(trained: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["verify", str(trained.path), "--prefix", "2,3", "--through-clients", "--backend", "inline"]
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 0
    assert "2 of 2 modules came out as the same bits." in capsys.readouterr().out
    trained.update(own_data=["client-00"])
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 1
    assert "the deployed one with --superlink" in capsys.readouterr().err
