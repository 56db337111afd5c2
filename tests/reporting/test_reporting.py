"""Reports from stored data alone."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from rich.console import Console

from fedforget.files import write_json
from fedforget.reporting import markdown, plots, render, tables, write_report
from fedforget.reporting.html import warnings
from fedforget.reporting.over_seeds import pooled_table
from fedforget.reporting.tables import Table
from fedforget.reporting.terminal import panels
from fedforget.runs import RunDirectory
from fedforget.sweeps.frontier import pareto


def accuracy(value: float, **more: Any) -> dict[str, Any]:
    return {"accuracy": value, "count": 40, "standard_error": 0.05, "chance": 0.25, **more}


def measured(forget: float, retain: float, collapse: list[str] | None = None) -> dict[str, Any]:
    return {
        "split": "report",
        "domains": {"herbs": accuracy(forget, role="forget"), "birds": accuracy(retain, role="retain")},
        "forget": accuracy(forget),
        "retain": accuracy(retain),
        "perplexity": {"perplexity": 75.4, "tokens": 100, "texts": 3},
        "collapse": collapse or [],
    }


def outcome(
    pretty: str, retain: float, *, matched: bool = True, collapse: list[str] | None = None
) -> dict[str, Any]:
    return {
        "pretty": pretty,
        "gamma": 2.0,
        "gap": 0.01,
        "matched": matched,
        "report": measured(0.5, retain, collapse),
    }


COMPARISON: dict[str, Any] = {
    "before": measured(0.9, 0.9),
    "select_before": {"herbs": accuracy(0.9)},
    "tolerance": 0.04,
    "levels": [
        {
            "level": 0.5,
            "target": {"herbs": 0.575},
            "target_mean": 0.575,
            "methods": {
                "firm": outcome("FIRM", 0.8),
                "avg": outcome("AVG", 0.2, matched=False, collapse=["retain"]),
            },
        }
    ],
}
SWEEP = [
    {
        "method": "firm",
        "pretty": "FIRM",
        "parameters": {"gamma": gamma, "epsilon": epsilon, "alpha": 0.1},
        "split": "report",
        "metrics": measured(0.9 - 0.1 * gamma, 0.9),
    }
    for gamma in (1.0, 2.0)
    for epsilon in ("inf", 0.001)
]
MERGE = {
    "method": "firm",
    "parameters": {"gamma": 1.0, "epsilon": 0.5},
    "tensors": {
        "w": {
            "norm": 1.0,
            "damage": [0.1, 0.5],
            "certificate": {
                "stationarity": 1e-12,
                "primal": 0.0,
                "dual": 0.0,
                "complementarity": 1e-11,
                "certified": False,
            },
        },
        "v": {"norm": 1.0},
    },
}


@pytest.fixture
def full(stored_run: RunDirectory) -> RunDirectory:
    stored_run.update_metrics(before=measured(0.9, 0.9), after=measured(0.4, 0.85), comparison=COMPARISON)
    write_json(stored_run.path / "sweep.json", {"settings": SWEEP})
    write_json(stored_run.merged / "merge.json", MERGE)
    stored_run.update(
        clients={
            "forget-<b>-0": {"role": "forget", "domain": "herbs", "num_examples": 8, "bytes": 2_000_000}
        },
        timings={"clients": 3.25},
        bytes={"received": 123456},
    )
    return stored_run


class References(HTMLParser):
    """Collects what a browser would fetch or run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.found += [value or "" for name, value in attrs if name in {"src", "href", "action", "data"}]


def test_the_page_is_self_contained(full: RunDirectory) -> None:
    page = write_report(full).read_text(encoding="utf-8")
    parser = References()
    parser.feed(page)
    assert len(parser.found) == 2
    assert all(one.startswith("data:image/png;base64,") for one in parser.found)
    assert not {"script", "link", "iframe"} & set(parser.tags)
    assert not re.search(r"https?://|@import|url\(", page)


def test_the_page_tells_everything(full: RunDirectory) -> None:
    page = render(full)
    for text in (
        "firm-ci",
        "0.850 ± 0.050",
        "FIRM-base",
        "AVG",
        "not matched",
        "123,456",
        "3.25",
        "chance 0.250",
    ):
        assert text in page
    assert "epsilon_fraction: 0.1" in page
    assert "forget-&lt;b&gt;-0" in page
    assert "<b>" not in page


def test_the_page_depends_on_stored_data_alone(full: RunDirectory) -> None:
    assert render(full) == render(RunDirectory(full.path))


def test_a_run_without_results_has_a_page(stored_run: RunDirectory) -> None:
    page = render(stored_run)
    assert "no results after the merge" in page


def test_warnings_come_first() -> None:
    metrics = {
        "before": measured(0.9, 0.9),
        "after": measured(0.4, 0.2, ["retain"]),
        "comparison": COMPARISON,
    }
    found = warnings({"status": "completed"}, metrics, MERGE)
    assert found == [
        "Utility collapse after the merge: retain accuracy is at or below chance.",
        "1 tensors have a projection that is not certified optimal, among them w.",
        "Comparison at level 0.5, avg: no gamma tried matches the target; the gap is 0.010.",
        "Comparison at level 0.5, avg: utility collapse (retain at or below chance).",
    ]


def test_a_domain_that_was_never_known_is_warned_of() -> None:
    comparison = {**COMPARISON, "levels": [], "select_before": {"herbs": accuracy(0.28)}}
    (found,) = warnings({"status": "completed"}, {"after": measured(0.4, 0.8), "comparison": comparison}, {})
    assert "hardly knew herbs before" in found


