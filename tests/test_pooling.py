"""Folders of one run per seed: commands go over all of them, and one page has the means."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedforget import cli
from fedforget.data import load_data
from fedforget.evaluation import Suite
from fedforget.files import write_json
from fedforget.models import Backbone
from fedforget.pooling import differences, pool, pool_metrics, seed_runs
from fedforget.reporting.over_seeds import difference_table
from fedforget.reporting.pooled import BEGIN, END, write_pooled
from fedforget.reporting.tables import number
from fedforget.runs import RunDirectory
from fedforget.sweeps.files import results


def test_a_sweep_of_every_seed_is_pooled(
    stored_run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "seeds"
    for seed in (10, 2):
        shutil.copytree(stored_run.path, folder / f"seed-{seed}")
    (folder / "seed-x").mkdir()
    assert [run.path.name for run in seed_runs(folder)] == ["seed-2", "seed-10"]
    assert seed_runs(stored_run.path) == []
    measured = {"domains": {}, "collapse": [], "split": "report"}
    for run, value in zip(seed_runs(folder), (0.5, 0.7), strict=True):
        one = {"accuracy": value, "count": 10, "chance": 0.25, "standard_error": 0.1}
        run.update_metrics(before=measured | {"forget": one})
    with pytest.raises(SystemExit) as ended:
        cli.main(["sweep", str(folder), "--method", "avg", "--gamma", "1"])
    assert not ended.value.code
    assert "Sweep over seeds" in capsys.readouterr().out
    pooled = json.loads((folder / "pooled.json").read_text())
    assert pooled["runs"] == ["seed-2", "seed-10"]
    assert pooled["before"]["forget"]["mean"] == pytest.approx(0.6)
    # Deviation 0.1414 of two: half width t(.975, 1) * .1414 / sqrt(2) = 12.706 * 0.1.
    assert pooled["before"]["forget"]["half_width"] == pytest.approx(1.2706, abs=1e-4)
    (swept,) = pooled["sweep"]
    assert (swept["method"], swept["parameters"]) == ("avg", {"gamma": 1.0})
    values = [results(run)[0]["metrics"]["forget"]["accuracy"] for run in seed_runs(folder)]
    assert swept["measures"]["forget"]["values"] == values
    assert "| forget | 0.600 ± 1.271 |" in (folder / "pooled.md").read_text()
    assert "Sweep over seeds" in (folder / "report.html").read_text()
    for words in (
        ["sweep", str(folder), "--method", "sum", "--gamma", "1"],
        ["match", str(folder), "--reference", "avg"],
        ["compare", str(folder), "--method", "avg", "--level", "1"],
    ):
        with pytest.raises(SystemExit) as ended:
            cli.main(words)
        assert not ended.value.code, words
    assert all((folder / name / "match.json").is_file() for name in ("seed-2", "seed-10"))
    assert json.loads((folder / "pooled.json").read_text())["comparison"][0]["method"] == "avg"


def test_budgets_of_each_runs_own_damage_are_pooled(stored_run: RunDirectory, tmp_path: Path) -> None:
    folder = tmp_path / "seeds"
    for seed in (0, 1):
        shutil.copytree(stored_run.path, folder / f"seed-{seed}")
    first, second = seed_runs(folder)
    for summary in second.load_summaries():  # so that the damage of the second seed is another
        if summary.role == "retain":
            more = {name: 3.0 * one for name, one in summary.deltas.items()}
            fisher = {name: one.clone() for name, one in summary.fisher.items()}
            shutil.rmtree(second.summaries / summary.client_id)
            replace(summary, deltas=more, fisher=fisher).save(second.summaries / summary.client_id)
    study = tmp_path / "tight.yaml"
    # The first grid's budget is the run's own, the second's is the study's.
    study.write_text(
        "title: Budgets\ngrids:\n  - {methods: [firm], axes: {gamma: '1'}}\n"
        "  - {methods: [firm], axes: {gamma: '2'}, epsilon_fraction: 0.3}\n"
    )
    with pytest.raises(SystemExit) as ended:
        cli.main(["study", str(folder), "--study", str(study)])
    assert not ended.value.code
    pooled = json.loads((folder / "pooled.json").read_text())["sweep"]
    for i, (fraction, calibrated_at) in enumerate([(0.1, 1.0), (0.3, 2.0)]):
        budget = pooled[i]["budget"]
        assert (budget["fraction"], budget["gamma"]) == (fraction, calibrated_at)
        values = [results(run)[i]["parameters"]["epsilon"] for run in (first, second)]
        assert budget["epsilon"]["values"] == values
        assert values[0] != values[1]
        assert "epsilon" not in pooled[i]["parameters"]
    page = (folder / "pooled.md").read_text()
    mean = pooled[1]["budget"]["epsilon"]["mean"]
    assert f"| FIRM | 2 |  | {number(mean)} ± " in page
    assert "as a share of it: 0.1 at gamma 1, 0.3 at gamma 2." in page


def compared(**retain: float) -> dict[str, Any]:
    methods = {
        name.replace("_", "-"): {
            "matched": True,
            "gap": 0.01,
            "parameters": {"epsilon": 0.5 if name == "firm_qp" else "inf"},
            "report": {"forget": {"accuracy": 0.5}, "retain": {"accuracy": value}},
        }
        for name, value in retain.items()
    }
    return {"levels": [{"level": 0.5, "methods": methods}]}


def test_differences_are_paired_by_seed() -> None:
    seeds = [compared(firm=0.3, firm_qp=0.7, avg=0.6), compared(firm=0.5, firm_qp=0.8, avg=0.7)]
    found = differences(seeds)
    assert [(one["method"], one["than"]) for one in found] == [
        ("firm-qp", "firm"),
        ("firm-qp", "avg"),
        ("firm", "avg"),
    ]
    assert found[1]["retain"]["values"] == pytest.approx([0.1, 0.1])
    cells = difference_table(found).rows
    assert cells[1] == ["0.5", "FIRM-QP - AVG", "0.000 ± 0.000", "0.100 ± 0.000 *"]
    assert cells[0][-1] == "0.350 ± 0.635"  # 0.4 and 0.3 in two seeds: not told apart from 0
    assert [row["epsilon"]["mean"] for row in pool(seeds) if "epsilon" in row] == [0.5]


def test_a_page_is_filled_in_and_its_prose_kept(
    stored_run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "seeds"
    for seed in (0, 1):
        shutil.copytree(stored_run.path, folder / f"seed-{seed}")
        run = RunDirectory(folder / f"seed-{seed}")
        run.update(git={"commit": "c" * 40, "dirty": seed == 1})
        run.update_metrics(comparison=compared(firm_qp=0.7 + seed / 10, avg=0.6))
        write_json(run.merged / "merge.json", {"parameters": {"epsilon": 2.0 * seed + 1.0}})
    write_pooled(folder, "make these runs")
    page = tmp_path / "page.md"

    def report(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(["report", *words, "--page", str(page)])
        return int(ended.value.code or 0), capsys.readouterr().err.replace("\n", " ")

    page.write_text("# Mine\n")
    status, said = report(str(folder))
    assert (status, "has no place for tables" in said) == (1, True)
    page.write_text(f"# Mine\n{BEGIN}\nold\n{END}\nSo it is.\n")
    for _ in range(2):
        assert report(str(folder))[0] == 0
    text = page.read_text()
    assert text.startswith(f"# Mine\n{BEGIN}\n\nMade by `make these runs` at commit {'c' * 40}, ")
    assert f"{'c' * 40} with uncommitted changes. Page at commit " in text
    assert "| 0.5 | FIRM-QP | 0.500 ± 0.000 | 0.750 ± 0.635 | +0.010 +0.010 | 2 of 2 |" in text
    assert "old" not in text
    assert text.endswith(f"{END}\nSo it is.\n")
    status, said = report(str(stored_run.path))
    assert (status, "holds no runs of seeds" in said) == (1, True)


def test_what_one_seed_lacks_is_not_pooled() -> None:
    whole = {"forget": {"accuracy": 0.5}, "perplexity": {"perplexity": 9.0}}
    found = pool_metrics([whole, {"forget": {"accuracy": 0.7}}])
    assert list(found) == ["forget"]


def test_the_evaluation_seed_draws_the_questions(stored_run: RunDirectory, tiny_backbone: Backbone) -> None:
    config = stored_run.config
    data = load_data(config.data, config.seeds.data)

    def asked(seed: int, limit: int = 8) -> list[str]:
        evaluation = replace(config.evaluation, max_questions=limit)
        seeded = replace(config, evaluation=evaluation, seeds=replace(config.seeds, evaluation=seed))
        questions = Suite(tiny_backbone, data, seeded)._prepared("herbs", "forget", "report").questions
        return [one.prompt for one in questions]

    everything = asked(0, 0)
    assert asked(0) == everything[:8]
    assert asked(1) == asked(1) != asked(2)
    assert set(asked(1)) < set(everything)
    assert asked(3, 0) == everything
