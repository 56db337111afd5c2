"""What a machine can run is told before it starts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedforget.config import RunConfig
from fedforget.errors import RunError
from simulations.bundle import PACKAGES, app_directory, is_app
from simulations.flower_cli import quoted
from simulations.processes import MARK, end, marked, new_mark
from simulations.resources import federation, memory_warning
from simulations.seeds import parse_seeds


def config(nodes: int = 2, cpus: int = 1, gpus: float = 0.0) -> RunConfig:
    found = RunConfig()
    found.simulation.nodes, found.simulation.cpus_per_client, found.simulation.gpus_per_client = (
        nodes,
        cpus,
        gpus,
    )
    return found


def test_no_more_actors_than_nodes() -> None:
    size = federation(config(nodes=2), cpus=16)
    assert (size.cpus, size.actors) == (2, 2)
    assert size.flower() == (
        "num-supernodes=2 client-resources-num-cpus=1 client-resources-num-gpus=0.0 init-args-num-cpus=2"
    )
    assert federation(config(nodes=8, cpus=3), cpus=7).actors == 2
    assert federation(config(nodes=8, gpus=0.5), cpus=16, gpus=1).actors == 2


@pytest.mark.parametrize(
    ("wanted", "cpus", "gpus", "says"),
    [
        (config(cpus=4), 2, 0, r"asks for 4 CPUs and this machine has 2; set simulation\.cpus_per_client=2"),
        (config(gpus=0.5), 2, 0, r"asks for 0\.5 GPUs and torch sees 0"),
    ],
)
def test_too_small_a_machine(wanted: RunConfig, cpus: int, gpus: int, says: str) -> None:
    with pytest.raises(RunError, match=says):
        federation(wanted, cpus=cpus, gpus=gpus)


def test_memory(tmp_path: Path) -> None:
    wanted = config()
    assert memory_warning(wanted, 2, available=8 * 2**30) == ""
    assert "2 clients at once and the server need about" in memory_warning(wanted, 2, available=2**30)
    wanted.model.path = "owner/model"
    assert memory_warning(wanted, 100, available=1) == ""
    # 64 MiB of weights on disk, taken as 16-bit: 32Mi parameters, 128 MiB each in fp32.
    (tmp_path / "model.safetensors").write_bytes(b"")
    with open(tmp_path / "model.safetensors", "r+b") as file:
        file.truncate(64 * 2**20)
    wanted.model.path = str(tmp_path)
    assert "about 2.5 GiB" in memory_warning(wanted, 2, available=2**30)


def test_the_checkout_is_the_app(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    assert app_directory(tmp_path) == root
    assert not is_app(tmp_path)


def test_installed_packages_make_an_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulations.bundle.is_app", lambda root: False)
    app = app_directory(tmp_path)
    assert is_app(app)
    assert all((app / package / "__init__.py").is_file() for package in PACKAGES)
    assert (app / "configs" / "firm-tiny.yaml").is_file()
    assert not list(app.rglob("__pycache__"))
    from flwr.cli.build import build_fab_from_disk

    assert len(build_fab_from_disk(app)) < 10 * 2**20


def test_everything_marked_is_ended() -> None:
    """A grandchild that ignores SIGTERM and outlives its parent is ended too."""
    mark = new_mark()
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    start = f"subprocess.Popen([sys.executable, '-c', {stubborn!r}], start_new_session=True)"
    parent = f"import subprocess, sys; {start}"
    subprocess.run([sys.executable, "-c", parent], env={**os.environ, MARK: mark}, check=True)
    deadline = time.monotonic() + 30
    while not marked(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(marked(mark)) == 1
    assert end(mark, patience=1.0) == []
    assert marked(mark) == []


KILLED = """
import os, subprocess, sys
from pathlib import Path
from simulations.processes import MARK, guarded
with guarded(sys.argv[1], folder=Path(sys.argv[2])):
    words = [sys.executable, "-c", "import time; time.sleep(600)"]
    subprocess.Popen(words, start_new_session=True, env=os.environ | {MARK: sys.argv[1]})
    if sys.argv[3] == "kill":
        os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("how", ["kill", "end"])
def test_what_a_killed_process_started_is_ended(tmp_path: Path, how: str) -> None:
    mark, folder = new_mark(), tmp_path / "folder"
    folder.mkdir()
    done = subprocess.run([sys.executable, "-c", KILLED, mark, str(folder), how], check=False)
    assert done.returncode == (-9 if how == "kill" else 0)
    if how == "end":  # the block ends what it started by itself
        assert len(marked(mark)) == 1
        assert end(mark) == []
        return
    deadline = time.monotonic() + 60
    while (marked(mark) or folder.exists()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not marked(mark)
    assert not folder.exists()


def test_quotes() -> None:
    assert quoted("overrides", "a=1 b=2") == "'a=1 b=2'"
    assert quoted("out", "/tmp/it's here") == '"/tmp/it\'s here"'
    with pytest.raises(RunError, match="both kinds of quotes"):
        quoted("out", "'\"")


def test_seeds() -> None:
    assert parse_seeds("0,1, 2") == [0, 1, 2]
    for wrong in ("", "a", "1,1"):
        with pytest.raises(RunError, match="--seeds"):
            parse_seeds(wrong)
