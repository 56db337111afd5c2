"""`fedforget score`: every benchmark end to end on small files of its schema, logs, and their reuse."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import benchmark_files
import pytest
import torch
from datasets import Features

from fedforget import scoring
from fedforget.adapters import adapted_weights
from fedforget.cli import main
from fedforget.data import load_data
from fedforget.evaluation import item_logs
from fedforget.evaluation.benchmarks import Asked, find_suite
from fedforget.models import Backbone
from fedforget.presets import load
from fedforget.reporting.tables import number
from fedforget.runs import RunDirectory
from fedforget.updates import UPDATE, write_update

OVERRIDES = (
    "model.precision=fp32 model.fisher_precision=same model.device=cpu lora.layers=[] "
    "lora.targets=[down_proj] evaluation.batch_size=4 model.expert.domain=''"
)
Command = Callable[..., str]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], tiny_home: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a command; return what it printed, or the error."""
    monkeypatch.setenv("FEDFORGET_HOME", str(tiny_home))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def run(*words: str, status: int = 0) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as done:
            main(list(words))
        printed = capsys.readouterr()
        assert done.value.code == status, printed.err
        return printed.err if status else printed.out

    return run


def make_run(name: str, family: str, folder: Path, model: Path, backbone: Backbone) -> RunDirectory:
    """A run of a paper's preset with a random merged update."""
    data = getattr(benchmark_files, family)(folder / family)
    mmlu = benchmark_files.mmlu(folder / "mmlu")
    pairs = [f"model.path={model}", f"data.path={data}", f"data.also.mmlu={mmlu}", *OVERRIDES.split()]
    run = RunDirectory.create(folder / "run", config := load(name, pairs), name)
    draw = torch.Generator().manual_seed(0)
    shapes = adapted_weights(backbone.model, config.lora)
    update = {one: 3.0 * torch.randn(shape, generator=draw) for one, shape in shapes.items()}
    write_update(run.merged / UPDATE, update.items(), shapes)
    run.update(status="completed", backbone={"path": str(model), "fingerprint": backbone.fingerprint})
    return run


def logs_of(printed: str) -> Path:
    return Path(printed.replace("\n", "").rpartition("Logs: ")[2].partition("Report: ")[0].strip())


def summary_of(printed: str) -> dict[str, Any]:
    return dict(json.loads((logs_of(printed) / "summary.json").read_text()))


def test_wmdp_and_mmlu(tmp_path: Path, byte_model: Path, byte_backbone: Backbone, command: Command) -> None:
    run = make_run("firm-wmdp", "wmdp", tmp_path, byte_model, byte_backbone)
    merged = summary_of(command("score", str(run.path), "--suite", "wmdp"))
    assert {name: one["count"] for name, one in merged["domains"].items()} == {"bio": 12, "cyber": 15}
    assert merged["domains"]["bio"]["chance"] == 0.25
    plain = summary_of(command("score", str(run.path), "--suite", "wmdp", "--backbone"))
    assert (plain["update"], merged["update"] != "", plain["model"]) == ("", True, merged["model"])
    printed = command("score", str(run.path), "--suite", "wmdp", "--backbone", "--split", "report")
    assert summary_of(printed)["domains"]["bio"]["count"] == 6
    assert "of the report split alone" in printed
    assert "bio standard error" in printed
    mmlu = summary_of(command("score", str(run.path), "--suite", "mmlu", "--scorer", "lm-eval"))
    assert mmlu["domains"]["mmlu-lm-eval"]["count"] == 20
    # The other scorer's summary is beside it.
    assert "mmlu" in summary_of(command("score", str(run.path), "--suite", "mmlu"))["domains"]
    assert len(list((run.path / "scores" / "mmlu").glob("*/summary.json"))) == 2
    # The run's page has them all.
    page = (run.path / "report.html").read_text()
    assert "<h2>Scores: wmdp</h2>" in page
    heads = re.findall("<th>(merged|backbone[^<]*)</th>", page.partition("<h2>Scores: mmlu</h2>")[0])
    assert sorted(heads) == ["backbone", "backbone (report questions)", "merged"]
    assert f"<td>{number(merged['domains']['bio']['accuracy'])}</td>" in page
    assert "merged (lm-eval)" in page
    assert "mmlu-lm-eval accuracy" in page


