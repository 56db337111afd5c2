"""One federation of real processes for all tests of this folder, and the same clients in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from federation import Federation, rows, write_rows

from simulations.federate import Superlink

CLIENTS = {
    "hospital-a": ("forget", "herbs"),
    "hospital-b": ("forget", "herbs"),
    "library": ("retain", "birds"),
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deployment")


@pytest.fixture(scope="session")
def node_configs(folder: Path) -> dict[str, dict[str, str]]:
    """What each SuperNode declares."""
    return {
        name: {"client-id": name, "role": role, "domain": domain,
               "data": write_rows(folder / f"{name}.jsonl", rows(name, domain))}
        for name, (role, domain) in CLIENTS.items()
    }  # fmt: skip


@pytest.fixture(scope="session")
def federation(
    folder: Path, tiny_home: Path, node_configs: dict[str, dict[str, str]]
) -> Iterator[Federation]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDFORGET_HOME", str(tiny_home))
        found = Federation(folder, [*CLIENTS, "clinic", "faulty"], "stranger")
    try:
        found.start()
        for name, config in node_configs.items():
            found.node(config, **({"AS_FLOWER": "1"} if name == "library" else {}))
        found.node({**node_configs["library"], "client-id": "stranger"})
        found.connected(*CLIENTS)
        yield found
    finally:
        left = found.end()
    assert left == []


@pytest.fixture
def link(federation: Federation, tiny_home: Path, monkeypatch: pytest.MonkeyPatch) -> Superlink:
    """The connection that ``entrypoint.sh register`` wrote, for commands in this process."""
    for key in ("FLWR_HOME", "NO_PROXY", "PYTHONPATH", "PYTHONWARNINGS"):
        monkeypatch.setenv(key, federation.env[key])
    monkeypatch.setenv("FEDFORGET_HOME", str(tiny_home))
    return Superlink("production")


@pytest.fixture
def nodes(federation: Federation, tiny_home: Path) -> dict[str, int]:
    """The node id of each client's key, from the list that ``entrypoint.sh register`` wrote."""
    found = yaml.safe_load((tiny_home / "nodes.yaml").read_text())
    assert isinstance(found, dict)
    return found


@pytest.fixture
def preset(folder: Path) -> Callable[[str, str], str]:
    def write(name: str, text: str) -> str:
        path = folder / f"{name}.yaml"
        path.write_text(text)
        return str(path)

    return write
