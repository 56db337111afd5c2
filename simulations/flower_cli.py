"""Flower's command line as a library: start a run on a SuperLink, follow its log, learn its true status.

``flwr run`` returns 0 for a run that failed, so the run's own status decides, asked for until it is final.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedforget.errors import RunError

_PATIENCE = 60.0  # seconds that a SuperLink may be out of reach while its run is waited for
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_RAISED = "ServerApp raised an exception"  # how Flower's log introduces an app's error
_PREFIX = "ServerApp failed with exception: "  # how Flower's status does


@dataclass(frozen=True)
class Ended:
    """How a run ended.

    Attributes
    ----------
    number : str
        Flower's id of the run.
    status : str
        ``finished:completed``, ``finished:failed`` or ``finished:stopped``.
    details : str
        Why, where Flower knows.
    """

    number: str
    status: str
    details: str


class FlowerCli:
    """The ``flwr`` command with one connection to a SuperLink.

    Parameters
    ----------
    home : Path
        Flower's own folder, whose ``config.toml`` describes the connection.
    env : mapping of str to str
        Environment of the commands.
    connection : str
        Name of the connection; empty for the default.
    alive : callable
        Raises where there is no use in waiting on, as when the SuperLink has ended.
    """

    def __init__(
        self,
        home: Path,
        env: Mapping[str, str],
        connection: str = "",
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self.home, self.env, self.connection = home, {**env, "FLWR_HOME": str(home)}, connection
        self._alive = alive

    def start(self, app: Path, settings: Mapping[str, str], size: str = "") -> str:
        """Send the app to the SuperLink and start a run; return the run's number.

        Parameters
        ----------
        app : Path
            The app's folder.
        settings : mapping of str to str
            The app's run configuration.
        size : str
            Flower's federation configuration, of a simulation.
        """
        words = ["--run-config", " ".join(f"{key}={quoted(key, value)}" for key, value in settings.items())]
        if size:
            words += ["--federation-config", size]
        return str(self.answer("run", str(app), *self._named(), *words)["run-id"])

    def show(self, number: str) -> None:
        """Print the run's log as it is, until it ends."""
        subprocess.run(self._log_command(number), env=self.env, cwd=self.home, check=False)

    def follow(self, number: str, say: Callable[[str], None]) -> list[str]:
        """Say the run's log line by line until it ends, the error that ended it excepted.

        Returns
        -------
        list of str
            The lines from that error on.
        """
        kept: list[str] = []
        for line in self._log(number):
            if kept or _RAISED in line:
                kept.append(line)
            else:
                say(line)
        return kept

    def wait(self, number: str) -> Ended:
        """Wait until the run has ended.

        Raises
        ------
        RunError
            The SuperLink cannot be asked any more.
        """
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                found = self.answer("ls", "--run-id", number, *self._named())["runs"][0]
                deadline = time.monotonic() + _PATIENCE
            except (RunError, LookupError) as error:
                self._alive()
                if time.monotonic() >= deadline:
                    raise RunError(
                        f"the SuperLink was out of reach for {_PATIENCE:g} s; run {number} may go on there: "
                        f"ask with `flwr ls --run-id {number}` ({error})"
                    ) from error
                found = {"status": ""}
            status = str(found["status"])
            if status.startswith("finished"):
                details = str(found.get("status-details") or "").strip()
                return Ended(number, status, details.removeprefix(_PREFIX))
            self._alive()
            time.sleep(0.5)

    def answer(self, *words: str) -> dict[str, Any]:
        """Run ``flwr ... --format json``; its status is 0 even for an error, so the answer decides.

        Raises
        ------
        RunError
            Flower's own words why it could not be done.
        """
        done = subprocess.run(
            [program("flwr"), *words, "--format", "json"],
            env=self.env, cwd=self.home, capture_output=True, text=True, check=False,
        )  # fmt: skip
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            answer = {}
        if done.returncode or not isinstance(answer, dict) or not answer.get("success"):
            said = answer.get("error-message") if isinstance(answer, dict) else None
            text = said or _COLOURS.sub("", done.stderr or done.stdout).strip() or "no answer"
            raise RunError(f"flwr {words[0]}: {' '.join(text.split())}")
        return answer

    def _log(self, number: str) -> Iterator[str]:
        process = subprocess.Popen(
            self._log_command(number),
            env=self.env, cwd=self.home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            for line in process.stdout:
                yield _COLOURS.sub("", line).rstrip()
        finally:
            process.terminate()
            process.wait()

    def _log_command(self, number: str) -> list[str]:
        return [program("flwr"), "log", number, *self._named(), "--stream"]

    def _named(self) -> list[str]:
        return [self.connection] if self.connection else []


def program(name: str) -> str:
    """Return the path of a program of Flower's.

    Raises
    ------
    RunError
        It is not installed.
    """
    found = shutil.which(
        name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    )
    if found is None:
        raise RunError(f"{name} is not installed; install fedforget with its dependencies (flwr[simulation])")
    return found


def quoted(key: str, value: str) -> str:
    """Quote a value as Flower's ``--run-config`` reads it: TOML, with no escape for the quotes.

    Raises
    ------
    RunError
        The value holds both kinds of quotes.
    """
    if "'" not in value:
        return f"'{value}'"
    if '"' not in value and "\\" not in value:
        return f'"{value}"'
    raise RunError(
        f"{key}: {value!r} holds both kinds of quotes, which flwr run cannot pass on; use one kind"
    )


def environment() -> dict[str, str]:
    """Return the environment of Flower's commands: this one's programs first, and nothing sent home."""
    binaries = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": os.pathsep.join([binaries, os.environ.get("PATH", "")]),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PYTHONUNBUFFERED": "1",
    }
