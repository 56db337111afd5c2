"""A run whose summaries were merged."""

from __future__ import annotations

import pytest

from fedforget.config import MergeConfig
from fedforget.exports.source import Source, open_source
from fedforget.runs import RunDirectory
from fedforget.updates import merge_to


@pytest.fixture
def merged_run(stored_run: RunDirectory) -> RunDirectory:
    merge_to(stored_run.merged, MergeConfig(epsilon=1e-3), stored_run.load_summaries())
    return stored_run


@pytest.fixture
def source(merged_run: RunDirectory) -> Source:
    return open_source(merged_run.path)
