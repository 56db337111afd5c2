"""Fixtures of the tests of data."""

from __future__ import annotations

import benchmark_files
import pytest


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("benchmarks")
    names = ("wmdp", "mmlu", "tofu", "muse")
    return {name: str(getattr(benchmark_files, name)(folder / name)) for name in names}