def test_tofu_with_a_reference(
    tmp_path: Path,
    byte_model: Path,
    byte_backbone: Backbone,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedforget.evaluation.tofu.NEW_TOKENS", 20)  # of 200: for speed alone
    run = make_run("firm-tofu", "tofu", tmp_path, byte_model, byte_backbone)
    asked = ("score", str(run.path), "--suite", "tofu", "--questions", "3")
    other = command(*asked, "--model", str(byte_model))
    printed = command(*asked, "--reference", str(logs_of(other)))
    found, folder = summary_of(printed), logs_of(printed)
    assert "model utility" in printed
    assert 0.0 <= found["forget_quality"]["p_value"] <= 1.0
    assert {one["count"] for one in found["sets"].values()} == {3}
    header, *rows = [json.loads(line) for line in (folder / "forget-rouge.jsonl").read_text().splitlines()]
    assert (header["count"], header["model"]) == (3, byte_backbone.fingerprint)
    assert [row["id"] for row in rows] == [f"tofu-forget01_perturbed-{i:05d}" for i in range(3)]
    assert set(rows[0]) == {"id", "asked", "prediction", "reference", "rouge_l_recall"}

    # What is complete is read; what is missing or cut off is measured again, to the same bits.
    measured: list[str] = []
    rows_of = item_logs.rows_of
    monkeypatch.setattr(item_logs, "rows_of", lambda m, s: measured.append(m.name) or rows_of(m, s))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / "retain-likelihoods.jsonl").unlink()
    cut = before["forget-rouge.jsonl"].decode().splitlines()[:-1]
    (folder / "forget-rouge.jsonl").write_text("\n".join(cut) + "\n")
    command(*asked, "--reference", str(logs_of(other)))
    assert measured == ["forget-rouge", "retain-likelihoods"]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    # With other batches it goes on; other questions are never read from there.
    measured.clear()
    command(*asked, "--batch-size", "2")
    assert measured == []
    # What settings are chosen on is left out: one of the two authors.
    held = command(*asked[:4], "--questions", "25", "--split", "report", "--reference", str(folder), status=1)
    assert "about other questions" in held
    data = load_data(run.config.data, run.config.seeds.data).family("tofu")
    measures = find_suite("tofu").measures(data, run.config, Asked("report"))
    counts = {one.name: len(one.asked) for one in measures if one.name.endswith("rouge")}
    assert counts == {"forget-rouge": 20, "retain-rouge": 6, "real_authors-rouge": 6, "world_facts-rouge": 6}
    chosen_on = {pair.id for pair in data.asked_pairs("forget01", "forget", "select")}
    assert not chosen_on & {identity for one in measures for identity, _ in one.asked}


def test_muse(tmp_path: Path, byte_model: Path, byte_backbone: Backbone, command: Command) -> None:
    run = make_run("firm-muse", "muse", tmp_path, byte_model, byte_backbone)
    # Passages that no model tells apart at a glance, or the AUC would be 0 or 1.
    for split, texts in {
        "forget": ["He went home.", "9 of 12", "Nox!", "the end"],
        "holdout": ["Home he went.", "12 of 9", "Xon!", "the den"],
    }.items():
        features = Features({"text": benchmark_files.TEXT})
        benchmark_files.parquet(tmp_path / "muse", "privleak", split, {"text": texts}, features)
    asked = ("score", str(run.path), "--suite", "muse")
    other = command(*asked, "--backbone")
    found = summary_of(command(*asked, "--reference", str(logs_of(other))))
    assert found["membership"]["min_k"]["members"] == 4
    assert found["membership_reference"] == summary_of(other)["membership"]
    assert {"verbmem", "knowmem_forget", "knowmem_retain", "privleak"} <= set(found)
    command(*asked, "--split", "report")
    (log,) = [one for one in tmp_path.rglob("knowmem-forget.jsonl") if len(one.read_text().splitlines()) < 7]
    asked_of = {json.loads(line)["id"] for line in log.read_text().splitlines()[1:]}
    data = load_data(run.config.data, run.config.seeds.data).family("muse")
    assert asked_of == {pair.id for pair in data.asked_pairs("books", "forget", "report")}


def test_wrong_words(tmp_path: Path, byte_model: Path, byte_backbone: Backbone, command: Command) -> None:
    run = str(make_run("firm-wmdp", "wmdp", tmp_path, byte_model, byte_backbone).path)
    for words, said in {
        (run,): "--suite: say which",
        (run, "--suite", "wmpd"): "did you mean 'wmdp'",
        (run, "--suite", "tofu"): "add it under data.also",
        (run, "--suite", "wmdp", "--merge", str(tmp_path)): "holds no merged update",
        (run, "--suite", "wmdp", "--backbone", "--model", "x"): "exclude each other",
        (run, "--suite", "wmdp", "--scorer", "lm_eval"): "did you mean 'lm-eval'",
        (run, "--suite", "wmdp,mmlu", "--reference", str(tmp_path)): "compares with no reference model",
        (str(tmp_path), "--suite", "wmdp"): "not a run directory",
    }.items():
        assert said in command("score", *words, status=1).replace("\n", " "), words


def test_a_preset_stands_in_for_a_run(tmp_path: Path) -> None:
    scored = scoring.choose(None, load("firm-tiny"), None, False, "")
    assert (scored.label, scored.update) == ("backbone", None)
