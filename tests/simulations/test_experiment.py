"""The experiment on exact unlearning: matching, cells that are run once, and figures of stored numbers."""

from __future__ import annotations

import csv
import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from fedforget import cli
from fedforget.data.records import Corpus, Records
from fedforget.errors import ConfigError, RunError
from fedforget.files import read_json, write_json
from fedforget.presets import load_sequential
from fedforget.sequences.ledger import Deletion
from fedforget.sequential.deletions import deletion, read_requests
from simulations.experiment import panels, summaries, tables
from simulations.experiment.cells import BASE, RESULT, load_results
from simulations.experiment.course import Course, Pace
from simulations.experiment.figures import FIGURES, draw
from simulations.experiment.matching import configured, match
from simulations.experiment.page import write_page
from simulations.experiment.plan import ABLATIONS, cells_of
from simulations.experiment.predicted import exact_life, predicted
from simulations.experiment.workers import run_cells
from simulations.methods import Cost

pytestmark = pytest.mark.integration

SMALL = ["clustering.clusters=2", "training.rounds=2", "data.max_records=48"]
PACE = Pace(every=1, horizon=2)


def cells(methods: list[str], *overrides: str, seeds: tuple[int, ...] = (0,), **more):  # type: ignore[no-untyped-def]
    return cells_of(["fedsgt-ci"], [*SMALL, *overrides], methods, seeds, rule="formula", pace=PACE, **more)


