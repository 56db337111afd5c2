"""The demonstration over two seeds, on the plumbing preset."""

from __future__ import annotations

import json

import pytest

from fedforget.errors import ConfigError, RunError
from fedforget.pooling import seed_runs
from fedforget.presets import load
from fedforget.runs import RunDirectory
from simulations.commands import run_preset
from simulations.demo import run_demo
from simulations.options import Backend
from simulations.paths import with_absolute_paths
from simulations.seeds import run_seeds, seeded, wanted_seeds

OVERRIDES = [
    "evaluation.compare.methods=[avg,firm-qp]",
    "evaluation.compare.max_evaluations=1",
    "merge.epsilon_fraction=0.1",
]


@pytest.mark.integration
def test_two_seeds_leave_a_report_each_and_one_page_for_both(tmp_path):
    shown, said = [], []
    folder = run_demo(
        lambda name, pairs, out: run_preset(name, pairs, out, Backend.INLINE),
        "firm-ci",
        OVERRIDES,
        tmp_path / "runs",
        [0, 1],
        show=shown.append,
        say=said.append,
    )
    for seed in (0, 1):
        metrics = json.loads((folder / f"seed-{seed}" / "metrics.json").read_text())
        methods = metrics["comparison"]["levels"][0]["methods"]
        assert set(methods) == {"avg", "firm-qp"}
        # The run has measured the backbone already; the comparison takes that over.
        assert metrics["comparison"]["before"] == metrics["before"]
        assert "FIRM-QP" in (folder / f"seed-{seed}" / "report.html").read_text()
    pooled = json.loads((folder / "pooled.json").read_text())
    assert {row["method"] for row in pooled["comparison"]} == {"avg", "firm-qp"}
    assert pooled["after"]["forget"]["count"] == 2
    page = (folder / "pooled.md").read_text()
    assert "fedforget demo firm-ci" in page
    assert "--seeds 0,1" in page
    # The backbone is the same whatever the clients' seed: before has no spread.
    assert f"| forget | {metrics['before']['forget']['accuracy']:.3f} ± 0.000 |" in page
    assert "At matched forgetting, over seeds" in (folder / "report.html").read_text()
    # Two runs (before/after and one comparison level each) and three tables over seeds.
    assert len(shown) == 7


def test_a_run_that_fails_ends_the_demonstration(tmp_path):
    def fails(name, pairs, out):
        raise RunError("client 'forget-herbs-0' did not answer")

    with pytest.raises(RunError, match="forget-herbs-0"):
        run_demo(fails, "firm-ci", OVERRIDES, tmp_path / "runs", [0], show=print, say=print)
    assert not (tmp_path / "runs" / "pooled.json").exists()


def test_a_preset_can_ask_for_several_seeds():
    assert wanted_seeds("firm-ci", ["seeds.count=3", "seeds.training=4"]) == [4, 5, 6]
    assert wanted_seeds("firm-ci", ["seeds.count=3"], "7,9") == [7, 9]
    assert wanted_seeds("fedsgt-ci", []) == []
    with pytest.raises(RunError, match="--seeds is for presets of kind firm"):
        wanted_seeds("fedsgt-ci", [], "0,1")
    assert seeded("firm-ci", ["seeds.vary=[training,evaluation]"], 3)[1:] == [
        "seeds.training=3",
        "seeds.evaluation=3",
        "seeds.count=1",
    ]


def test_one_run_does_not_take_the_place_of_several(tmp_path):
    with pytest.raises(ConfigError, match="3 runs are for `fedforget simulate`"):
        run_preset("firm-ci", ["seeds.count=3"], tmp_path / "run", Backend.INLINE)


def test_finished_seeds_are_not_run_again(tmp_path):
    made = []

    def simulate(name, pairs, target):
        run = RunDirectory.create(target, with_absolute_paths(load(name, pairs)), name)
        run.update(status="completed")
        made.append(target.name)
        return run

    for seeds in ([0, 1], [0, 1, 2]):
        run_seeds(simulate, "firm-ci", [], tmp_path / "runs", seeds, say=lambda line: None)
    assert made == ["seed-0", "seed-1", "seed-2"]
    assert [run.config.seeds.training for run in seed_runs(tmp_path / "runs")] == [0, 1, 2]
