"""Folders of one run per seed: commands go over all of them, and one page has the means."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fedforget import cli
from fedforget.data import load_data
from fedforget.evaluation import Suite
from fedforget.models import Backbone
from fedforget.pooling import pool_metrics, seed_runs
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
