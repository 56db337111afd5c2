"""The paper's presets: valid as they are, and run end to end on small files with the tiny model."""

from __future__ import annotations

from pathlib import Path

import benchmark_files
import pytest

from fedforget.cli import main
from fedforget.client_specs import expand_clients
from fedforget.errors import ModelError
from fedforget.presets import load
from simulations.inline import run_inline

TINY = (
    "model.path=tiny model.precision=fp32 model.fisher_precision=same model.device=cpu model.tiny.layers=2 "
    "model.tiny.width=32 model.tiny.heads=2 model.tiny.steps=0 lora.r=2 data.max_length=64 "
    "forget.training.steps=2 retain.training.steps=2 fisher.num_sequences=2 fisher.max_length=64 "
    "evaluation.max_questions=2 evaluation.compare.max_evaluations=1 simulation.nodes=1 "
    "model.expert.training.steps=2 model.expert.lora.r=2"
)
OWN = {
    "firm-wmdp": "lora.layers=[0,1] forget.objective.parameters.layer=1 forget.objective.parameters.c=5.0 "
    "data.mmlu.retain_questions=6",
    "firm-tofu": "clients=[{role: forget, domain: forget01, count: 5}, "
    "{role: retain, domain: retain90, max_examples: 12}]",
    "firm-muse": "data.muse.passage_chars=60 data.mmlu.retain_questions=6",
}
CLIENTS = {
    "firm-wmdp": ["forget-bio-0", "forget-bio-1", "forget-bio-2", "forget-cyber-0", "forget-cyber-1",
                  "forget-cyber-2", "retain-mmlu-0"],
    "firm-tofu": [f"forget-forget01-{i}" for i in range(5)] + ["retain-retain90-0"],
    "firm-muse": [f"forget-books-{i}" for i in range(3)] + ["retain-mmlu-0"],
}  # fmt: skip


@pytest.mark.parametrize("name", list(CLIENTS))
def test_the_presets_are_the_papers_and_need_no_network(name: str) -> None:
    config = load(name)
    assert [spec.id for spec in expand_clients(config.clients)] == CLIENTS[name]
    assert (config.lora.r, config.lora.alpha) == (16, 32.0)
    assert (config.model.precision, config.model.fisher_precision) == ("nf4", "bf16")
    assert (config.fisher.num_sequences, config.fisher.max_length, config.merge.alpha) == (20, 512, 0.1)
    if name == "firm-wmdp":
        assert (config.lora.targets, config.lora.layers) == (["down_proj"], [5, 6, 7])
        assert config.data.mmlu.retain_questions == 600
    else:
        assert (len(config.lora.targets), config.lora.layers) == (7, [])
        assert config.forget.objective.name == "gradient_ascent"


@pytest.mark.parametrize("name", list(CLIENTS))
def test_a_preset_runs_end_to_end_on_files_of_the_same_schema(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedforget.evaluation.tofu.NEW_TOKENS", 8)  # of 200: for speed alone
    family = name.removeprefix("firm-")
    data = getattr(benchmark_files, family)(tmp_path / family)
    mmlu = benchmark_files.mmlu(tmp_path / "mmlu")
    pairs = [*TINY.split(), *OWN[name].split(), f"data.path={data}", f"data.also.mmlu={mmlu}"]
    if name == "firm-tofu":
        pairs = [*TINY.split(), OWN[name], f"data.path={data}", f"data.also.mmlu={mmlu}"]
    capsys.readouterr()  # the progress bars of writing the files
    with pytest.raises(SystemExit) as done:
        main(["data", "check", name, *pairs])
    printed = capsys.readouterr()
    assert (done.value.code, printed.err) == (0, "")
    assert printed.out.count("trains on") == len(CLIENTS[name])
    assert ("expert: learns 120 examples of full" in printed.out) == (name == "firm-tofu")
    preset = tmp_path / "mine.yaml"
    with pytest.raises(SystemExit):
        main(["config", "show", name, *pairs])
    preset.write_text(capsys.readouterr().out)
    if name == "firm-tofu":
        with pytest.raises(ModelError, match="fedforget adapt"):
            run_inline(str(preset), "", tmp_path / "too-early")
        with pytest.raises(SystemExit) as done:
            main(["adapt", str(preset)])
        assert done.value.code == 0
    run = run_inline(str(preset), "", tmp_path / "run")
    assert run.record["status"] == "completed"
    assert sorted(run.record["clients"]) == CLIENTS[name]
    if name == "firm-tofu":
        # Methods are matched by the benchmark's own measure.
        with pytest.raises(SystemExit) as done:
            main(["compare", str(run.path), "--method", "avg"])
        assert done.value.code == 0, capsys.readouterr().err
        (level,) = run.metrics["comparison"]["levels"]
        assert level["methods"]["avg"]["report"]["forget"]["measure"] == "ROUGE-L recall"
        assert level["target"] == {
            "forget01": pytest.approx(
                0.5 * run.metrics["comparison"]["select_before"]["forget01"]["accuracy"]
            )
        }
    domains = run.metrics["after"]["domains"]
    assert {"firm-wmdp": "bio", "firm-tofu": "real_authors", "firm-muse": "books"}[name] in domains
