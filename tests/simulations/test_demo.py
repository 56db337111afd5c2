"""The demonstration over two seeds, on the plumbing preset."""

from __future__ import annotations

import json

import pytest

from fedforget.errors import RunError
from simulations.commands import run_preset
from simulations.demo import run_demo

OVERRIDES = [
    "evaluation.compare.methods=[avg,firm-qp]",
    "evaluation.compare.max_evaluations=1",
    "merge.epsilon_fraction=0.1",
]


@pytest.mark.integration
def test_two_seeds_leave_a_report_each_and_one_page_for_both(tmp_path):
    shown, said = [], []
    folder = run_demo(
        lambda name, pairs, out: run_preset(name, pairs, out, "inline"),
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
    assert {row["method"] for row in pooled} == {"avg", "firm-qp"}
    page = (folder / "pooled.md").read_text()
    assert "fedforget demo firm-ci" in page
    assert "--seeds 0,1" in page
    assert f"| forget | {metrics['before']['forget']['accuracy']:.3f} |" in page
    # Two runs (before/after and one comparison level each) and the table over seeds.
    assert len(shown) == 5


def test_a_run_that_fails_ends_the_demonstration(tmp_path):
    def fails(name, pairs, out):
        raise RunError("client 'forget-herbs-0' did not answer")

    with pytest.raises(RunError, match="forget-herbs-0"):
        run_demo(fails, "firm-ci", OVERRIDES, tmp_path / "runs", [0], show=print, say=print)
    assert not (tmp_path / "runs" / "pooled.json").exists()
