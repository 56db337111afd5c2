"""Stored sweeps at matched forgetting: the paper's rules, residual gaps and envelope areas."""

from __future__ import annotations

from typing import Any

import pytest

from fedforget.errors import RunError
from fedforget.reporting.matched import matched_tables
from fedforget.sweeps.frontier import envelope_area, envelope_areas
from fedforget.sweeps.matched import curves, match_sweep


def result(
    method: str, gamma: float, bio: float, cyber: float, mmlu: float = 0.5, split: str = "report", **more: Any
) -> dict[str, Any]:
    domains = {
        "bio": {"role": "forget", "accuracy": bio},
        "cyber": {"role": "forget", "accuracy": cyber},
        "mmlu": {"role": "retain", "accuracy": mmlu},
    }
    return {
        "method": method,
        "pretty": method.upper(),
        "parameters": {"gamma": gamma, **more},
        "split": split,
        "metrics": {"domains": domains, "retain": {"accuracy": mmlu}},
    }


BASE = [
    result("firm", 0.5, 0.60, 0.40, 0.58, epsilon="inf"),
    result("firm", 1.0, 0.43, 0.32, 0.48, epsilon="inf"),
    result("firm", 1.5, 0.27, 0.28, 0.40, epsilon="inf"),
]


def matched(found: list[dict[str, Any]], *given: Any, **options: Any) -> list[tuple[float, float]]:
    pairs = match_sweep(found, *given, **options)["pairs"]
    return [(one["gamma"], one["reference_gamma"]) for one in pairs]


def test_the_largest_gap_decides_then_the_sum_then_the_lower_gamma() -> None:
    # To gamma 1: gaps .01 and .03; to 1.5: .15 and .01; to .5: .18 and .11.
    assert matched([*BASE, result("avg", 2.0, 0.42, 0.29)]) == [(2.0, 1.0)]
    # Largest gaps .02 to both of gamma 1 and 4; sums .03 and .04.
    near = result("firm", 4.0, 0.41, 0.34, epsilon="inf")
    assert matched([*BASE, near, result("avg", 2.0, 0.42, 0.34)]) == [(2.0, 4.0)]
    assert matched([*BASE, near, result("avg", 2.0, 0.42, 0.33)]) == [(2.0, 1.0)]


def test_utility_never_enters() -> None:
    for utility in (0.0, 0.48, 1.0):
        assert matched([*BASE, result("avg", 2.0, 0.42, 0.29, utility)]) == [(2.0, 1.0)]
        twisted = [one | {"metrics": {**one["metrics"], "retain": {"accuracy": utility}}} for one in BASE]
        assert matched([*twisted, result("avg", 2.0, 0.42, 0.29)]) == [(2.0, 1.0)]


def test_gaps_differences_and_closeness() -> None:
    (pair,) = match_sweep([*BASE, result("avg", 2.0, 0.434, 0.32, 0.49)])["pairs"]
    assert pair["gaps"] == {"bio": 0.004, "cyber": 0.0}
    assert (pair["largest_gap"], pair["sum_of_gaps"], pair["close"]) == (0.004, 0.004, True)
    assert pair["measures"]["retain"]["difference"] == pytest.approx(0.01)
    assert not match_sweep([*BASE, result("avg", 2.0, 0.436, 0.32)])["pairs"][0]["close"]


def test_domains_that_choose_apart_must_agree() -> None:
    budget = [one | {"parameters": one["parameters"] | {"epsilon": 1e-5}} for one in BASE]
    found = [*BASE, *budget, result("avg", 2.0, 0.43, 0.285), result("avg", 3.0, 0.43, 0.32)]
    options = {"rule": "separate"}
    # By bio gamma 1, by cyber gamma 1.5: left out; at gamma 3 both say 1.
    assert matched(found, "firm:epsilon=inf", ["avg"], **options) == [(3.0, 1.0)]
    # A tie goes to the nearer gamma, here the setting's own.
    twin = result("firm", 9.0, 0.43, 0.32, epsilon="inf")
    assert matched([*BASE, twin, result("avg", 8.0, 0.43, 0.32)], "firm", **options) == [(8.0, 9.0)]


def test_matches_are_chosen_on_the_selection_questions_where_they_were_asked() -> None:
    # On the selection questions avg is at firm's gamma 1.5, on the reported ones at gamma 1.
    select = [one | {"split": "select"} for one in BASE]
    found = [*BASE, *select, result("avg", 2.0, 0.43, 0.32), result("avg", 2.0, 0.27, 0.28, split="select")]
    one = match_sweep(found)
    assert (one["chosen_on"], one["reported_on"]) == ("select", "report")
    assert one["pairs"][0]["reference_gamma"] == 1.5
    assert one["pairs"][0]["gaps"] == {"bio": 0.16, "cyber": 0.04}
    half = match_sweep(found[:-1])
    assert (half["chosen_on"], half["reported_on"]) == ("report", "report")
    notes = " ".join(note for table in matched_tables(one) for note in table.notes)
    assert "Matches were chosen on the select questions" in notes