@pytest.fixture(scope="session")
def ran(tiny_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods on a small setting, stored; copy before changing anything."""
    out = tmp_path_factory.mktemp("experiment")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDFORGET_HOME", str(tiny_home))
        left = run_cells(cells(["FedSGT", "FedCIO", "FedRetrain"]), out, workers=1, say=lambda _: None)
    assert left == 0
    return out


@pytest.fixture
def stored(ran: Path, tmp_path: Path) -> Path:
    return shutil.copytree(ran, tmp_path / "stored")


def test_costs_are_matched_by_the_formula() -> None:
    config = load_sequential("exact-digits-iid")
    found = match(config)
    assert (found.budget, found.rounds, found.modules) == (9, 5, 9)
    assert found.residual == pytest.approx(0.0)
    paper = load_sequential("exact-digits-iid", "grouping.groups=10 training.rounds=10")
    found = match(paper)
    assert found.wanted == pytest.approx(2 * 10 * 10 / 11)  # 18.2, not the text's 36
    assert found.budget == 18
    assert -0.02 < found.residual < 0  # rounding, and prefixes that 18 sequences share
    avg, sgt = configured(paper, "FedAvg", found), configured(paper, "FedSGT", found)
    assert (avg.module.r, avg.module.alpha) == (10 * paper.module.r, 10 * paper.module.alpha)
    assert (avg.training.rounds, sgt.sequences.budget, sgt.module.r) == (10, 18, paper.module.r)
    examples = match(paper, "examples")
    # B = 9 rotations of 10 groups pass (10 + 1) / 2 times the data each.
    assert (examples.rounds, examples.modules, examples.wanted) == (50, 1, pytest.approx(49.5))
    with pytest.raises(ConfigError, match="--match: 'formulas' is not one of"):
        match(paper, "formulas")


class Ends:
    """Serves until a number of requests; what it knows of a record is in its numbers."""

    name, exact = "FedSGT", True

    def __init__(self, life: int) -> None:
        self.left, self.recovered, self.spent = life, 0, 0.0

    def train(self) -> None:
        self.spent += 1.0

    def forget(self, request: Deletion) -> bool:
        self.left -= 1
        return self.left > 0

    def recover(self) -> bool:
        self.left, self.recovered, self.spent = 99, self.recovered + 1, self.spent + 7.0
        return True

    def probabilities(self, records: Records) -> np.ndarray | None:
        if self.left <= 0:
            return None
        first = 0.9 if self.recovered else 0.6
        return np.tile([first, 1 - first], (len(records), 1))

    def cost(self) -> Cost:
        return Cost(seconds=self.spent)

    def close(self) -> None: ...


def course(method: Ends, pace: Pace, count: int = 9) -> dict:
    ids = [f"r{i}" for i in range(10)]
    data = Records.of(ids, np.zeros((10, 2, 2)), [0] * 10)
    test = Records.of(["t0", "t1", "t2", "t3"], np.zeros((4, 2, 2)), [0, 0, 0, 1])
    corpus = Corpus(Records.of([], np.zeros((0, 2, 2)), []), data, test, ("a", "b"), "image")
    requests = [deletion("c", 0, [ids[i]], f"q{i}") for i in range(count)]
    return Course(method, requests, corpus, {"c": {0: tuple(ids)}}, pace).run()


def test_a_course_ends_with_service_and_measures_the_recovery() -> None:
    found = course(Ends(4), Pace(every=2, verify=False))
    assert [row["accuracy"] for row in found["course"]] == [0.75, 0.75, 0.75, 0.75, None]
    assert (found["life"], found["recovery"]["seconds"], found["recovery"]["accuracy"]) == (4, 7.0, 0.75)
    assert [row["after"] for row in found["membership"]] == [2]
    assert found["membership"][0]["records"] == ["r0", "r1"]
    assert found["membership"][0]["before"] == pytest.approx([np.log(0.6)] * 2)
    assert found["training"]["seconds"] == 1.0
    assert course(Ends(4), Pace(verify=False, recover=False))["recovery"] is None
    assert course(Ends(99), Pace(verify=False), count=3)["life"] is None


def test_methods_that_recover_are_measured_after_recoveries_alone() -> None:
    method = Ends(99)
    method.exact = False
    found = course(method, Pace(every=3, horizon=7))
    assert [row["after"] for row in found["course"]] == [0, 3, 6]
    assert [bool(row["recovery"]) for row in found["course"]] == [False, True, True]
    assert found["life"] is None
    assert summaries.life(found) is None
    assert summaries.life({**found, "exact": True}) == 1
    assert found["membership"][0]["now"] == pytest.approx([np.log(0.9)] * 3)


def test_every_method_gets_the_same_stream_and_exact_ones_the_same_bits(ran: Path) -> None:
    results = load_results(ran)
    assert [one["method"] for one in results] == ["FedCIO", "FedRetrain", "FedSGT"]
    assert len({one["stream"]["sha256"] for one in results}) == 1
    assert read_requests(ran / "fedsgt-ci" / BASE / results[0]["stream"]["file"])
    for one in results:
        assert one["exact"]
        assert one["verified"]["same"] == one["verified"]["modules"] > 0
        assert one["training"]["examples"] > 0
    sgt = results[2]
    assert sgt["life"] == sgt["course"][-1]["after"] >= 3
    assert sgt["course"][-1]["accuracy"] is None
    assert sgt["predicted"]["life"] == pytest.approx(5.5)  # 3 (1 + 1/2 + 1/3)
    assert sgt["course"][0]["longest"] == 1.0
    # Planned: three rotations of three groups, two rounds of adapters three times as large.
    assert summaries.cost_units(sgt) == pytest.approx(6.0)
    assert summaries.cost_units(results[1]) == pytest.approx(6.0)
    assert not list(ran.rglob("*.safetensors"))  # modules go when they have been measured


def test_finished_cells_are_not_run_again(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulations.experiment.workers.run_cell", lambda *_: pytest.fail("ran again"))
    assert run_cells(cells(["FedSGT", "FedCIO", "FedRetrain"]), stored, workers=1, say=print) == 0
    # An ablation's base is the same cell, of which it asks less.
    ablation = [c for c in cells([], ablation="rule") if c.variant == BASE]
    assert run_cells(ablation, stored, workers=1, say=print) == 0
    # A cell that was cut short has a run and no result.
    (path,) = stored.glob(f"*/*/FedCIO/seed-0/{RESULT}")
    path.unlink()
    told: list[str] = []
    assert run_cells(cells(["FedCIO"]), stored, workers=1, minutes=1e-9, say=told.append) == 1
    assert "1 cells are left" in told[-1]


def test_a_changed_configuration_is_refused_by_name(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = cells(["FedSGT"], "training.batch_size=8")
    with pytest.raises(RunError, match=r"config\.training\.batch_size: 16 then, 8 now\).*--again"):
        run_cells(changed, stored, workers=1)
    monkeypatch.setattr(
        "simulations.experiment.workers.run_cell", lambda cell, out: ran_again.append(str(cell))
    )
    ran_again: list[str] = []
    run_cells(changed, stored, workers=1, again=True)
    assert ran_again == ["fedsgt-ci base FedSGT seed 0"]


def test_a_cell_that_fails_leaves_the_others(tmp_path: Path) -> None:
    both = [*cells(["FedAvg"], "training.learning_rate=1e30"), *cells(["FedAvg"], seeds=(1,))]
    with pytest.raises(RunError, match=r"1 of 2 cells failed(?s:.*)FedAvg seed 0: (?s:.*)client-00"):
        run_cells(both, tmp_path, workers=1)
    assert [one["seed"] for one in load_results(tmp_path)] == [1]


def test_more_groups_than_subsets_can_hold_still_have_an_expected_life(tmp_path: Path) -> None:
    config = load_sequential("exact-digits-iid", "grouping.groups=24 sequences.budget=24")  # of 50 slices
    told = predicted("FedSGT", config)
    assert told is not None
    sizes = [2] * 22 + [3] * 2
    drawn = np.random.default_rng(0).choice(24, size=(400, 1000), p=np.divide(sizes, 50))
    lives = 1 + np.max([np.argmax(drawn == group, axis=1) for group in range(24)], axis=0)
    assert told["life"] == pytest.approx(np.mean(lives), abs=4 * np.std(lives) / 20)
    assert told["remaining"] is None
    assert exact_life([(group,) for group in range(30)], list(range(1, 31))) is None


def test_what_fedsgt_is_told_and_asked_is_what_it_trains() -> None:
    (cell,) = cells_of(["sisa-digits"], [], ["FedSGT"], [0], rule="none", pace=PACE)
    assert "shards: 0" in cell.config
    assert "shards: 0" in cell.stream


def test_one_process_at_a_time_and_nothing_that_is_no_result(stored: Path) -> None:
    with FileLock(stored / ".running.lock"), pytest.raises(RunError, match="another process is running"):
        run_cells(cells(["FedSGT"]), stored, workers=1)
    (path,) = stored.glob(f"*/*/FedSGT/seed-0/{RESULT}")
    write_json(path, [])
    with pytest.raises(RunError, match="is no cell's result; remove it"):
        load_results(stored)
    with pytest.raises(RunError, match="is no cell's result; remove it"):
        run_cells(cells(["FedSGT"]), stored, workers=1)


def test_the_page_says_what_requests_were_and_what_ran_at_which_commit(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulations.experiment.page.save_figures", lambda *_: {})
    results = load_results(stored)
    for changed, said in (
        ({}, "each naming 2 records of one slice (uniform requests). A seed"),
        ({"kind": "withdrawal"}, "each withdrawing a client with all that it holds. A seed"),
        ({"file": "stream.jsonl"}, "replayed from a file. A seed"),
    ):
        for one in results:
            one["asked"]["stream"]["requests"].update(changed)
        write_page(results, [], tmp_path / "page.md")
        assert said in (tmp_path / "page.md").read_text()
    for one in results:
        one["git"] = {"commit": "aaa" if one["method"] == "FedCIO" else "bbb"}
    write_page(results, [], tmp_path / "page.md")
    assert "at commit aaa (FedCIO), bbb (FedRetrain, FedSGT); page at" in (tmp_path / "page.md").read_text()


def test_a_command_that_is_refused_is_not_on_the_page(stored: Path) -> None:
    words = ["experiment", "exact", "--preset", "fedsgt-ci", "--methods", "FedSGT", "--seeds", "0"]
    assert run(*words, "--every", "1", "--out", stored, *SMALL, "training.batch_size=8") == 1
    assert not (stored / "commands.json").exists()


def test_cells_over_ray_are_those_of_this_process(ran: Path, tmp_path: Path) -> None:
    assert run_cells(cells(["FedRetrain"]), tmp_path, workers=2) == 0
    (apart,) = load_results(tmp_path)
    here = next(one for one in load_results(ran) if one["method"] == "FedRetrain")
    assert apart["membership"] == here["membership"]
    assert [row["accuracy"] for row in apart["course"]] == [row["accuracy"] for row in here["course"]]
    assert apart["stream"] == here["stream"]


def test_figures_show_the_stored_numbers_and_follow_them(stored: Path) -> None:
    (path,) = stored.glob(f"*/*/FedSGT/seed-0/{RESULT}")
    record = read_json(path)

    def drawn() -> dict[str, list[list[float]]]:
        found = {}
        for name, (_, data) in FIGURES.items():
            shown = data(load_results(stored))
            if not shown:
                continue
            axes = draw(shown).axes
            lines = [list(line.get_ydata()) for one in axes for line in one.get_lines()]  # type: ignore[arg-type]
            found[name] = [*lines, *(list(line.get_xdata()) for one in axes for line in one.get_lines())]  # type: ignore[arg-type]
        return found

    before = drawn()
    accuracies = [row["accuracy"] for row in record["course"] if row["accuracy"] is not None]
    assert accuracies in before["accuracy"]
    assert record["predicted"]["remaining"] in before["remaining"]
    assert record["predicted"]["survival"] in before["survival"]
    record["course"][1]["accuracy"] = 0.123
    record["course"][1]["longest"] = 0.456
    record["predicted"]["survival"][3] = 0.789
    record["training"]["bytes_sent"] += 10**9
    for point in record["membership"]:
        point["now"] = [9.0] * len(point["now"])
    write_json(path, record)
    after = drawn()
    assert "ablations" not in after
    for name in after:
        assert after[name] != before[name], name
    assert [accuracies[0], 0.123, *accuracies[2:]] in after["accuracy"]
    assert any(0.456 in line for line in after["remaining"])


def test_ablations_are_drawn_beside_the_base(stored: Path) -> None:
    results = load_results(stored)
    base = next(one for one in results if one["method"] == "FedSGT")
    other = json.loads(json.dumps(base)) | {"variant": "B=1"}
    (panel,) = panels.ablation_panels([*results, other])
    assert [line.label for line in panel.lines] == [BASE, "B=1"]
    table = tables.ablation_table([*results, other], "fedsgt-ci")
    assert table is not None
    assert [row[0] for row in table.rows] == [BASE, "B=1"]
    assert tables.ablation_table(results, "fedsgt-ci") is None


def test_membership_is_told_beside_retraining(ran: Path) -> None:
    results = load_results(ran)
    retrained = summaries.membership(results, "fedsgt-ci", "FedRetrain")
    assert retrained is not None
    assert (retrained.difference.value, retrained.difference.standard_error) == (0.0, 0.0)
    ours = summaries.membership(results, "fedsgt-ci", "FedSGT")
    assert ours is not None
    assert ours.difference.value == pytest.approx(ours.now.value - ours.retrained.value)


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main([str(word) for word in words])
    return int(str(ended.value.code or 0))


def test_the_command_carries_on_and_writes_its_page(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["experiment", "exact", "--preset", "fedsgt-ci", "--methods", "FedSGT,FedCIO,FedRetrain"]
    words += ["--seeds", "0", "--every", "1", "--horizon", "2", "--out", str(stored), "--workers", "1"]
    page = tmp_path / "docs" / "page.md"
    assert run(*words, "--page", page, *SMALL) == 0, capsys.readouterr().err
    text = page.read_text()
    assert (
        "fedforget experiment exact --preset fedsgt-ci --methods FedSGT,FedCIO,FedRetrain --seeds 0" in text
    )
    assert "training.rounds=2" in text
    assert "at commit " in text
    assert "FedCIO's given its clusters" in text
    assert "## The paper's claims" in text
    assert "](page/accuracy.png)" in text
    assert (page.parent / "page" / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    with open(stored / "course.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["method"] == "FedSGT"]
    (path,) = stored.glob(f"*/*/FedSGT/seed-0/{RESULT}")
    kept = [row["accuracy"] for row in read_json(path)["course"]]
    assert [row["accuracy"] for row in rows] == ["" if one is None else str(one) for one in kept]
    assert "3 of them finished before" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "FedSGD"], "'FedSGD' is not one of"),
        (["--ablation", "C"], "--ablation: 'C' is not one of B, S, L"),
        (["--ablation", "B", "--values", "x"], "'x' is not a whole number"),
        (["--ablation", "B", "--values", "0"], "sequences.budget"),
        (["--ablation", "B", "--methods", "FedCIO"], "is of FedSGT alone"),
        (["--values", "1"], "name it with --ablation"),
        (["--match", "cost"], "--match: 'cost' is not one of"),
        (["--preset", "digits"], "no preset or YAML file 'digits'"),
        (["--preset", "digits-iid", "--preset", "exact-digits-iid"], "is asked for twice"),
        (["--methods", "FedCIO,FedCIO"], "is asked for twice"),
        (["--ablation", "B", "--values", "3,3"], "is asked for twice"),
        (["clustering.clusters=50"], "10 clients cannot form 50 clusters"),
        (["--methods", "FedAvg,SISA"], "SISA is a method for data in one place"),
        (["seeds.data=5"], "seeds.data: cannot be overridden here; it is set by --seeds"),
        (["method=fedcio"], "method: cannot be overridden here; it is set by --methods"),
    ],
)
def test_what_cannot_be_run_is_refused(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("experiment", "exact", "--out", tmp_path, *words) == 1
    assert message in capsys.readouterr().err


def test_every_ablation_is_a_valid_configuration() -> None:
    for name in ABLATIONS:
        found = cells_of(["digits-small"], [], [], [0], rule="formula", pace=PACE, ablation=name)
        assert sum(cell.variant == BASE for cell in found) == 1, name
        assert len({cell.variant for cell in found}) == len(found) >= 2


def test_a_cell_in_this_process_leaves_flowers_logger_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger, inside = logging.getLogger("flwr"), []
    before = logger.level
    monkeypatch.setattr(
        "simulations.experiment.workers.run_cell", lambda cell, out: inside.append(logger.level)
    )
    run_cells(cells(["FedRetrain"]), tmp_path, workers=1, say=lambda _: None)
    assert inside == [logging.WARNING]
    assert logger.level == before != logging.WARNING
