"""Exports through the command line, loaded again by the libraries that they are for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from fedforget import cli
from fedforget.errors import ExportError, ModelError
from fedforget.exports import target as targets
from fedforget.exports.checkpoint import entries
from fedforget.exports.delta import export_delta
from fedforget.exports.lora import export_lora, lora_name
from fedforget.exports.model import export_model
from fedforget.exports.source import Source, open_source
from fedforget.models import Backbone
from fedforget.runs import RunDirectory
from fedforget.survival import apply_delta
from fedforget.updates import UPDATE, load_update, write_update


def fedforget(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(arguments))
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return int(str(ended.value.code or 0)), " ".join((captured.out + captured.err).split())


def weights(folder: Path, **options: Any) -> dict[str, torch.Tensor]:
    return dict(AutoModelForCausalLM.from_pretrained(folder, **options).named_parameters())


def test_a_delta_is_the_merge_to_the_bit(
    merged_run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    status, said = fedforget(capsys, "export", str(merged_run.path), "--format", "delta")
    folder = merged_run.path / "exports" / "firm-delta"
    assert (status, said.startswith(f"Exported: {folder} (exact) Added to")) == (0, True)
    expected = load_update(merged_run.path)
    found = load_file(folder / "delta.safetensors")
    assert set(found) == set(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    with safe_open(folder / "delta.safetensors", framework="pt") as file:
        about = file.metadata()
    assert about["base_fingerprint"] == merged_run.record["backbone"]["fingerprint"]
    assert (about["method"], json.loads(about["parameters"])["epsilon"]) == ("firm", 1e-3)
    assert fedforget(capsys, "certify", str(folder))[0] == 0
    certificates = json.loads(about["certificates"])
    assert set(certificates) == set(expected)
    assert all(one["certified"] for one in certificates.values())
    status, said = fedforget(capsys, "export", str(merged_run.path), "--format", "delta")
    assert (status, "not empty; choose another --out" in said) == (1, True)


@pytest.mark.parametrize("shard_bytes", [10**9, 40_000])
def test_a_model_is_backbone_plus_update(
    source: Source, tiny_backbone: Backbone, tmp_path: Path, shard_bytes: int
) -> None:
    report = export_model(source, tmp_path / "model", shard_bytes=shard_bytes)
    files = sorted(path.name for path in (tmp_path / "model").glob("*.safetensors"))
    assert (len(files) > 2) == (shard_bytes < 10**9)
    found = weights(tmp_path / "model")
    for name, before in tiny_backbone.model.named_parameters():
        after = apply_delta(before, source.tensor(name))[0] if name in source.shapes else before
        assert torch.equal(found[name], after), name
    assert set(report["tensors"]) == set(source.shapes)
    assert 0.0 < report["overall"]["relative_error"] < 1e-5
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.get_vocab() == tiny_backbone.tokenizer.get_vocab()


def test_a_model_in_bf16_says_what_rounding_lost(
    source: Source, tiny_backbone: Backbone, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "model"
    words = ["export", str(source.file.parent), "--format", "model", "--dtype", "bf16", "--out", str(out)]
    status, said = fedforget(capsys, *words)
    assert (status, "rounding lost" in said) == (0, True)
    report = json.loads((out / "report.json").read_text())
    assert report["overall"]["relative_error"] > 1e-4
    found = weights(out, dtype="auto")
    backbone = dict(tiny_backbone.model.named_parameters())
    for name, one in report["tensors"].items():
        expected, survival = apply_delta(backbone[name], source.tensor(name), torch.bfloat16)
        assert torch.equal(found[name], expected)
        assert one == {"dtype": "bfloat16", **survival.as_dict()}
    assert {weight.dtype for weight in found.values()} == {torch.bfloat16}


def test_a_lora_adapter_is_the_low_rank_approximation(
    source: Source, tiny_backbone: Backbone, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", str(source.run.path), "--format", "lora", "--rank", "4", "--out"]
    status, said = fedforget(capsys, *words, str(tmp_path / "mine"))
    folder = tmp_path / "mine-lora-approximate-r4"
    assert (status, f"Exported: {folder} (approximate, relative error 0." in said) == (0, True)
    report = json.loads((folder / "report.json").read_text())
    export_model(source, tmp_path / "base")  # any fresh copy of the backbone's modules
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    base.load_state_dict(tiny_backbone.model.state_dict())
    merged = dict(PeftModel.from_pretrained(base, folder).merge_and_unload().named_parameters())
    lost, norm = 0.0, 0.0
    for name, before in tiny_backbone.model.named_parameters():
        if name not in source.shapes:
            assert torch.equal(merged[name], before)
            continue
        update = source.tensor(name)
        left, values, right = torch.linalg.svd(update)
        best = (left[:, :4] * values[:4]) @ right[:4]
        torch.testing.assert_close(merged[name], before + best, rtol=0, atol=1e-5)
        error = float((update - best).norm() / update.norm())
        assert report["tensors"][name]["relative_error"] == pytest.approx(error, rel=1e-3)
        lost, norm = lost + float((update - best).norm()) ** 2, norm + float(update.norm()) ** 2
    assert report["overall"]["relative_error"] == pytest.approx((lost / norm) ** 0.5, rel=1e-3)
    assert report["approximate"]


def test_an_update_of_low_rank_is_kept_with_ranks_of_its_own(
    source: Source, tiny_backbone: Backbone, tmp_path: Path
) -> None:
    draw = torch.Generator().manual_seed(0)
    ranks = {name: 1 + i % 3 for i, name in enumerate(source.shapes)}
    low = {
        name: 0.1 * torch.randn(m, ranks[name], generator=draw) @ torch.randn(ranks[name], n, generator=draw)
        for name, (m, n) in source.shapes.items()
    }
    write_update(source.file, low.items(), source.shapes)
    again = open_source(source.run.path)
    report = export_lora(again, tmp_path / lora_name(None, 0.001), error=0.001)
    assert {name: one["rank"] for name, one in report["tensors"].items()} == ranks
    assert report["overall"]["relative_error"] < 2e-6
    assert report["approximate"]
    export_model(again, tmp_path / "base")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    base.load_state_dict(tiny_backbone.model.state_dict())
    loaded = PeftModel.from_pretrained(base, tmp_path / "lora-approximate-error0.001")
    merged = dict(loaded.merge_and_unload().named_parameters())
    for name, before in tiny_backbone.model.named_parameters():
        torch.testing.assert_close(merged[name], before + low[name] if name in low else before)


def test_what_is_refused(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExportError, match="holds no merged update"):
        open_source(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(source.file.parent, elsewhere)
    with pytest.raises(
        ExportError, match="lies in no run's directory; say which run it belongs to with --run"
    ):
        open_source(elsewhere)
    assert open_source(elsewhere / UPDATE, source.run.path).label == "elsewhere"
    with pytest.raises(ExportError, match="either --rank or --error"):
        lora_name(4, 0.1)
    with monkeypatch.context() as patch:
        patch.setattr(targets.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
        for export in (export_delta, export_model, lambda *a: export_lora(*a, rank=2)):
            with pytest.raises(ExportError, match="are free; make room, or give --out on another disk"):
                export(source, tmp_path / "full")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "run"]
    source.run.update(backbone={"path": "tiny", "fingerprint": "0" * 64})
    with pytest.raises(ModelError, match="trained another backbone"):
        export_model(source, tmp_path / "model")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--format", "delta", "--rank", "4"], "--rank and --error are for --format lora"),
        (["--format", "lora", "--rank", "4", "--error", "0.1"], "exclude each other"),
        (["--format", "lora", "--dtype", "bf16"], "--dtype is for --format model"),
    ],
)
def test_options_of_another_format(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    status, said = fedforget(capsys, "export", "nowhere", *words)
    assert (status, message in said) == (1, True)


def test_an_update_that_is_not_what_was_merged_is_not_exported(source: Source, tmp_path: Path) -> None:
    raw = bytearray(source.file.read_bytes())
    raw[-3] ^= 0x40
    source.file.write_bytes(raw)
    for number, export in enumerate((export_delta, export_model, lambda *a: export_lora(*a, rank=2))):
        with pytest.raises(ExportError, match="is not what was merged"):
            export(source, tmp_path / str(number))
    bad = {name: torch.full(shape, float("nan")) for name, shape in source.shapes.items()}
    write_update(source.file, bad.items(), source.shapes)
    with pytest.raises(ExportError, match="holds NaN or infinite values"):
        export_model(open_source(source.run.path), tmp_path / "nan")


@pytest.mark.parametrize("index", ["[]", '{"weight_map": 3}', '{"weight_map": {"w": 1}}'])
def test_an_index_that_names_no_files_is_refused(tmp_path: Path, index: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ExportError, match=r"index\.json: says of no tensor in which file it is"):
        entries(tmp_path)


def test_a_report_that_is_not_whole_is_refused(source: Source) -> None:
    report = source.file.parent / "merge.json"
    whole = json.loads(report.read_text())
    for broken in (
        None,
        {"tensors": whole["tensors"], "method": "firm"},
        {"tensors": whole["tensors"], "parameters": {}},
        {**whole, "tensors": dict.fromkeys(whole["tensors"], 3)},
    ):
        report.write_text(json.dumps(broken))
        with pytest.raises(ExportError, match=r"is not about the tensors of update\.safetensors"):
            open_source(source.run.path)


def test_an_adapter_carries_no_certificate(source: Source, tmp_path: Path) -> None:
    export_lora(source, tmp_path / "lora-approximate-r2", rank=2)
    with safe_open(tmp_path / "lora-approximate-r2" / "adapter_model.safetensors", framework="pt") as file:
        assert not [key for key in file.metadata() if "certificate" in key]
