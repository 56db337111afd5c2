"""What a backbone's rounding leaves of an update is told by merge, certify and export."""

from __future__ import annotations

import pytest
from safetensors.torch import load_file

from fedforget import cli
from fedforget.config import ModelConfig
from fedforget.errors import ModelError
from fedforget.models import Backbone, checkpoint_at_hand
from fedforget.presets import to_yaml
from fedforget.rounding import measure
from fedforget.runs import RunDirectory
from fedforget.survival import apply_delta, overall
from fedforget.sweeps.remerge import merge_again
from fedforget.updates import UPDATE


def fedforget(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(words))
    captured = capsys.readouterr()
    assert not ended.value.code, captured.err
    return " ".join(captured.out.split())


def test_merge_certify_and_export_tell_what_a_bf16_backbone_keeps(
    stored_run: RunDirectory, tiny_backbone: Backbone, capsys: pytest.CaptureFixture[str]
) -> None:
    config = stored_run.config
    config.model.precision = "bf16"
    stored_run.update(config=to_yaml(config), backbone={"path": "tiny"})
    out = stored_run.path / "mine"
    words = ["--epsilon", "1e-6", "--gamma", "0.01", "--out", str(out)]
    said = [fedforget(capsys, "merge", str(stored_run.path), *words)]
    said.append(fedforget(capsys, "certify", str(out)))
    said.append(fedforget(capsys, "export", str(out), "--format", "delta"))
    weights = dict(tiny_backbone.model.named_parameters())
    update = load_file(out / UPDATE)
    expected = overall(apply_delta(weights[n].bfloat16(), update[n])[1] for n in sorted(update))
    assert 0.05 < expected.unchanged_share < 1.0
    sentence = (
        "Added to the backbone's bfloat16 weights, rounding loses "
        f"{expected.relative_error:.2%} of the update and undoes it in {expected.unchanged_share:.2%} of its "
        "coordinates."
    )
    assert all(sentence in one for one in said)


def test_a_backbone_that_is_not_at_hand_is_said_and_not_made(
    stored_run: RunDirectory,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = merge_again(stored_run, "firm", {"epsilon": "1e-3"})
    assert measure(path / UPDATE, stored_run).dtypes == ("float32",)
    home = tmp_path_factory.mktemp("empty")
    monkeypatch.setenv("FEDFORGET_HOME", str(home))
    said = fedforget(capsys, "certify", str(path))
    assert "was not measured: model.path: 'tiny' is not in the cache; get it with `fedforget prepare`" in said
    assert not list(home.rglob("*.safetensors"))
    with pytest.raises(ModelError, match="'nobody/nothing' is not in the hub's cache; get it with"):
        checkpoint_at_hand(ModelConfig(path="nobody/nothing", device="cpu"), 0)
