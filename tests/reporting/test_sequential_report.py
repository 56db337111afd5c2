"""The page of a FedSGT run, from stored data alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedforget.presets import load_sequential
from fedforget.reporting import render, write_report
from fedforget.reporting.sequential import warnings
from fedforget.reporting.sequential_tables import course_tables
from fedforget.runs import RunDirectory
from fedforget.sequences.ledger import Ledger


def row(number: int, request: str, modules: int, longest: int, **more: Any) -> dict[str, Any]:
    accuracy = 0.5 + 0.1 * longest if modules else None
    return {"number": number, "request": request, "group": "0", "modules": modules, "longest": longest,
            "accuracy": accuracy, "records": 225, **more}  # fmt: skip


def expected(value: float, low: float, high: float) -> dict[str, Any]:
    return {"longest_expected": value, "longest_band": [low, high]}


LIFE = {"mean": 3.0, "std": 1.4, "band": [2.0, 6.0], "confidence": 0.9, "inside": True}
ESTIMATE = {"mean": 4.5, "interval": [4.4, 4.6], "trials": 100}
DEMO: dict[str, Any] = {
    "stream": "uniform",
    "asked": "each naming 3 records of one slice (uniform requests)",
    "requests": [
        row(0, "after training", 4, 2, **expected(2.0, 2.0, 2.0)),
        row(1, "client-00/<b>", 1, 1, **expected(1.0, 1.0, 1.0)),
        row(2, "client-01/0", 0, 0, **expected(0.5, 0.0, 1.0)),
    ],
    "verified": [{"after": 0, "prefix": [0, 1], "modules": 2, "same": 2, "repairs": 0}],
    "life": {**LIFE, "observed": 2, "ended": True},
    "repaired": {
        "repair_at": 0.5,
        "most": 2,
        "requests": [row(0, "after training", 4, 2), row(1, "client-00/<b>", 1, 1), row(1, "repair", 4, 2)],
        "verified": [{"after": 1, "prefix": [0, 1], "modules": 2, "same": 2, "repairs": 1}],
        "repairs": [
            {"after": 1, "groups": [0], "modules": 3, "before": 1, "seconds": 2.5, "visits": 7, "bytes": 3e6}
        ],
        "life": {**LIFE, **ESTIMATE, "observed": None, "ended": False},
    },
}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    found = RunDirectory.create(tmp_path / "run", load_sequential("fedsgt-ci"), "fedsgt-ci")
    slices = [[("client-00", 0, 5)], [("client-01", 0, 5)]]
    Ledger.create(found.ledger, slices, [(0, 1), (1, 0)], 0).close()
    return found


def test_the_page_tells_the_course(run: RunDirectory) -> None:
    run.update(grouping={"barycentre": 0.25, "random": 0.75}, status="completed")
    run.update_metrics(demo=DEMO)
    page = write_report(run).read_text(encoding="utf-8")
    for text in ("4.5 ± 1.4 (estimate)", "3.0 ± 1.4", "not ended", "<td>2.5</td>", "Remaining groups", "0.75",
                 "client-00/&lt;b&gt;", "Groups of generation 0", "1.00 (1 to 1)",
                 "records of one slice (uniform requests). hit before: the group was"):  # fmt: skip
        assert text in page, text
    assert page.count('src="data:image/png;base64,') == 3
    assert "<b>" not in page
    assert page == render(RunDirectory(run.path))


def test_a_run_that_trained_nothing_has_a_page(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", load_sequential("fedsgt-ci"), "fedsgt-ci")
    run.update(status="failed", error="client-00 is gone")
    assert "The run failed: client-00 is gone." in render(run)


def test_what_a_reader_must_know_first(run: RunDirectory) -> None:
    wrong = {**DEMO, "verified": [{**DEMO["verified"][0], "same": 1}]}
    found = warnings({"status": "completed"}, {"demo": wrong, "served": {}}, 0, ["event 3 was altered"])
    assert found == [
        "The ledger does not hold: event 3 was altered.",
        "After 0 requests, 1 modules of prefix 0,1 were not what the remaining data give.",
    ]
    assert warnings({}, {"served": {"modules": 4}}, 0, []) == ["Service has ended: no module is left."]
    assert warnings({}, {"served": {"modules": 4}}, 4, []) == []


def test_a_demonstration_without_repairs_has_no_table_of_them() -> None:
    plain = {key: value for key, value in DEMO.items() if key != "repaired"}
    titles = [table.title for table in course_tables({**plain, "stream": "bursts"})]
    assert titles == ["Requests", "Service life in requests", "Retrained without the deleted data"]
    assert "these are bursts" in course_tables({**plain, "stream": "bursts"})[0].notes[1]
