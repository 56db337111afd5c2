"""A run over deployed clients: an app sent to a SuperLink that exists, and its true status waited for.

The ServerApp runs on the SuperLink's machine, and so do the run's files: ``out`` is a folder there, by
default a new one in its ``$FEDFORGET_HOME/runs``.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fedforget import presets
from fedforget.errors import RunError, nearest
from simulations.bundle import app_directory
from simulations.flower_cli import Ended, FlowerCli, environment

_DIRECTORY = re.compile(r"Run directory: (/.*)$")
_ADDRESS = re.compile(r"(?P<host>[^\s/:]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})")


@dataclass(frozen=True)
class Superlink:
    """Where a SuperLink is.

    Attributes
    ----------
    where : str
        The name of a connection in Flower's ``config.toml``, or ``host:port``.
    root_certificates : str
        With ``host:port``: the file with the certificate authority.
    insecure : bool
        With ``host:port``: plain HTTP instead.
    """

    where: str
    root_certificates: str = ""
    insecure: bool = False

    @contextlib.contextmanager
    def connect(self) -> Iterator[FlowerCli]:
        """Yield Flower's command line with this connection.

        Raises
        ------
        RunError
            There is no such connection, or it does not say how it is secured.
        """
        if not _ADDRESS.fullmatch(self.where):
            yield FlowerCli(self._known(), environment(), self.where)
            return
        with tempfile.TemporaryDirectory(prefix="ff-") as folder:
            home = Path(folder)
            (home / "config.toml").write_text(
                f'[superlink]\ndefault = "given"\n\n[superlink.given]\naddress = "{self.where}"\n'
                f"{self._security()}\n",
                encoding="utf-8",
            )
            env = environment()
            if _is_loopback(self.where):
                env["NO_PROXY"] = ",".join(filter(None, [env.get("NO_PROXY", ""), "127.0.0.1", "localhost"]))
            yield FlowerCli(home, env, "given")

    def _security(self) -> str:
        if self.insecure == bool(self.root_certificates):
            raise RunError(
                f"--superlink {self.where}: give --root-certificates ca.crt, or --insecure (plain HTTP)"
            )
        if self.insecure:
            return "insecure = true"
        path = Path(self.root_certificates).expanduser().resolve()
        if not path.is_file():
            raise RunError(f"--root-certificates: {path} is not there; give the file ca.crt of the SuperLink")
        return f"root-certificates = '{path}'"

    def _known(self) -> Path:
        """Return Flower's folder, whose configuration has the connection."""
        home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr").expanduser()
        path = home / "config.toml"
        try:
            links = tomllib.loads(path.read_text(encoding="utf-8")).get("superlink", {})
        except FileNotFoundError:
            links = {}
        except (OSError, ValueError) as error:
            raise RunError(f"{path}: cannot be read ({error})") from error
        found = links.get(self.where)
        names = [name for name, value in links.items() if isinstance(value, dict)]
        if not isinstance(found, dict):
            raise RunError(
                f"--superlink {self.where}: is no host:port, and {path} has no connection of that name"
                f"{nearest(self.where, names)}; it has {', '.join(sorted(names)) or 'none'}"
            )
        if str(found.get("address", ":")).startswith(":"):
            raise RunError(f"--superlink {self.where}: is Flower's own simulation; use fedforget simulate")
        if self.root_certificates or self.insecure:
            raise RunError(
                f"--superlink {self.where}: {path} says how it is secured; leave --root-certificates and "
                "--insecure out"
            )
        return home.resolve()


def federate(
    superlink: Superlink,
    preset: str,
    overrides: str = "",
    out: str = "",
    *,
    action: str = "",
    stream: bool = True,
    say: Callable[[str], None] = print,
) -> str:
    """Run a preset over the SuperNodes that are connected to a SuperLink.

    Parameters
    ----------
    superlink : Superlink
    preset : str
        A preset's name, or a YAML file on this machine, which is sent along.
    overrides : str
        ``key=value`` pairs, separated by spaces, or a JSON list of them.
    out : str
        The run's directory on the ServerApp's machine, absolute; empty for a new one there.
    action : str
        As for :func:`simulations.flwr_run.run_flower`.
    stream : bool
        Say the run's log as it comes.
    say : callable
        Where to tell what is going on.

    Returns
    -------
    str
        The run's directory on the ServerApp's machine; empty where it did not say.

    Raises
    ------
    ConfigError
        The preset or an override is wrong; nothing was started.
    RunError
        The SuperLink cannot be reached, or the run failed or was stopped, with the reason.
    """
    if out and not PurePosixPath(out).is_absolute():
        raise RunError(
            f"--out {out}: is a folder on the ServerApp's machine; give an absolute path, or leave it out"
        )
    given = None
    if not action:
        presets.load_any(preset, overrides)
        if preset not in presets.presets():
            given = presets.find(preset)
    with superlink.connect() as flower, tempfile.TemporaryDirectory(prefix="ff-app-") as scratch:
        settings = {
            "config": given.stem if given else preset,
            "overrides": overrides,
            "out": out,
            "action": action,
        }
        number = flower.start(app_directory(Path(scratch), given), settings)
        say(f"Run {number} at the SuperLink {superlink.where}")
        found: list[str] = [out]

        def tell(line: str) -> None:
            if match := _DIRECTORY.search(line):
                found.append(match.group(1))
            if stream:
                say(line)

        try:
            error = flower.follow(number, tell)
            ended = flower.wait(number)
        except KeyboardInterrupt:
            say(f"Run {number} goes on at the SuperLink; `flwr stop {number}` ends it")
            raise
    _check(ended, error, say)
    return found[-1]


def _check(ended: Ended, error: list[str], say: Callable[[str], None]) -> None:
    if ended.status == "finished:completed":
        return
    # An error that is told in a sentence needs no stack; any other shows where it came from.
    if any(line.lstrip().startswith('File "') for line in error):
        for line in error:
            say(line)
    what = "was stopped" if ended.status.endswith("stopped") else "failed"
    raise RunError(f"run {ended.number} {what}: {ended.details or 'Flower gives no reason'}")


def _is_loopback(where: str) -> bool:
    host = where.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
