"""The commands of whoever operates runs."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from fedforget import cli, doctor
from fedforget.doctor import FAIL, OK, WARN


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(arguments))
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err
    return int(str(ended.value.code or 0)), captured.out + captured.err


def write(folder: Path, name: str, **record: object) -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "run.json").write_text(json.dumps(record), encoding="utf-8")
    return folder / name


def status(checks: list[doctor.Check], name: str) -> str:
    return next(check.status for check in checks if check.name == name)


def test_this_installation_is_sound(capsys: pytest.CaptureFixture[str]) -> None:
    checks = doctor.examine()
    assert [check for check in checks if check.status == FAIL] == []
    assert {"Python", "fedforget", "flwr", "torch", "flower-supernode", "disk"} <= {c.name for c in checks}
    assert run(capsys, "doctor")[0] == 0


def test_a_port_in_use_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert status(doctor.examine(ports=[port]), f"port {port}") == FAIL
        assert run(capsys, "doctor", "--port", str(port))[0] == 1
    assert status(doctor.examine(ports=[port]), f"port {port}") == OK


def test_a_package_outside_its_range_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        doctor, "requires", lambda _: ["torch>=99", "numpy", "absent-package", "other; extra == 'x'"]
    )
    checks = doctor.examine()
    assert status(checks, "torch") == status(checks, "absent-package") == FAIL
    assert status(checks, "numpy") == OK
    assert status(checks, "other") == WARN


def test_a_presets_data_are_looked_at(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert status(doctor.examine("firm-ci"), "data") == OK
    assert status(doctor.examine("fedsgt-ci"), "data") == OK
    missing = f"data.path={tmp_path / 'absent.jsonl'}"
    checks = doctor.examine("firm-ci", ["data.family=jsonl", missing])
    assert status(checks, "data") == FAIL
    assert "absent.jsonl" in next(check.found for check in checks if check.name == "data")
    assert status(doctor.examine("firm-cj"), "configuration") == FAIL


def test_a_home_that_cannot_be_written_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDFORGET_HOME", str(tmp_path / "a" / "b"))
    assert status(doctor.examine(), "disk") in (OK, WARN)
    monkeypatch.setattr("fedforget.doctor.os.access", lambda *_: False)
    assert status(doctor.examine(), "disk") == FAIL


def test_runs_are_listed_oldest_first(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write(tmp_path, "b", status="completed", started="2026-01-01", preset="firm-ci")
    write(tmp_path, "a", status="failed", started="2026-01-02", preset="firm-ci", error="no node")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "run.json").write_text("{", encoding="utf-8")
    code, out = run(capsys, "runs", "list", "--folder", str(tmp_path))
    assert code == 0
    assert "unreadable" in out
    assert out.index("completed") < out.index("failed")
    code, out = run(capsys, "runs", "show", str(tmp_path / "a"))
    assert (code, "no node" in out) == (0, True)
    assert run(capsys, "runs", "list", "--folder", str(tmp_path / "absent"))[0] == 1


def test_clean_removes_what_was_chosen_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name, state in (("a", "failed"), ("b", "completed"), ("c", "running"), ("d", "completed")):
        write(tmp_path, name, status=state, started="x", preset="p")
    where = ("--folder", str(tmp_path), "--yes")
    assert run(capsys, "runs", "clean", *where)[0] == 0
    assert sorted(one.name for one in tmp_path.iterdir()) == ["b", "c", "d"]
    assert run(capsys, "runs", "clean", "b", *where)[0] == 0
    code, out = run(capsys, "runs", "clean", "c", *where)
    assert (code, "is running" in out) == (1, True)
    code, out = run(capsys, "runs", "clean", "zzz", *where)
    assert (code, "no such run" in out) == (1, True)
    assert run(capsys, "runs", "clean", "--status", "done", *where)[0] == 1
    assert sorted(one.name for one in tmp_path.iterdir()) == ["c", "d"]
