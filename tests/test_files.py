"""Writes that are whole or not there."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from fedforget.errors import RunError
from fedforget.files import atomic_path, home, read_json, write_json


def _fail_in(temporary: Path, *, folder: bool = False) -> None:
    """Write something, then fail as a writer may."""
    path = temporary / "part" if folder else temporary
    path.parent.mkdir(exist_ok=True)
    path.write_text("half")
    read_json(path)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")
    with pytest.raises(RunError, match="cannot be read"), atomic_path(target) as temporary:
        _fail_in(temporary)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_failed_directory_is_taken_away(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot be read"), atomic_path(tmp_path / "folder") as temporary:
        _fail_in(temporary, folder=True)
    assert list(tmp_path.iterdir()) == []


def test_a_file_replaces_a_file(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "file"
    for text in ("one", "two"):
        with atomic_path(target) as temporary:
            temporary.write_text(text)
    assert target.read_text() == "two"


def test_a_directory_never_replaces_a_full_one(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    target.mkdir()
    (target / "kept").write_text("x")
    with pytest.raises(OSError, match="not empty"), atomic_path(target) as temporary:
        temporary.mkdir()
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert (target / "kept").read_text() == "x"


def test_json_of_what_json_cannot_hold(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": [math.inf, -math.inf, math.nan, 1.5], 3: (1, {"y": None})})
    text = (tmp_path / "a.json").read_text()
    assert json.loads(text) == {"x": ["inf", "-inf", "nan", 1.5], "3": [1, {"y": None}]}
    assert read_json(tmp_path / "a.json") == json.loads(text)


def test_json_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"b.json: cannot be read as JSON"):
        read_json(tmp_path / "b.json")


def test_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDFORGET_HOME", str(tmp_path / "x"))
    assert home() == tmp_path / "x"
    monkeypatch.setenv("FEDFORGET_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert home() == tmp_path / ".fedforget"
