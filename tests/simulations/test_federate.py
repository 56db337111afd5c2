"""What ``fedforget federate`` refuses before anything is sent, and what it says of a run that ended."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedforget.errors import ConfigError, RunError
from fedforget.runs import RunDirectory
from simulations import federate as module
from simulations.federate import Superlink, federate
from simulations.flower_cli import Ended, FlowerCli
from simulations.sequential_upkeep import carry_on
from simulations.verify_command import verify


@pytest.fixture
def flower_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "config.toml").write_text(
        '[superlink]\ndefault = "local"\n[superlink.local]\naddress = ":local:"\n'
        '[superlink.production]\naddress = "example.org:8000"\n'
    )
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("link", "says"),
    [
        (
            Superlink("prodction"),
            "no connection of that name .did you mean 'production'",
        ),
        (Superlink("local"), "Flower's own simulation; use fedforget simulate"),
        (Superlink("production", insecure=True), "says how it is secured; leave"),
        (Superlink("host:8000"), "give --root-certificates ca.crt, or --insecure"),
        (Superlink("host:8000", "ca.crt", True), "give --root-certificates ca.crt, or --insecure"),
        (Superlink("host:8000", "/nowhere/ca.crt"), "/nowhere/ca.crt is not there"),
    ],
)
def test_a_connection_that_cannot_be(flower_home: Path, link: Superlink, says: str) -> None:
    with pytest.raises(RunError, match=says):
        federate(link, "firm-ci")


def test_what_is_wrong_is_told_before_anything_is_sent(flower_home: Path) -> None:
    with pytest.raises(RunError, match=r"--out runs/one: is a folder on the ServerApp's machine; give an"):
        federate(Superlink("production"), "firm-ci", "", "runs/one")
    with pytest.raises(ConfigError, match="did you mean"):
        federate(Superlink("production"), "firm-ci", "merge.gama=1")


class FakeFlower(FlowerCli):
    """Answers as a SuperLink whose run ends in a certain way."""

    ended = Ended("7", "finished:completed", "")
    log: tuple[str, ...] = ()
    sent: dict[str, Any] = {}  # noqa: RUF012

    def start(self, app: Path, settings: Mapping[str, str], size: str = "") -> str:
        FakeFlower.sent = {"settings": dict(settings), "size": size}
        if (app / "configs").is_dir():
            FakeFlower.sent["presets"] = {
                path.name: path.read_text() for path in (app / "configs").glob("*.yaml")
            }
        return "7"

    def _log(self, number: str):  # type: ignore[no-untyped-def]
        return iter(self.log)

    def wait(self, number: str) -> Ended:
        return self.ended


@pytest.fixture
def flower(flower_home: Path, monkeypatch: pytest.MonkeyPatch) -> type[FakeFlower]:
    monkeypatch.setattr(module, "FlowerCli", FakeFlower)
    monkeypatch.setattr(FakeFlower, "ended", Ended("7", "finished:completed", ""))
    monkeypatch.setattr(FakeFlower, "log", ("INFO :      Run directory: /runs/there", "INFO :      done"))
    return FakeFlower


def test_a_preset_of_the_users_is_sent_along(flower: type[FakeFlower], tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    shutil.copy(Path(__file__).resolve().parents[2] / "configs" / "firm-ci.yaml", mine)
    said: list[str] = []
    link = Superlink("host:8000", insecure=True)
    assert federate(link, str(mine), "merge.gamma=2", say=said.append) == "/runs/there"
    assert flower.sent["settings"] == {
        "config": "mine",
        "overrides": "merge.gamma=2",
        "out": "",
        "action": "",
    }
    assert flower.sent["presets"]["mine.yaml"] == mine.read_text()
    assert flower.sent["presets"].keys() > {"firm-ci.yaml", "firm-deploy.yaml"}
    assert said[1:] == list(flower.log)


def test_the_reason_is_said_once(flower: type[FakeFlower], monkeypatch: pytest.MonkeyPatch) -> None:
    error = (
        "ERROR :     ServerApp raised an exception",
        "Traceback (most recent call last):",
        "RunError: no bread",
    )
    monkeypatch.setattr(flower, "ended", Ended("7", "finished:failed", "no bread"))
    monkeypatch.setattr(flower, "log", (*flower.log, *error))
    said: list[str] = []
    with pytest.raises(RunError, match=r"^run 7 failed: no bread$"):
        federate(Superlink("production"), "firm-ci", say=said.append)
    assert not any("bread" in line for line in said)
    # An error that is no one's input shows where it came from.
    monkeypatch.setattr(flower, "log", (*error[:2], '  File "x.py", line 3', "ZeroDivisionError: no bread"))
    with pytest.raises(RunError, match="run 7 failed"):
        federate(Superlink("production"), "firm-ci", stream=False, say=said.append)
    assert said[-2] == '  File "x.py", line 3'


def test_a_stopped_run_is_no_success(flower: type[FakeFlower], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "ended", Ended("7", "finished:stopped", ""))
    with pytest.raises(RunError, match="run 7 was stopped: Flower gives no reason"):
        federate(Superlink("production"), "firm-ci", say=lambda line: None)


def test_repairs_and_verifications_go_to_the_clients_that_have_the_data(
    flower: type[FakeFlower], trained: RunDirectory
) -> None:
    trained.update(own_data=["client-00"])
    link = Superlink("production")
    for action in ("carry on", "verify"):
        assert carry_on(trained, link, action, say=lambda line: None).path == trained.path
        assert flower.sent["settings"]["action"] == action
        assert flower.sent["settings"]["out"] == str(trained.path)
    with pytest.raises(ConfigError, match="names the clients of --through-clients; give that too"):
        verify(trained.path, superlink="production")
