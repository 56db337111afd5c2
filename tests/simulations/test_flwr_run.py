"""Real Flower simulations with Ray: a run, one that fails, one that is interrupted, plain ``flwr run``."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from ray._private.utils import get_num_cpus

from fedforget.errors import RunError
from fedforget.presets import join_overrides
from fedforget.runs import RunDirectory, git_state
from simulations.flwr_run import run_flower
from simulations.inline import run_inline
from simulations.processes import MARK, end, marked, new_mark

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
FLWR = Path(sys.executable).parent / "flwr"


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Whatever a test starts carries this mark, under the wrapper's own; nothing may be left of it."""
    name = new_mark()
    monkeypatch.setenv("FEDFORGET_TEST_MARK", name)
    yield name
    left = carrying("FEDFORGET_TEST_MARK", name)
    for process in left:
        process.kill()
    assert left == []


def carrying(variable: str, value: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(variable) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return [process for process in found if process.pid != os.getpid()]


def test_a_run_gives_what_the_same_run_in_one_process_gives(tmp_path: Path, mark: str) -> None:
    said: list[str] = []
    run = run_flower("firm-ci", "merge.gamma=1.2 merge.alpha=0.2", tmp_path / "ray", say=said.append)
    assert run.record["status"] == "completed"
    assert run.record["overrides"] == "merge.gamma=1.2 merge.alpha=0.2"
    assert run.config.merge.alpha == 0.2
    assert "2 simulated nodes" in said[0]
    assert len({facts["node"] for facts in run.record["clients"].values()}) == 2
    # The copy of the checkout that Flower runs says of which state it is.
    assert run.record["git"] == git_state()
    here = run_inline("firm-ci", "merge.gamma=1.2 merge.alpha=0.2", tmp_path / "inline")
    name = "update.safetensors"
    assert (run.merged / name).read_bytes() == (here.merged / name).read_bytes()
    assert (run.path / "report.html").is_file()


def test_a_client_that_fails_fails_the_run(
    tmp_path: Path, mark: str, capfd: pytest.CaptureFixture[str]
) -> None:
    # Steps that large leave nothing finite. A value with spaces and an apostrophe gets there as well.
    overrides = join_overrides(["forget.training.learning_rate=1e30", "name=the herbalist's run"])
    with pytest.raises(RunError, match="forget-herbs-0: TrainingError: client 'forget-herbs-0'"):
        run_flower("firm-ci", overrides, tmp_path / "run", say=lambda _: None)
    said = capfd.readouterr()
    # The command line prints the error that was raised; Flower's log must not say it too.
    assert "the run failed; " in said.out + said.err
    assert "the round cannot be completed" not in said.out + said.err
    run = RunDirectory(tmp_path / "run")
    assert run.config.name == "the herbalist's run"
    assert run.record["status"] == "failed"
    assert "forget-stars-0" in run.record["error"]
    assert [path.name for path in run.summaries.iterdir()] == ["retain-birds-0"]


def test_interrupted(tmp_path: Path, mark: str) -> None:
    command = [sys.executable, "-c", "from fedforget.cli import main; main()", "simulate", "firm-ci"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "run")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # A shell's background job ignores interrupts, and so do its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "Starting Flower Simulation" in line:
            break
    assert any("flwr-simulation" in " ".join(p.cmdline()) for p in carrying("FEDFORGET_TEST_MARK", mark))
    process.send_signal(signal.SIGINT)
    process.stdout.read()
    assert process.wait(timeout=60) == 130


def test_plain_flwr_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh machine: Flower's own daemon, its default of two nodes, nothing downloaded."""
    daemon = new_mark()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = str(sock.getsockname()[1])
    env = os.environ | {
        MARK: daemon,
        "FLWR_HOME": str(tmp_path / "flwr"),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": port,
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PATH": f"{FLWR.parent}{os.pathsep}{os.environ['PATH']}",
    }
    env.pop("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", None)
    out = tmp_path / "run"
    # Two CPUs a client is Flower's default, which Ray cannot give where it counts one: it rounds the
    # quota of a container down.
    size = ["--federation-config", "client-resources-num-cpus=1"] if get_num_cpus() < 2 else []
    try:
        done = subprocess.run(
            [FLWR, "run", ".", "--stream", *size, "--run-config", f"config='firm-ci' out='{out}'"],
            cwd=ROOT, env=env, capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
        said = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
        assert done.returncode == 0, said
        deadline = time.monotonic() + 60
        while (status := json.loads((out / "run.json").read_text())["status"]) == "running":
            assert time.monotonic() < deadline
            time.sleep(0.5)
        assert status == "completed", said
        assert RunDirectory(out).metrics.keys() == {"before", "after"}
        assert "4 clients on 2 nodes" in said
    finally:
        assert end(daemon, first="flwr-simulation") == []
    assert marked(daemon) == []