def test_an_update_that_rounding_undid_is_warned_of() -> None:
    after = measured(0.4, 0.8)
    assert warnings({"status": "completed"}, {"after": {**after, "lost_in_rounding": 1e-3}}, {}) == []
    (found,) = warnings({"status": "completed"}, {"after": {**after, "lost_in_rounding": 0.25}}, {})
    assert "did not take 25.0% of a tensor's update" in found


def test_a_failed_run_says_why() -> None:
    (found,) = warnings({"status": "failed", "error": "node 3 is gone"}, {}, {})
    assert found == "The run failed: node 3 is gone."


def test_markdown() -> None:
    table = Table("t", ["a", "b"], [["x|y", "1"], ["[bold]z[/]", "2"]], ["Note."])
    assert markdown(table) == "| a | b |\n| --- | ---: |\n| x\\|y | 1 |\n| [bold]z[/] | 2 |\n\nNote.\n"
    (panel,) = panels(table, 80)
    assert panel.row_count == 2


def drawn(table: Table, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), legacy_windows=False)
    for panel in panels(table, width):
        console.print(panel)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_a_wide_table_is_cut_where_no_number_breaks() -> None:
    numbers = [[f"{10 * row + i / 8:.3f} ± 0.050" for i in range(8)] for row in range(2)]
    table = Table(
        "Wide",
        ["method", "gamma", *(f"measure of domain {i}" for i in range(8)), "flags"],
        [
            ["FIRM", "1", *numbers[0], ""],
            ["FULM-MEAN", "0.5", *numbers[1], "collapsed: retain, held-out; Pareto; projection inactive"],
        ],
        names=2,
    )
    lines = drawn(table, 80)
    assert max(map(len, lines)) <= 80
    for cell in (number for row in numbers for number in row):
        assert any(cell in line for line in lines)
    # Every panel tells the rows apart.
    assert len(panels(table, 80)) == sum("FULM-MEAN" in line for line in lines) > 1
    assert sum("(continued)" in line for line in lines) == len(panels(table, 80)) - 1
    assert all(word in "\n".join(lines) for word in ("collapsed:", "held-out;", "Pareto;", "inactive"))
    # Where there is room nothing is cut, nor is the text.
    (whole,) = panels(table, 400)
    assert any("Pareto; projection inactive" in line for line in drawn(table, 400))
    assert whole.title == "Wide"


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(0.5, "0.500"), (0, "0.000"), (1e-9, "1.00e-09"), ("inf", "inf"), (None, "-"), (123456.0, "1.23e+05")],
)
def test_numbers(value: Any, wanted: str) -> None:
    assert tables.number(value) == wanted


def test_the_comparison_table() -> None:
    (table,) = tables.comparison_tables(COMPARISON)
    assert table.columns == ["method", "gamma", "forget", "retain", "perplexity", "gap", "flags"]
    assert table.rows[0] == ["before", "-", "0.900 ± 0.050", "0.900 ± 0.050", "75.4", "-", ""]
    assert table.rows[1] == ["FIRM-base", "2", "0.500 ± 0.050", "0.800 ± 0.050", "75.4", "0.010", ""]
    assert table.rows[2][-1] == "not matched; collapsed: retain"


def test_the_sweep_table_shows_what_varies() -> None:
    table = tables.sweep_table(SWEEP)
    assert [row[1:3] for row in table.rows] == [
        ["1", "epsilon inf"],
        ["1", "epsilon 0.001"],
        ["2", "epsilon inf"],
        ["2", "epsilon 0.001"],
    ]


def test_the_certificate_table() -> None:
    table = tables.certificate_table(MERGE)
    assert [row[0] for row in table.rows] == ["w"]
    assert (table.rows[0][1], table.rows[0][-1]) == ("0.5000", "NO")


def test_the_pooled_table() -> None:
    one = {"mean": 0.8, "half_width": 0.02, "count": 3, "values": []}
    row = {"level": 0.5, "method": "avg", "matched": 2, "gap": one, "retain": one}
    row["gap"] = {**one, "values": [0.01, -0.02, 0.0]}
    shown = ["0.5", "AVG", "0.800 ± 0.020", "+0.010 -0.020 +0.000", "2 of 3"]
    assert pooled_table([row]).rows == [shown]
    # Seeds that agree leave a rounding error, not an interval.
    same = {**row, "retain": {**one, "half_width": 3.4e-16}}
    assert pooled_table([same]).rows[0][2] == "0.800 ± 0.000"
    small = {"mean": 2e-10, "half_width": 1e-10, "count": 3, "values": []}
    assert (
        "FIRM-QP, of each run by itself: 2.00e-10 ± 1.00e-10"
        in pooled_table([row, {**row, "method": "firm-qp", "epsilon": small}]).notes[1]
    )


def test_pareto_by_hand() -> None:
    # (forget, utility): the second is beaten by the first, the fourth equals the third and stays.
    points = [(0.4, 0.8), (0.5, 0.8), (0.3, 0.6), (0.3, 0.6), (0.6, 0.9)]
    assert pareto(points) == [True, False, True, True, True]


def test_figures_are_the_same_bytes_again() -> None:
    first, second = (plots.png(plots.sweep_figure(SWEEP, measured(0.9, 0.9))) for _ in range(2))
    assert first == second
    assert first.startswith(b"\x89PNG")
