"""The rule that chooses gamma, and the search that feeds it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fedforget.sweeps.matching import Point, choose, search, targets


def test_targets_are_a_share_of_the_way_to_chance() -> None:
    # .9 - .5 * (.9 - .25) = .575; .65 - .5 * (.65 - .25) = .45.
    before = {"a": {"accuracy": 0.9, "chance": 0.25}, "b": {"accuracy": 0.65, "chance": 0.25}}
    assert targets(before, 0.5) == pytest.approx({"a": 0.575, "b": 0.45})
    assert targets(before, 1.0) == pytest.approx({"a": 0.25, "b": 0.25})


def test_the_largest_gap_decides() -> None:
    goal = {"a": 0.5, "b": 0.5}
    # Largest gaps .2, .1, .15: the second wins though its sum, .2, ties with the first's.
    points = [Point(1, {"a": 0.7, "b": 0.5}), Point(2, {"a": 0.6, "b": 0.4}), Point(3, {"a": 0.35, "b": 0.5})]
    assert choose(points, goal).gamma == 2


def test_equal_largest_gaps_go_to_the_smaller_sum() -> None:
    goal = {"a": 0.5, "b": 0.5}
    points = [Point(1, {"a": 0.6, "b": 0.6}), Point(2, {"a": 0.4, "b": 0.45})]
    assert choose(points, goal).gamma == 2


def test_equal_gaps_go_to_the_lower_gamma() -> None:
    # 0.3 - 0.2 and 0.2 - 0.1 differ in the last bit of a double; as gaps they are equal.
    goal = {"a": 0.2}
    assert abs(0.3 - 0.2) != abs(0.1 - 0.2)
    points = [Point(4, {"a": 0.1}), Point(2, {"a": 0.3}), Point(3, {"a": 0.1})]
    assert choose(points, goal).gamma == 2
    assert choose(points[::-1], goal).gamma == 2


def falling(scale: float) -> Callable[[float], dict[str, float]]:
    """Accuracy .9 at gamma 0, falling towards .25; .575 at gamma = scale."""
    return lambda gamma: {"a": 0.25 + 0.65 / (1 + gamma / scale)}


@pytest.mark.parametrize("scale", [0.07, 0.6, 1.0, 3.0, 17.0])
@pytest.mark.parametrize("start", [1.0, 4.0])
def test_bisection_closes_in(scale: float, start: float) -> None:
    goal = {"a": 0.575}
    points = search(falling(scale), goal, start=start, max_evaluations=9)
    assert len(points) <= 9
    assert choose(points.values(), goal).gaps(goal)[0] < 0.04


def test_never_more_than_the_evaluations_allowed() -> None:
    calls = []

    def measure(gamma: float) -> dict[str, float]:
        calls.append(gamma)
        return falling(6.0)(gamma)

    search(measure, {"a": 0.575}, max_evaluations=4)
    assert len(calls) == len(set(calls)) == 4


def test_a_close_point_ends_the_search() -> None:
    points = search(falling(1.0), {"a": 0.575}, close=0.01)
    assert list(points) == [1.0]


def test_points_of_another_level_are_reused() -> None:
    known = search(falling(2.0), {"a": 0.575}, max_evaluations=6)
    before = dict(known)
    search(falling(2.0), {"a": 0.575}, points=known, max_evaluations=3, close=0.02)
    assert known == before


def test_a_target_out_of_reach_ends_at_the_bound() -> None:
    points = search(lambda gamma: {"a": 0.9}, {"a": 0.5}, max_evaluations=50)
    assert 512 <= max(points) <= 1024
    assert len(points) < 10


def test_a_curve_that_rises_again_still_gives_the_closest_point() -> None:
    def measure(gamma: float) -> dict[str, float]:
        return {"a": 0.9 - 0.4 * min(gamma, 2.0) / 2 + (0.3 if gamma > 3 else 0.0)}

    points = search(measure, {"a": 0.6}, max_evaluations=8)
    assert choose(points.values(), {"a": 0.6}).gaps({"a": 0.6})[0] < 0.05
