"""A simulated federation through ``flwr run``: a SuperLink of its own, a true exit status, no leftovers.

``flwr run`` starts a SuperLink that stays, shares it with every checkout on the machine, and
returns 0 for a run that failed. Here each run has a private SuperLink on a free port with a
Flower home of its own, the run's own status decides, and everything that was started is ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from fedforget import presets
from fedforget.errors import RunError
from fedforget.files import home
from fedforget.runs import GIT_STATE, RunDirectory, default_path, git_state
from simulations.bundle import app_directory
from simulations.flower_cli import FlowerCli, environment, program
from simulations.processes import MARK, end, guarded, new_mark
from simulations.resources import federation, memory_warning

_START = 120.0  # seconds for the SuperLink to answer


def run_flower(
    preset: str,
    overrides: str = "",
    out: str | Path = "",
    *,
    say: Callable[[str], None] = print,
    action: str = "",
) -> RunDirectory:
    """Run a preset in a simulated federation (Flower's Ray backend).

    Parameters
    ----------
    preset : str
        A preset's name, or a YAML file.
    overrides : str
        ``key=value`` pairs, separated by spaces, or a JSON list of them.
    out : str or Path
        The run's directory; empty for a new one in ``$FEDFORGET_HOME/runs``.
    say : callable
        Where to tell what is going on.
    action : str
        ``"carry on"``: train what is due in the FedSGT run in ``out``, by its own configuration;
        ``"verify"``: let its clients train again what serves. ``preset`` and ``overrides`` are not
        used then.

    Returns
    -------
    RunDirectory

    Raises
    ------
    ConfigError
        The preset or an override is wrong; nothing was started.
    RunError
        The run failed, with its reason.
    """
    config = RunDirectory(out).sequential if action else presets.load_any(preset, overrides)
    size = federation(config)
    warning = memory_warning(config, size.actors)
    if warning:
        say(f"warning: {warning}")
    path = (Path(out).expanduser() if out else default_path(config.name)).resolve()
    if not action and preset not in presets.presets():
        preset = str(presets.find(preset).resolve())
    say(f"{size.nodes} simulated nodes, {size.actors} client(s) at once; run directory {path}")
    settings = {"config": preset, "overrides": overrides, "out": str(path), "action": action}
    with _superlink() as link:
        status, details = link.run(app_directory(link.home), size.flower(), settings, say)
    return _outcome(path, status, details)


def _outcome(path: Path, status: str, details: str) -> RunDirectory:
    if not (path / "run.json").is_file():
        raise RunError(f"the run did not start ({status}{': ' + details if details else ''})")
    run = RunDirectory(path)
    recorded = run.record.get("status")
    if status == "finished:completed" and recorded == "completed":
        return run
    reason = run.record.get("error") or details or f"Flower says {status}, run.json says {recorded}"
    if recorded == "running":
        run.update(status="failed", error=reason)
    raise RunError(f"{path}: the run failed: {reason}")


class _Superlink:
    """A private SuperLink."""

    def __init__(self, folder: Path, port: int, env: Mapping[str, str]) -> None:
        self.home, self.port, self.env = folder, port, dict(env)
        self._log = folder / "superlink.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        command = [program("flower-superlink"), "--insecure", "--simulation", "--isolation", "subprocess"]
        command += [
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--disable-runtime-dependency-installation",
        ]
        with open(self._log, "wb") as file:
            # A session of its own, so that Ctrl-C reaches it through this process alone, in order.
            self._process = subprocess.Popen(
                command, env=self.env, cwd=self.home, stdout=file, stderr=file, start_new_session=True
            )
        deadline = time.monotonic() + _START
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RunError(f"the SuperLink ended with status {self._process.returncode}: {self._tail()}")
            if _answers(self.port):
                return
            time.sleep(0.2)
        raise RunError(f"the SuperLink did not answer within {_START:g} s: {self._tail()}")

    def run(
        self, app: Path, size: str, settings: Mapping[str, str], say: Callable[[str], None]
    ) -> tuple[str, str]:
        """Start a run, stream its log, and return its final status and details."""
        flower = FlowerCli(self.home, self.env, alive=self._check)
        number = flower.start(app, settings, size)
        flower.show(number)
        ended = flower.wait(number)
        say(f"Flower run {number}: {ended.status}")
        return ended.status, ended.details

    def _check(self) -> None:
        if self._process is None or self._process.poll() is not None:
            raise RunError(f"the SuperLink ended during the run: {self._tail()}")

    def _tail(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines() if self._log.is_file() else []
        return " | ".join(lines[-3:]) or "it left no log"


@contextlib.contextmanager
def _superlink() -> Iterator[_Superlink]:
    """Run a SuperLink for as long as the block, and end everything that came from it."""
    folder = Path(tempfile.mkdtemp(prefix="ff-"))
    mark = new_mark()
    port = _free_port()
    (folder / "config.toml").write_text(
        '[superlink]\ndefault = "local"\n\n'
        f'[superlink.local]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    link = _Superlink(folder, port, _environment(folder, mark))
    with guarded(mark, "flwr-simulation", folder):
        try:
            with _terminated_like_interrupted():
                link.start()
                yield link
        finally:
            left = end(mark, first="flwr-simulation")
            shutil.rmtree(folder, ignore_errors=True)
            if left:
                print(f"warning: processes {left} could not be ended", file=sys.stderr)


def _environment(folder: Path, mark: str) -> dict[str, str]:
    env = {
        **environment(),
        MARK: mark,
        "FLWR_HOME": str(folder),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_DEDUP_LOGS": "0",
        "FEDFORGET_CWD": os.getcwd(),
        GIT_STATE: json.dumps(git_state()),
        "FEDFORGET_HOME": str(home()),
        "PYTHONWARNINGS": os.environ.get(
            "PYTHONWARNINGS", "ignore::DeprecationWarning,ignore::FutureWarning"
        ),
        "NO_PROXY": ",".join(filter(None, [os.environ.get("NO_PROXY", ""), "127.0.0.1", "localhost"])),
    }
    # The simulation process merges and evaluates with all CPUs; Ray gives each client its share.
    # A thread count of the caller's would be inherited by every client.
    env.pop("OMP_NUM_THREADS", None)
    if len(str(folder)) <= 24:  # a Unix socket's path holds 107 bytes
        env["RAY_TMPDIR"] = str(folder)
    return env


@contextlib.contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM end the run as Ctrl-C does, with what was started ended first."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    try:
        previous = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _answers(port: int) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"http://127.0.0.1:{port}/health", timeout=1.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
