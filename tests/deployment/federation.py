"""A federation of real processes on loopback, through the entry point of the images."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil

from simulations.processes import MARK, end, new_mark

ROOT = Path(__file__).resolve().parents[2]
ENTRYPOINT = ROOT / "docker" / "entrypoint.sh"
CERTIFICATES = ROOT / "docker" / "certificates.sh"
LOADED = 250e6  # bytes; a process of Flower's has less before it loads the app, and with torch more
PATIENCE = 180.0  # seconds, for what takes a few on a machine with nothing else to do


class Federation:
    """A SuperLink with TLS and node authentication, and SuperNodes; everything ends with :meth:`end`."""

    def __init__(self, folder: Path, clients: list[str]) -> None:
        self.folder, self.mark = folder, new_mark()
        self.tls, self.port = folder / "tls", free_port()
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.env = {
            **os.environ,
            MARK: self.mark,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT / 'tests' / 'deployment' / 'faster'}{os.pathsep}{ROOT}",
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
        }
        names = "localhost 127.0.0.1"
        self.shell(str(CERTIFICATES), str(self.tls), names, *clients)

    def start(self) -> None:
        """Start the SuperLink, and make the clients' keys known to it."""
        env = {
            "PORT": str(self.port),
            "HEALTH": f"127.0.0.1:{free_port()}",
            "FLWR_HOME": str(self.folder / "link"),
        }
        link = self._process("superlink", env, "superlink")
        wait_for(lambda: "Uvicorn running" in self.log("superlink"), link, lambda: self.log("superlink"))
        self.shell(str(ENTRYPOINT), "register")

    def node(self, config: Mapping[str, str]) -> None:
        """Start the SuperNode of the client that a node configuration declares."""
        client = config["client-id"]
        words = " ".join(f'{key}="{value}"' for key, value in config.items())
        env = {
            "PORT": str(free_port()), "HEALTH": f"127.0.0.1:{free_port()}",
            "NODE_CONFIG": words, "NODE_KEY": str(self.tls / "nodes" / f"{client}.key"),
            "FLWR_HOME": str(self.folder / client),
        }  # fmt: skip
        self.nodes[client] = self._process(client, env, "supernode")

    def connected(self) -> None:
        """Wait until every SuperNode has an id."""
        for name, process in self.nodes.items():
            wait_for(
                lambda name=name: "SuperNode ID" in self.log(name), process, lambda name=name: self.log(name)
            )

    def node_id(self, client: str) -> int:
        """Return the id that the SuperLink gave a client's node."""
        return int(self.log(client).rpartition("SuperNode ID: ")[2].split()[0])

    def fedforget(self, *words: str, status: int = 0) -> str:
        """Run a command of ours, and return what it printed."""
        done = self.begin(*words)
        said = done.communicate(timeout=PATIENCE)[0]
        assert done.returncode == status, said
        return said

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Start a command of ours."""
        command = [sys.executable, "-c", "from fedforget.cli import main; main()", *words]
        return subprocess.Popen(
            command, env=self.env, cwd=self.folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def apps(self, client: str) -> list[psutil.Process]:
        """Return the processes that run a client's app at this moment."""
        node = psutil.Process(self.nodes[client].pid)
        return [p for p in node.children(recursive=True) if "flwr-clientapp" in " ".join(command_of(p))]

    def started(self, client: str) -> int:
        """Return how many messages a client's app has begun to work on."""
        return self.log(client).count("Start `flwr-clientapp` process")

    def training(
        self, before: Mapping[str, int], run: subprocess.Popen[str]
    ) -> Iterator[tuple[str, list[psutil.Process]]]:
        """Yield each client, with the processes of its app, as soon as it trains.

        A process that is killed before it has taken the message is no fault: Flower starts another. One that
        has loaded torch has taken it.

        Parameters
        ----------
        before : mapping of str to int
            What :meth:`started` said before the run; the first message asks who the client is.
        run : Popen
            What started the training; it must not end before.
        """
        waiting, deadline = set(before), time.monotonic() + PATIENCE
        while waiting:
            assert run.poll() is None, run.communicate()[0]
            assert time.monotonic() < deadline
            for name in sorted(waiting):
                newest = max(self.apps(name), key=lambda process: process.pid, default=None)
                if self.started(name) < before[name] + 2 or newest is None:
                    continue
                with contextlib.suppress(psutil.Error):
                    if newest.memory_info().rss > LOADED:
                        waiting.remove(name)
                        yield name, [newest]
            time.sleep(0.05)

    def kill_node(self, client: str) -> None:
        """Kill a SuperNode and all it started, at once."""
        node = psutil.Process(self.nodes.pop(client).pid)
        for process in [node, *node.children(recursive=True)]:
            process.kill()

    def named(self, word: str) -> list[psutil.Process]:
        """Return this federation's processes with a word in their command line."""
        from simulations.processes import marked

        return [p for p in marked(self.mark) if word in " ".join(command_of(p))]

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
        time.sleep(0.1)


def command_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


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
