"""Every study over a run of its preset: small files of the benchmark, a tiny model, random summaries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import benchmark_files
import pytest

from fedforget.models import Backbone
from fedforget.presets import load
from fedforget.runs import RunDirectory
from fedforget.sweeps.settings import grid
from fedforget.sweeps.studies import Study, find_study, run_study, studies

TINY = (
    "model.path=tiny model.precision=fp32 model.fisher_precision=same model.device=cpu model.tiny.layers=2 "
    "model.tiny.width=32 model.tiny.heads=2 model.tiny.steps=0 model.expert.domain='' lora.r=2 "
    "lora.targets=[down_proj] lora.layers=[0,1] evaluation.max_questions=2 data.mmlu.retain_questions=6"
)
# Three forget domains and three retain clients, as the commands of docs/studies.md have them.
CLIENTS = {
    "firm-wmdp": "clients=[{role: forget, domain: bio, count: 2}, {role: forget, domain: cyber}, "
    "{role: forget, domain: chem}, {role: retain, domain: mmlu, count: 3}]",
    "firm-tofu": "clients=[{role: forget, domain: forget01, count: 2}, {role: retain, domain: retain90}]",
    "firm-muse": "clients=[{role: forget, domain: books, count: 2}, {role: retain, domain: mmlu}]",
}
PRESETS = dict.fromkeys(studies(), "firm-wmdp") | {"sweep-tofu": "firm-tofu", "sweep-muse": "firm-muse"}
MEASURES = {"firm-wmdp": "accuracy", "firm-tofu": "ROUGE-L recall", "firm-muse": "ROUGE-L F1"}


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Backbone, store: Callable[..., RunDirectory]
) -> dict[str, RunDirectory]:
    folder = tmp_path_factory.mktemp("presets")
    mmlu = benchmark_files.mmlu(folder / "mmlu")
    found = {}
    for name, clients in CLIENTS.items():
        data = getattr(benchmark_files, name.removeprefix("firm-"))(folder / f"{name}-data")
        config = load(name, [*TINY.split(), clients, f"data.path={data}", f"data.also.mmlu={mmlu}"])
        found[name] = store(folder / name, config, name)
    return found


def short(study: Study) -> Study:
    """The study with the first two values of gamma alone."""
    return replace(
        study,
        grids=[
            replace(one, axes=one.axes | {"gamma": ",".join(grid(one.axes["gamma"])[:2])})
            for one in study.grids
        ],
    )


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_study_runs_over_its_preset(
    name: str, runs: dict[str, RunDirectory], tiny_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDFORGET_HOME", str(tiny_home))
    # For speed alone: answers of 4 tokens instead of 200 and 32, and no figure of each study.
    monkeypatch.setattr("fedforget.reporting.plots.save", lambda figure, path: None)
    monkeypatch.setattr("fedforget.evaluation.tofu.NEW_TOKENS", 4)
    monkeypatch.setattr("fedforget.evaluation.muse.KNOWLEDGE_TOKENS", 4)
    preset = PRESETS[name]
    run, study = runs[preset], find_study(name)
    table, *matched = run_study(run, short(study))
    count = {
        "ablations": 5,
        "baselines": 9,
        "domains": 6,
        "projection": 6,
        "retain-clients": 9,
        "tolerance": 7,
    }
    assert len(table.rows) == count.get(name, 4)
    assert bool(matched) == bool(study.matches)
    assert f"## {study.title}" in (run.path / "studies" / f"{name}.md").read_text()
    # The page tells the domains by what the preset measures them by.
    note = next(one for one in table.notes if one.startswith("Accuracy"))
    assert (f"by {MEASURES[preset]}" in note) == (preset != "firm-wmdp")
