"""A federation of real processes on loopback, through the entry point of the images."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from simulations.processes import MARK, end, new_mark

ROOT = Path(__file__).resolve().parents[2]
ENTRYPOINT = ROOT / "docker" / "entrypoint.sh"
CERTIFICATES = ROOT / "docker" / "certificates.sh"
FASTER = ROOT / "tests" / "deployment" / "faster"
PATIENCE = 180.0  # seconds, for what takes a few on a machine with nothing else to do


class Federation:
    """A SuperLink with TLS and node authentication, and SuperNodes; everything ends with :meth:`end`."""

    def __init__(self, folder: Path, clients: list[str], stranger: str) -> None:
        self.folder, self.mark = folder, new_mark()
        self.tls, self.port = folder / "tls", free_port()
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.env = {
            **os.environ,
            MARK: self.mark,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{FASTER}{os.pathsep}{ROOT}",
            "PYTHONUNBUFFERED": "1",
            "PYTHONWARNINGS": "ignore",
            "HOME": str(folder),
            "FLWR_HOME": str(folder / "operator"),
            "FEDFORGET_HOME": os.environ["FEDFORGET_HOME"],
            "TLS_DIR": str(self.tls),
            "HOST": "127.0.0.1",
            "SUPERLINK": f"127.0.0.1:{self.port}",
            "RESTART_DELAY": "0",
            "NO_PROXY": "127.0.0.1,localhost",
            "OMP_NUM_THREADS": "1",  # as in the process that the results are compared with
            "FLWR_TELEMETRY_ENABLED": "0",
            "FORKS": str(folder / "forks"),
        }
        with open(folder / "forks.log", "wb") as file:
            self._forks = subprocess.Popen(
                [sys.executable, str(FASTER / "flwr_forks.py"), self.env["FORKS"]],
                env=self.env, cwd=folder, stdout=file, stderr=file,
            )  # fmt: skip
        names = "localhost 127.0.0.1"
        self.shell(str(CERTIFICATES), str(self.tls), names, *clients, stranger)
        (self.tls / "nodes" / f"{stranger}.pub").unlink()  # it is not registered

    def start(self) -> None:
        """Start the SuperLink, and make the clients' keys known to it while it still starts."""
        env = {
            "PORT": str(self.port),
            "HEALTH": f"127.0.0.1:{free_port()}",
            "FLWR_HOME": str(self.folder / "link"),
            "AS_FLOWER": "1",
        }
        self._process("superlink", env, "superlink")
        self.shell(str(ENTRYPOINT), "register")

    def node(self, config: Mapping[str, str], **env: str) -> None:
        """Start the SuperNode of the client that a node configuration declares, with further variables."""
        client = config["client-id"]
        words = " ".join(f'{key}="{value}"' for key, value in config.items())
        variables = {
            "PORT": str(free_port()), "HEALTH": f"127.0.0.1:{free_port()}",
            "NODE_CONFIG": words, "NODE_KEY": str(self.tls / "nodes" / f"{client}.key"),
            "FLWR_HOME": str(self.folder / client), **env,
        }  # fmt: skip
        self.nodes[client] = self._process(client, variables, "supernode")

    def connected(self, *clients: str) -> None:
        """Wait until the SuperNodes of the clients have an id, and apps can be forked."""
        for name in clients:
            wait_for(lambda: "SuperNode ID" in self.log(name), self.nodes[name], lambda: self.log(name))  # noqa: B023
        wait_for(Path(self.env["FORKS"]).exists, self._forks, lambda: self.log("forks"))

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Start a command of ours."""
        command = [sys.executable, "-c", "from fedforget.cli import main; main()", *words]
        return subprocess.Popen(
            command, env=self.env, cwd=self.folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def apps(self, name: str) -> list[psutil.Process]:
        """Return the apps that run at this moment for a client, or for the SuperLink (``link``)."""
        found = []
        for pid in (self.folder / name / "apps.pids").read_text().split():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(int(pid))
                if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == self.mark:
                    found.append(process)
        return found

    def train(self, client: str, number: str, command: subprocess.Popen[str]) -> None:
        """Wait until a client trains in a run; the command that follows the run must not end before."""
        told = re.compile(rf"{client}: training .*run {number}$", re.MULTILINE)
        wait_for(lambda: told.search(self.log(client)), command, lambda: self.log(client))

    def kill_apps(self, name: str) -> None:
        """Kill the apps that run at this moment for a client, or for the SuperLink, at once."""
        for process in self.apps(name):
            with contextlib.suppress(psutil.Error):
                process.kill()

    def kill_node(self, client: str) -> None:
        """Kill a SuperNode and all it started, at once."""
        node = psutil.Process(self.nodes.pop(client).pid)
        for process in [node, *node.children(recursive=True), *self.apps(client)]:
            with contextlib.suppress(psutil.Error):
                process.kill()

    def log(self, name: str) -> str:
        """Return what a process wrote."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def shell(self, *words: str) -> str:
        """Run a script of ``docker/``; it has to succeed."""
        done = subprocess.run(
            ["sh", *words], env=self.env, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def end(self) -> list[int]:
        """End every process, and return those that could not be."""
        return end(self.mark, first="flwr-serverapp", patience=2.0)

    def _process(self, name: str, env: Mapping[str, str], what: str) -> subprocess.Popen[bytes]:
        with open(self.folder / f"{name}.log", "ab") as file:
            return subprocess.Popen(
                ["sh", str(ENTRYPOINT), what],
                env={**self.env, **env},
                cwd=self.folder,
                stdout=file,
                stderr=file,
            )


def wait_for(
    ready: Callable[[], object],
    process: subprocess.Popen[bytes] | subprocess.Popen[str] | None = None,
    log: Callable[[], str] = str,
) -> None:
    """Wait until something is the case; fail where the process ends before that, or after a while."""
    deadline = time.monotonic() + PATIENCE
    while not ready():
        assert process is None or process.poll() is None, log()
        assert time.monotonic() < deadline, log()
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def write_rows(path: Path, rows: list[dict[str, object]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def rows(client: str, domain: str) -> list[dict[str, object]]:
    """Rows that both methods read: FIRM the text, FedSGT id, text and label."""
    return [
        {"id": f"{client}-{i}", "text": f"the {domain} of {client} are {i} in number", "label": i % 3}
        for i in range(8)
    ]