def test_envelope_by_hand() -> None:
    points = [(0.2, 0.3), (0.3, 0.5), (0.5, 0.4), (0.6, 0.8)]
    # From .2 to .3 height .3, from .3 to .6 height .5 (the third point is below it): .03 + .15 over .4.
    assert envelope_area(points, 0.2, 0.6) == pytest.approx(0.18 / 0.4)
    # Common range .3 to .5: first .5; second .35 up to .4, then .45.
    areas = envelope_areas(points[:3], [(0.3, 0.35), (0.4, 0.45), (0.7, 0.9)])
    assert areas is not None
    assert (areas.low, areas.high) == (0.3, 0.5)
    assert (areas.first, areas.second) == (pytest.approx(0.5), pytest.approx(0.4))
    assert areas.difference == pytest.approx(0.1)
    assert envelope_areas([(0.1, 0.5)], [(0.2, 0.5), (0.3, 0.5)]) is None


def test_envelopes_are_of_the_utility_that_was_asked_for() -> None:
    one = match_sweep([*BASE, *(result("avg", gamma, 0.7 - 0.2 * gamma, 0.3, 0.9) for gamma in (1.0, 2.0))])
    # bio: avg from .3 to .5, firm from .27 to .60; firm's envelope is .40 up to .43, then .48.
    area = one["envelopes"]["avg"]["bio"]
    assert (area["low"], area["high"]) == (pytest.approx(0.3), pytest.approx(0.5))
    assert area["second"] == pytest.approx((0.13 * 0.40 + 0.07 * 0.48) / 0.2)
    assert area["first"] == pytest.approx(0.9)
    assert one["envelopes"]["avg"]["cyber"] is None  # one accuracy is no range
    shown = matched_tables(one)[1]
    assert shown.rows[0][-1] == "+0.4720"
    with pytest.raises(RunError, match=r"no 'mmul'.*did you mean 'mmlu'"):
        match_sweep([*BASE, result("avg", 1.0, 0.4, 0.3)], utility="mmul")


def test_curves_are_named_by_what_varies() -> None:
    found = [*BASE, result("firm", 1.0, 0.4, 0.3, epsilon=4.1e-5), result("avg", 1.0, 0.4, 0.3)]
    assert list(curves(found)) == ["firm:epsilon=inf", "firm:epsilon=4.1e-05", "avg"]


def test_a_budget_that_binds_nowhere_is_flagged() -> None:
    slack, binding = (result("firm", gamma, 0.4, 0.3, epsilon=1.0) for gamma in (1.0, 2.0))
    slack["merge"], binding["merge"] = {"projected": 0.0}, {"projected": 0.5}
    found = match_sweep([*BASE, slack, binding])
    assert [one["inactive"] for one in found["pairs"]] == [True, False]
    flags = [row[-1] for row in matched_tables(found)[0].rows]
    assert ["projection inactive" in one for one in flags] == [True, False]


def test_of_several_curves_the_one_with_the_runs_own_parameters_is_meant() -> None:
    def swept(*epsilons: str) -> list[dict[str, Any]]:
        return [
            result("firm", gamma, 0.5, 0.4, alpha=alpha, epsilon=epsilon)
            for gamma in (1.0, 2.0)
            for alpha in (0.1, 0.2)
            for epsilon in epsilons
        ]

    found = swept("inf", "0.5")
    assert match_sweep(found, own={"alpha": 0.2})["reference"] == "firm:alpha=0.2:epsilon=inf"
    assert match_sweep(swept("inf"), own={"alpha": 0.2})["reference"] == "firm:alpha=0.2"
    named = match_sweep(found, "firm:epsilon=0.5", ["firm:epsilon=inf"], own={"alpha": 0.1})
    assert named["reference"] == "firm:alpha=0.1:epsilon=0.5"
    assert {one["curve"] for one in named["pairs"]} == {"firm:alpha=0.1:epsilon=inf"}
    for options in ({}, {"own": {"alpha": 0.3}}):
        with pytest.raises(RunError, match="name the reference"):
            match_sweep(found, **options)
    with pytest.raises(RunError, match="no curve 'firm:epsilon"):
        match_sweep(found, "firm:epsilon=0.5")


@pytest.mark.parametrize(
    ("found", "given", "message"),
    [
        ([], [], "no sweep is stored"),
        (BASE, [], "no curve but 'firm'"),
        ([result("avg", 1.0, 0.4, 0.3), result("sum", 1.0, 0.4, 0.3)], [], "name the reference.*avg, sum"),
        (BASE, ["firn"], r"no curve 'firn' \(did you mean 'firm'\?\)"),
    ],
)
def test_what_cannot_be_matched(found: list[dict[str, Any]], given: list[str], message: str) -> None:
    with pytest.raises(RunError, match=message):
        match_sweep(found, *given)
