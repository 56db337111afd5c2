"""Flower's apps as forks of one process that has imported what is not ours.

Started as ``python flwr_forks.py SOCKET``, it imports the libraries that apps take seconds to import, and
then forks for every app that a SuperExec asks for. An app still has a process of its own that ends with it;
our own packages are imported by each, from the bundle it was given. In a SuperExec, :func:`install` makes
Flower ask for forks; with ``AS_FLOWER`` in its environment, it starts the first app itself as it always does.

Every app's process id is appended to ``$FLWR_HOME/apps.pids``.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

# Of Flower, FIRM's and FedSGT's apps; what is not here is imported by every fork again.
LIBRARIES = [
    *("flwr.app", "flwr.client", "flwr.clientapp", "flwr.serverapp.strategy", "flwr.cli.install"),
    *("flwr.supernode.cli", "flwr.superlink.cli", "omegaconf", "yaml", "filelock", "psutil", "jinja2"),
    *("numpy", "scipy.optimize", "scipy.linalg", "matplotlib.figure", "safetensors.torch", "zstandard"),
    *("torch", "torch.nn.functional", "torch.utils.data", "peft", "tokenizers"),
    *("transformers.models.llama.modeling_llama", "transformers.models.auto.modeling_auto"),
    *("transformers.models.bert.modeling_bert", "transformers.tokenization_utils_fast"),
]


def serve(path: str) -> Callable[[], object]:
    """Fork for each app that is asked for; returns, in the fork, what the app is to run."""
    import importlib

    for name in LIBRARIES:
        importlib.import_module(name)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{path}.starting")
        server.listen(16)
        os.rename(f"{path}.starting", path)  # who finds it can connect
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            with server.accept()[0] as asked:
                text, fds, _, _ = socket.recv_fds(asked, 1 << 16, 2)
                while more := asked.recv(1 << 16):
                    text += more
                pid = os.fork()
                if not pid:
                    break
                asked.sendall(str(pid).encode())
            for fd in fds:
                os.close(fd)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(fds[0], 1)
    os.dup2(fds[1], 2)
    request = json.loads(text)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = request["words"]
    import flwr_faults

    flwr_faults.install(silent=Path(path).with_name("silent"))
    from flwr.superlink.cli import flwr_serverapp
    from flwr.supernode.cli import flwr_clientapp

    return {"flwr-clientapp": flwr_clientapp, "flwr-serverapp": flwr_serverapp}[sys.argv[0]]


def install() -> None:
    """Let this SuperExec ask for forks."""
    from flwr.supercore.superexec.executor import subprocess_executor

    started = Path(os.environ["FLWR_HOME"]) / "apps.pids"
    started.parent.mkdir(parents=True, exist_ok=True)

    def start(words: list[str], **streams: int) -> None:
        alone = "AS_FLOWER" in os.environ and not started.exists()
        pid = subprocess.Popen(words, **streams).pid if alone else _ask(words, quiet=bool(streams))
        with started.open("a") as file:
            file.write(f"{pid}\n")

    subprocess_executor.subprocess = types.SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL)


def _ask(words: list[str], quiet: bool) -> int:
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(os.environ["FORKS"])
        text = json.dumps({"words": words, "env": dict(os.environ), "cwd": os.getcwd()}).encode()
        with open(os.devnull, "wb") as null:
            sent = socket.send_fds(server, [text], [null.fileno()] * 2 if quiet else [1, 2])
            server.sendall(text[sent:])
            server.shutdown(socket.SHUT_WR)
            return int(server.recv(64))


if __name__ == "__main__":
    run = serve(sys.argv[1])
    sys.exit(run())
