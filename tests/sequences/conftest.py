"""Fixtures of the ledger's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ledger_plans import GROUPS, SEQUENCES

from fedforget.sequences.ledger import Ledger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with Ledger.create(path, GROUPS, SEQUENCES, seed=7) as ledger:
        ledger._db.execute("PRAGMA synchronous = OFF")  # no test here cuts the power
        yield ledger
