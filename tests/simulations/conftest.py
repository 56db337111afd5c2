"""Fixtures of the simulations' tests."""

from __future__ import annotations

import shutil
from pathlib import Path

# Flower's log writes to the stderr of its first import, which is not to be a single test's.
import flwr.supercore  # noqa: F401
import pytest

from fedforget.runs import RunDirectory

SIX_GROUPS = "grouping.groups=6 sequences.budget=6 data.max_records=60"


@pytest.fixture(autouse=True)
def _home(tiny_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFORGET_HOME", str(tiny_home))


@pytest.fixture(scope="session")
def six_groups(tiny_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained FedSGT run of six groups and sequences; copy it before changing anything."""
    from simulations.inline import run_inline

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDFORGET_HOME", str(tiny_home))
        out = tmp_path_factory.mktemp("fedsgt") / "run"
        return run_inline("fedsgt-ci", SIX_GROUPS, out).path


@pytest.fixture
def trained(six_groups: Path, tmp_path: Path) -> RunDirectory:
    """A copy of that run."""
    return RunDirectory(shutil.copytree(six_groups, tmp_path / "trained"))
