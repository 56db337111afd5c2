"""The command line: what it prints, and how it fails."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import typer

from fedforget import cli
from fedforget.errors import RunError
from fedforget.runs import RunDirectory


class Outcome:
    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


def fedforget(capsys: pytest.CaptureFixture[str], *arguments: str) -> Outcome:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(arguments))
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err
    return Outcome(int(str(ended.value.code or 0)), captured.out, captured.err)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    found = fedforget(capsys, "--version")
    assert (found.status, found.out.split()[0]) == (0, "fedforget")


def test_no_advice_on_kernels_that_are_not_needed(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("bitsandbytes")
    logger.setLevel(logging.NOTSET)
    fedforget(capsys, "--version")
    assert not logger.getChild("backends.cpu.ops").isEnabledFor(logging.WARNING)


def test_help_waits_for_no_heavy_import() -> None:
    code = (
        "import sys; from fedforget.cli import build; build(); "
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "simulations" in loaded  # its commands are attached too
    assert loaded.isdisjoint({"torch", "transformers", "scipy", "numpy", "sklearn", "matplotlib", "flwr"})


def test_presets_are_listed_and_valid(capsys: pytest.CaptureFixture[str]) -> None:
    listed = fedforget(capsys, "config", "list")
    assert "firm-ci" in [line.split("\t")[0] for line in listed.out.splitlines()]
    assert fedforget(capsys, "config", "validate", "firm-ci").out == "firm-ci: valid, 4 clients\n"


def test_families_of_data_are_listed_shown_and_checked(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [line.split("\t") for line in fedforget(capsys, "data", "list").out.splitlines()]
    kinds = {name: kind for name, kind, _ in rows}
    assert (kinds["wmdp"], kinds["table"], kinds["cifar100"], kinds["mnli"]) == (
        "firm",
        "firm",
        *["fedsgt"] * 2,
    )
    shown = fedforget(capsys, "data", "show", "tofu").out
    assert "  forget01: splits train; columns question, answer\n" in shown
    assert "columns question, answer, paraphrased_answer, perturbed_answer\n" in shown
    checked = fedforget(capsys, "data", "check", "firm-ci").out.splitlines()
    assert checked[0] == "forget-herbs-0: trains on 8 of herbs"
    assert "birds (retain): questions 10 in select, 30 in report" in checked
    checked = fedforget(capsys, "data", "check", "fedsgt-ci").out.splitlines()
    assert checked[0] == "digits: 898 public, 120 federated, 225 test records; 10 classes"


def test_show_applies_overrides(capsys: pytest.CaptureFixture[str]) -> None:
    found = fedforget(capsys, "config", "show", "firm-ci", "merge.gamma=2.5")
    assert found.status == 0
    assert "gamma: 2.5" in found.out


def test_every_problem_of_a_configuration_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["merge.gama=1", "lora.r=big", "merge.method=firmm", "model.precison=bf16", "seeds.data"]
    found = fedforget(capsys, "config", "validate", "firm-ci", *words)
    assert found.status == 1
    assert "'merge.gama' (did you mean 'merge.gamma'?)" in found.err
    assert "lora.r: 'big' is not a whole number" in found.err
    assert "'model.precison' (did you mean 'model.precision'?)" in found.err
    assert "override 'seeds.data' is not of the form key=value" in found.err


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["config", "show", "firm-c"], 1, "error: no preset or YAML file 'firm-c' (did you mean 'firm-ci'?)"),
        (["nonsense"], 2, "No such command"),
        (["merge"], 2, "Missing argument"),
        (["merge", "nowhere"], 1, "not a run directory"),
        (["sweep", "nowhere"], 1, "not a run directory"),
        (["compare", "nowhere"], 1, "not a run directory"),
        (["report", "nowhere"], 1, "not a run directory"),
        (["sweep", "nowhere", "--gamma", "1:2"], 1, "not a range start:stop:step"),
        (["sweep", "nowhere", "--method", "firmm"], 1, "did you mean 'firm'?"),
        (["sweep", "nowhere", "--set", "density"], 1, "not of the form name=value"),
        (["sweep", "nowhere", "--split", "test"], 1, "--split: 'test' is neither"),
        (["compare", "nowhere", "--level", "2"], 1, "--level: '2'"),
        (["merge", "nowhere", "--gamma", "much"], 2, "not a valid float"),
        (["data", "show", "wmpd"], 1, "there is no family 'wmpd' (did you mean 'wmdp'?)"),
        (["data", "check", "firm-wmdp", "data.path=./none"], 1, "there is no directory './none'"),
        (["data", "check", "firm-ci", "data.family=cifar10"], 1, "'cifar10' is for presets of kind fedsgt"),
    ],
)
def test_wrong_input(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    status: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    found = fedforget(capsys, *arguments)
    assert found.status == status
    assert message in " ".join(found.err.split())


@pytest.mark.parametrize(("command", "name"), [("methods", "firm_unnormalised"), ("objectives", "rmu")])
def test_registries_describe_themselves(capsys: pytest.CaptureFixture[str], command: str, name: str) -> None:
    assert name in fedforget(capsys, command).out


def test_arguments_show_their_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Some releases of click drop the help of positional arguments.
    monkeypatch.setenv("COLUMNS", "120")
    assert "A run's directory." in fedforget(capsys, "merge", "--help").out


def test_prepare_leaves_the_model_in_the_cache(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FEDFORGET_HOME", str(tmp_path))
    found = fedforget(capsys, "prepare", "firm-ci")
    assert (found.status, found.out) == (0, f"firm-ci: tiny is ready ({tmp_path / 'cache'})\n")
    assert list((tmp_path / "cache").rglob("*.safetensors"))
    missing = fedforget(capsys, "prepare", "firm-ci", "model.path=package:no_such_package")
    assert missing.status == 1
    assert "no_such_package" in missing.err


def test_merge_again_writes_whole_or_not_at_all(
    capsys: pytest.CaptureFixture[str], stored_run: RunDirectory, tmp_path: Path
) -> None:
    out = tmp_path / "merged"
    words = ["merge", str(stored_run.path), "--method", "ties", "--gamma", "2", "--set", "density=0.3"]
    assert fedforget(capsys, *words, "--out", str(out)).status == 0
    record = json.loads((out / "merge.json").read_text())
    assert record["method"] == "ties"
    assert (record["parameters"]["gamma"], record["parameters"]["density"]) == (2.0, 0.3)
    assert (out / "update.safetensors").stat().st_size > 0
    again = fedforget(capsys, *words, "--out", str(out))
    assert (again.status, "exists already" in again.err) == (1, True)
    wrong = fedforget(capsys, *words[:4], "--set", "densty=1", "--out", str(tmp_path / "other"))
    assert (wrong.status, "did you mean 'density'?" in wrong.err) == (1, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["merged", "run"]


def test_merge_again_has_a_place_of_its_own(
    capsys: pytest.CaptureFixture[str], stored_run: RunDirectory
) -> None:
    for _ in range(2):
        assert fedforget(capsys, "merge", str(stored_run.path), "--epsilon", "0.01").status == 0
    found = list((stored_run.path / "merges").iterdir())
    assert len(found) == 2
    record = json.loads((found[0] / "merge.json").read_text())
    assert record["parameters"]["epsilon"] == 0.01
    assert not stored_run.merged.exists()


def test_sweep_compare_report(capsys: pytest.CaptureFixture[str], stored_run: RunDirectory) -> None:
    run = str(stored_run.path)
    found = fedforget(capsys, "sweep", run, "--method", "firm,avg", "--gamma", "1,2")
    assert found.status == 0
    assert "chance 0.250" in " ".join(found.out.split())
    assert (stored_run.path / "sweep.png").read_bytes().startswith(b"\x89PNG")
    found = fedforget(capsys, "compare", run, "--method", "firm,firm-qp", "--level", "0.5")
    assert found.status == 0
    assert list(stored_run.metrics["comparison"]["levels"][0]["methods"]) == ["firm", "firm-qp"]
    assert fedforget(capsys, "report", run).status == 0
    assert "FIRM-QP" in (stored_run.path / "report.html").read_text()


def test_another_backbone_than_the_runs(capsys: pytest.CaptureFixture[str], stored_run: RunDirectory) -> None:
    stored_run.update(backbone={"path": "tiny", "fingerprint": "0" * 64})
    found = fedforget(capsys, "sweep", str(stored_run.path), "--gamma", "1")
    assert (found.status, "trained another backbone" in found.err) == (1, True)


def attach(monkeypatch: pytest.MonkeyPatch, register: object) -> None:
    entry = EntryPoint("extra", "nowhere:register", cli.GROUP)
    monkeypatch.setattr(cli, "entry_points", lambda group: [entry])
    monkeypatch.setattr(EntryPoint, "load", lambda self: register)


def raising(error: BaseException) -> object:
    def register(app: typer.Typer) -> None:
        def extra() -> None:
            raise error

        app.command("extra")(extra)

    return register


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (RunError("the node is gone"), 1, "error: the node is gone\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_attached_commands_fail_alike(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    status: int,
    message: str,
) -> None:
    attach(monkeypatch, raising(error))
    found = fedforget(capsys, "extra")
    assert (found.status, found.err) == (status, message)


def test_a_broken_package_leaves_the_other_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def register(app: typer.Typer) -> None:
        raise ImportError("no module named 'x'")

    attach(monkeypatch, register)
    found = fedforget(capsys, "config", "list")
    assert found.status == 0
    assert "warning: the commands of 'nowhere:register' are missing (no module named 'x')" in found.err


def test_a_trace_is_for_those_who_ask(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDFORGET_DEBUG", "1")
    attach(monkeypatch, raising(RunError("the node is gone")))
    with pytest.raises(SystemExit):
        cli.main(["extra"])
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_takes_nothing(
    capsys: pytest.CaptureFixture[str], stored_run: RunDirectory, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number), "report.html")

    monkeypatch.setattr("os.replace", refuse)
    found = fedforget(capsys, "report", str(stored_run.path))
    assert found.status == 1
    assert f"error: report.html: {os.strerror(number)}; free some space" in found.err
