"""The notation page names what exists and leaves out nothing; the results page is made by its command."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from fedforget.presets import presets
from fedforget.reporting.pooled import BEGIN, END
from fedforget.sweeps.studies import studies

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "notation.md").read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`((?:fedforget|strategies|simulations|clients)\.[\w.]+)`", PAGE)))


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def first_cells(text: str) -> str:
    return "\n".join(line.split("|")[1] for line in text.splitlines() if line.startswith("|"))


def numbers(text: str) -> set[int]:
    """Read ``(16) to (19)`` as four numbers and ``(6), (9)`` as two."""
    found: set[int] = set()
    for first, last in re.findall(r"\((\d+)\)(?: to \((\d+)\))?", text):
        found |= set(range(int(first), int(last or first) + 1))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_name_exists(name: str) -> None:
    found: object
    path, _, attribute = name.rpartition(".")
    try:
        found = importlib.import_module(name)
    except ModuleNotFoundError:
        found = getattr(importlib.import_module(path), attribute)
    assert found is not None


def test_every_equation_and_table_is_there() -> None:
    assert len(NAMES) > 50
    assert numbers(first_cells(section("FIRM: equations"))) == set(range(1, 23))
    assert "(P)" in section("FIRM: equations")
    for paper, count in (("FIRM", 16), ("FedSGT", 3)):
        cells = first_cells(section(f"{paper}: tables and figures"))
        assert {int(one) for one in re.findall(r"table (\d+)", cells)} == set(range(1, count + 1))
    # Those that the paper's text refers to by number.
    assert numbers(first_cells(section("FedSGT: equations"))) == {1, 2, 3, 9, 10, 19}


def test_every_preset_and_study_exists_and_every_study_is_named() -> None:
    known = presets()
    named = re.findall(r"`((?:firm|fedsgt)-[\w-]+)`", PAGE)
    assert named
    assert not [name for name in named if name not in known]
    words = [one for listed in re.findall(r"stud(?:y|ies) ((?:`[\w-]+`(?: and )?)+)", PAGE)
             for one in re.findall(r"`([\w-]+)`", listed)]  # fmt: skip
    assert set(words) == set(studies())
    page = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")
    assert set(re.findall(r"--study ([\w-]+)", page)) == set(studies())


def test_the_results_are_made_and_say_by_what() -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    made = page.split(BEGIN)[1].split(END)[0]
    found = re.search(r"Made by `(.*?)` at commit ([0-9a-f]{40})\. Page at commit ([0-9a-f]{40})\.", made)
    assert found is not None
    assert found[1] in (ROOT / "README.md").read_text(encoding="utf-8")
    compared = re.findall(r"^\| 0\.5 \| ([\w-]+) \|", made, re.M)
    assert compared == ["FIRM-base", "FIRM-QP", "AVG", "SUM", "TIES", "FULM"]
    # No number of the results is typed in.
    assert not re.search(r"\d\.\d", page.replace(made, ""))


def test_every_test_that_the_page_on_faults_names_is_there() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    path, named = Path(), re.findall(r"`([\w/]+\.py)?::(\w+)`", page)
    assert len(named) > 20
    for file, name in named:
        path = ROOT / "tests" / file if file else path
        assert f"def {name}(" in path.read_text(encoding="utf-8"), name
