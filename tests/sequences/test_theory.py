"""Service life, remaining data and costs: hand-computed cases, closed forms, simulation."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import pytest

from fedforget.errors import PlanError
from fedforget.sequences import expected_longest_prefix, rotations
from fedforget.sequences.theory import (
    communication_rounds,
    deletion_rate,
    due_for_repair,
    expected_cyclic_span,
    expected_remaining_curve,
    expected_remaining_data,
    expected_remaining_groups,
    fedavg_communication_rounds,
    fedcio_communication_rounds,
    fedcio_deletion_rate,
    fedcio_remaining_data,
    matched_budget,
    monte_carlo_remaining_groups,
    monte_carlo_repaired_life,
    monte_carlo_service_life,
    participation_rounds,
    remaining_band,
    service_life,
)
from fedforget.sequences.theory.collector import classes_of, collected, moments


def enumerated_remaining(sequences: list[tuple[int, ...]], r: int, p: list[float], measure: str) -> float:
    """The definition: every request stream of length r, weighed by its probability."""
    total = 0.0
    for stream in itertools.product(range(len(p)), repeat=r):
        active = [
            list(itertools.takewhile(set(range(len(p))).difference(stream).__contains__, order))
            for order in sequences
        ]
        value = max(map(len, active)) if measure == "longest" else len(set().union(*active))
        total += value * math.prod(p[g] for g in stream)
    return total


# --- deletion rate and service life ---------------------------------------------------------


def test_deletion_rate_is_the_papers() -> None:
    # Section 5.4: L = 10, B >= L gives 10 * H_10 = 29.29; FedCIO with c = 5 gives 5 * H_5 = 11.42.
    assert deletion_rate(10, 10) == pytest.approx(29.2897, abs=1e-4)
    assert deletion_rate(10, 36) == deletion_rate(10, 10)
    assert fedcio_deletion_rate(5) == pytest.approx(11.4167, abs=1e-4)
    assert deletion_rate(10, 1) == 10.0
    assert deletion_rate(1, 1) == fedcio_deletion_rate(1) == 1.0


@pytest.mark.parametrize(("num_groups", "budget"), [(1, 1), (2, 1), (5, 3), (10, 10), (40, 40)])
def test_service_life_of_rotations_has_the_deletion_rate_as_mean(num_groups: int, budget: int) -> None:
    life = service_life(rotations(num_groups, budget))
    assert life.mean == pytest.approx(deletion_rate(num_groups, budget), rel=1e-12)


def test_service_life_with_one_first_group_is_geometric() -> None:
    # P(T <= n) = 1 - (2/3)^n, mean 3, variance (1 - p)/p^2 = 6.
    life = service_life([(0, 1, 2), (0, 2, 1)])
    assert life.first_groups == (0,)
    assert life.mean == pytest.approx(3.0)
    assert life.std == pytest.approx(math.sqrt(6.0))
    assert [life.cdf(n) for n in range(4)] == pytest.approx([0, 1 / 3, 5 / 9, 19 / 27])
    # 1 - (2/3)^1 = .33, (2/3)^2: .56, so the median is 2.
    assert life.quantile(0.5) == 2.0


def test_service_life_under_a_prior_by_hand() -> None:
    # Two coupons of probability .75 and .25: E[T] = 1/.75 + 1/.25 - 1/1 = 13/3,
    # P(T <= 2) = 2 * .75 * .25 = .375.
    life = service_life([(0, 1), (1, 0)], prior=[3, 1])
    assert life.mean == pytest.approx(13 / 3)
    assert life.cdf(1) == 0.0
    assert life.cdf(2) == pytest.approx(0.375)
    assert life.survival(2) == pytest.approx(0.625)


def test_the_two_ways_to_the_distribution_agree() -> None:
    uniform = service_life(rotations(6, 4))
    nudged = service_life(rotations(6, 4), prior=[1, 1, 1, 1 + 1e-9, 1, 1])  # takes inclusion-exclusion
    assert nudged.mean == pytest.approx(uniform.mean, rel=1e-7)
    assert nudged.std == pytest.approx(uniform.std, rel=1e-7)
    assert [nudged.cdf(n) for n in range(60)] == pytest.approx([uniform.cdf(n) for n in range(60)], abs=1e-7)


def test_mean_is_the_sum_of_the_survival_function() -> None:
    life = service_life(rotations(5, 5), prior=[5, 4, 3, 2, 1])
    assert math.fsum(life.survival(n) for n in range(2000)) == pytest.approx(life.mean, rel=1e-9)


def test_band_holds_its_share() -> None:
    life = service_life(rotations(10, 10))
    low, high = life.band(0.9)
    assert low < life.mean < high
    assert life.cdf(int(high)) - life.cdf(int(low) - 1) >= 0.9
    assert life.cdf(int(low) - 1) < 0.05
    assert life.cdf(int(high) - 1) < 0.95


def test_a_first_group_that_is_never_hit_never_ends_the_service() -> None:
    life = service_life([(0, 1), (1, 0)], prior=[1, 0])
    assert life.mean == math.inf
    assert life.quantile(0.5) == math.inf
    assert life.survival(1000) == 1.0


def test_service_life_agrees_with_simulation() -> None:
    prior = [8, 1, 2, 5, 3, 3]
    exact = service_life(rotations(6, 4), prior=prior).mean
    estimate = monte_carlo_service_life(rotations(6, 4), seed=1, trials=40_000, prior=prior)
    assert estimate.low < exact < estimate.high
    assert estimate.high - estimate.low < 0.06 * exact


def test_simulated_service_life_agrees_with_a_stream_of_requests() -> None:
    # The simulation draws the number of requests through a Poisson process; this one counts them.
    draw = random.Random(5)
    lives = []
    for _ in range(4000):
        missing, n = {0, 5, 4, 3}, 0
        while missing:
            missing.discard(draw.choices(range(6), weights=[8, 1, 2, 5, 3, 3])[0])
            n += 1
        lives.append(n)
    mean = sum(lives) / len(lives)
    half = 2.6 * math.sqrt(sum((x - mean) ** 2 for x in lives)) / len(lives)
    estimate = monte_carlo_service_life(rotations(6, 4), seed=2, trials=40_000, prior=[8, 1, 2, 5, 3, 3])
    assert mean - half < estimate.mean < mean + half


# --- remaining data -------------------------------------------------------------------------


def test_remaining_groups_by_hand() -> None:
    # Rotations of 3: nothing deleted, 3 groups. One deleted, the other two are consecutive on the
    # circle: 2. Two deleted: 1. After 2 requests: 1/3 hit one group, 2/3 two: 2/3 + 2/3 = 4/3.
    curve = expected_remaining_curve(rotations(3, 3), 2)
    assert curve == pytest.approx([3.0, 2.0, 4 / 3])
    # One sequence 0,1: after one request group 0 is hit (0 left) or group 1 (1 left).
    assert expected_remaining_groups([(0, 1)], 1) == pytest.approx(0.5)
    # Kept 0 and 2 of 4 after deleting 1 and 3: longest 1, union 2.
    four = rotations(4, 4)
    assert expected_remaining_groups(four, 2, prior=[0, 1, 0, 1]) == pytest.approx(0.5 * 3 + 0.5 * 1)
    assert expected_remaining_groups(four, 2, prior=[0, 1, 0, 1], measure="union") == pytest.approx(2.5)


@pytest.mark.parametrize("measure", ["longest", "union"])
@pytest.mark.parametrize("prior", [None, [1.0, 2.0, 3.0, 4.0]])
@pytest.mark.parametrize("r", [0, 1, 3, 5])
def test_remaining_groups_equal_the_definition(measure: str, prior: list[float] | None, r: int) -> None:
    sequences = [(0, 1, 2, 3), (2, 0, 3, 1), (2, 0, 1, 3), (3, 1)]
    p = [w / 10 for w in prior] if prior else [0.25] * 4
    exact = expected_remaining_groups(sequences, r, prior=prior, measure=measure)
    assert exact == pytest.approx(enumerated_remaining(sequences, r, p, measure), rel=1e-12)


def test_the_planner_maximises_the_mean_of_this_curve() -> None:
    prior = [4.0, 1.0, 2.0, 2.0, 3.0]
    curve = expected_remaining_curve(rotations(5, 4), 6, prior=prior)
    assert expected_longest_prefix(rotations(5, 4), prior, 6) == pytest.approx(sum(curve[1:]) / 6, rel=1e-12)


@pytest.mark.parametrize("num_groups", [1, 2, 3, 6, 10])
def test_closed_form_equals_the_exact_value_for_all_rotations(num_groups: int) -> None:
    closed = [expected_remaining_data(num_groups, r, num_examples=num_groups) for r in range(31)]
    assert expected_remaining_curve(rotations(num_groups, num_groups), 30) == pytest.approx(
        closed, rel=1e-10, abs=1e-12
    )


def test_a_uniform_prior_is_the_default() -> None:
    by_default = expected_remaining_curve(rotations(8, 5), 20, measure="union")
    given = expected_remaining_curve(rotations(8, 5), 20, prior=[2.0] * 8, measure="union")
    assert given == pytest.approx(by_default, rel=1e-10)


def test_fewer_rotations_leave_less_and_more_sequences_no_less() -> None:
    # Section 5.2: E[R] for B > L is at least that for B = L.
    extra = [*rotations(6, 6), (0, 2, 4, 1, 3, 5), (1, 3, 5, 0, 2, 4)]
    for r in range(1, 10):
        fewer, same, more = (
            expected_remaining_groups(sequences, r) for sequences in (rotations(6, 3), rotations(6, 6), extra)
        )
        assert fewer < same
        assert same <= more
    assert expected_remaining_groups(extra, 4) > expected_remaining_groups(rotations(6, 6), 4)


def test_every_group_in_front_keeps_the_union_whole() -> None:
    # With all rotations each kept group is active in the sequence it leads: L (1 - 1/L)^r.
    exact = expected_remaining_groups(rotations(7, 7), 9, measure="union")
    assert exact == pytest.approx(7 * (6 / 7) ** 9)


def test_cyclic_span_by_hand() -> None:
    # L = 4, r = 2: one group (prob 1/4) has span 1; of the 6 pairs 4 are neighbours (span 2),
    # 2 are opposite (span 3): 1/4 + 3/4 * (4*2 + 2*3)/6 = 2.
    assert expected_cyclic_span(4, 0) == 0.0
    assert expected_cyclic_span(4, 1) == 1.0
    assert expected_cyclic_span(4, 2) == pytest.approx(2.0)
    assert expected_remaining_data(4, 2, num_examples=100) == pytest.approx(50.0)


@pytest.mark.parametrize("measure", ["longest", "union"])
def test_remaining_groups_agree_with_simulation(measure: str) -> None:
    sequences = [*rotations(9, 4), (3, 8, 1, 0, 2, 4, 5, 6, 7)]
    prior = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    exact = expected_remaining_groups(sequences, 4, prior=prior, measure=measure)
    estimate = monte_carlo_remaining_groups(sequences, 4, seed=3, prior=prior, measure=measure)
    assert estimate.low < exact < estimate.high
    assert estimate.confidence == 0.99
    assert estimate == monte_carlo_remaining_groups(sequences, 4, seed=3, prior=prior, measure=measure)


def test_simulation_reaches_beyond_the_exact_limit() -> None:
    # 30 rotations: the closed form is still exact there.
    exact = expected_remaining_data(30, 5, num_examples=30)
    estimate = monte_carlo_remaining_groups(rotations(30, 30), 5, seed=4)
    assert estimate.low < exact < estimate.high


def test_fedcio_remaining_data() -> None:
    # 50,000 * (4/5)^2
    assert fedcio_remaining_data(5, 2, num_examples=50_000) == pytest.approx(32_000)
    assert fedcio_remaining_data(1, 0) == 1.0
    assert fedcio_remaining_data(1, 1) == 0.0


# --- costs ----------------------------------------------------------------------------------


def test_communication_rounds_are_the_papers() -> None:
    # P(K=1) = .1, P(K=2) = .9: 10 * 11 * (.1 * 1/2 + .9 * 2/3) = 71.5.
    assert communication_rounds(10, 2, 10) == pytest.approx(71.5)
    # One slice: always one group, half of the L phases and a half: B (L+1)/2.
    assert communication_rounds(10, 1, 10) == pytest.approx(55.0)
    assert communication_rounds(1, 3, 1) == pytest.approx(1.0)
    assert fedcio_communication_rounds(10) == 12
    assert fedavg_communication_rounds(10) == 10


def test_communication_rounds_under_the_balanced_partition() -> None:
    # 20 slices, 2 a group: the second slice joins the first with probability 1/19.
    exact = 110 * (1 / 19 * 1 / 2 + 18 / 19 * 2 / 3)
    assert communication_rounds(10, 2, 10, slices_in_all=20) == pytest.approx(exact)
    # With many slices in all, drawing without replacement is drawing with it.
    assert communication_rounds(10, 2, 10, slices_in_all=10**6) == pytest.approx(71.5, rel=1e-5)


def test_communication_rounds_average_the_rounds_of_each_placement() -> None:
    sequences = rotations(5, 5)
    placements = list(itertools.product(range(5), repeat=3))  # 3 slices, groups drawn independently
    mean = sum(participation_rounds(sequences, groups) for groups in placements) / len(placements)
    assert communication_rounds(5, 3, 5) == pytest.approx(mean)


def test_a_shared_prefix_is_one_round() -> None:
    # Prefixes 0, 01, 012, 02, 021; group 1 is in 01, 012 and 021.
    assert participation_rounds([(0, 1, 2), (0, 2, 1)], [1]) == 3
    assert participation_rounds([(0, 1, 2), (0, 2, 1)], [0]) == 5
    assert participation_rounds([(0, 1, 2), (0, 2, 1)], []) == 0


def test_matched_budget_follows_the_formula_not_the_text() -> None:
    # 2 * 10 * 10 / 11 = 18.18; the text of Section 5.4 says about 36.
    assert matched_budget(10, 10) == pytest.approx(200 / 11)


# --- bad input ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: deletion_rate(0, 1), "num_groups is 0"),
        (lambda: deletion_rate(3, 1.5), "budget is 1.5"),  # type: ignore[arg-type]
        (lambda: fedcio_deletion_rate(-1), "num_clusters is -1"),
        (lambda: expected_remaining_groups([], 1), "no sequences"),
        (lambda: expected_remaining_groups([(0, 1), ()], 1), "sequence 1 is empty"),
        (lambda: expected_remaining_groups([(0, 0)], 1), "names a group twice"),
        (lambda: expected_remaining_groups([(0, -1)], 1), "a group of sequence 0 is -1"),
        (lambda: expected_remaining_groups([(0, 3)], 1, num_groups=3), "names group 3"),
        (lambda: expected_remaining_groups([(0, 1)], -1), "num_requests is -1"),
        (lambda: expected_remaining_groups([(0, 1)], 1, prior=[1.0]), "one weight for each of the 2 groups"),
        (lambda: expected_remaining_groups([(0, 1)], 1, prior=[1, -1]), "non-negative"),
        (lambda: expected_remaining_groups([(0, 1)], 1, prior=[math.nan, 1]), "finite"),
        (lambda: expected_remaining_groups([(0, 1)], 1, prior=[0, 0]), "positive"),
        (lambda: expected_remaining_groups([(0, 1)], 1, measure="all"), "longest, union"),
        (lambda: expected_remaining_groups(rotations(21, 21), 1), "use monte_carlo_remaining_groups"),
        (lambda: service_life(rotations(21, 21), prior=range(1, 22)), "use monte_carlo_service_life"),
        (lambda: service_life(rotations(3, 3)).quantile(1.0), "strictly between 0 and 1"),
        (lambda: monte_carlo_service_life([(0, 1)], seed=0, prior=[0, 1]), "never ends"),
        (lambda: monte_carlo_service_life([(0, 1)], seed=0, trials=1), "trials is 1"),
        (lambda: communication_rounds(10, 2, 10, slices_in_all=21), "multiple of num_groups"),
        (lambda: expected_remaining_data(3, 1, num_examples=-1.0), "num_examples"),
        (lambda: matched_budget(0, 10), "rounds is 0"),
    ],
)
def test_bad_input_is_named(call: Callable[[], object], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        call()


# --- bands, and repairs ---------------------------------------------------------------------


def test_band_of_remaining_groups_is_that_of_the_enumerated_streams() -> None:
    sequences, p, r = [(0, 1, 2), (2, 0, 1), (1, 2, 0)], [0.5, 0.3, 0.2], 2
    chances = dict.fromkeys(range(4), 0.0)
    for stream in itertools.product(range(3), repeat=r):
        lengths = [
            len(list(itertools.takewhile(lambda g, s=stream: g not in s, order)))  # type: ignore[misc]
            for order in sequences
        ]
        chances[max(lengths)] += math.prod(p[g] for g in stream)
    # Twice the same group leaves the other two in order: 0.25 + 0.09 + 0.04; else one group is left.
    assert chances == pytest.approx({0: 0.0, 1: 0.62, 2: 0.38, 3: 0.0})
    assert remaining_band(sequences, r, prior=p, confidence=0.2) == [(3, 3), (2, 2), (1, 1)]
    assert remaining_band(sequences, r, prior=p, confidence=0.9)[-1] == (1, 2)
    with pytest.raises(PlanError, match="confidence"):
        remaining_band(sequences, r, confidence=1.0)


def test_repairs_add_the_time_to_each_of_them() -> None:
    # Six rotations, half of them off at a repair: the third new group comes after
    # 6 (1/6 + 1/5 + 1/4) = 3.7 requests on average, and an unrepaired service ends after 14.7.
    for repairs, expected in ((0, 14.7), (1, 18.4), (3, 25.8)):
        found = monte_carlo_repaired_life(rotations(6, 6), 0.5, repairs, 1, trials=4000, confidence=0.999)
        assert found.mean.low <= expected <= found.mean.high
        assert found.band[0] < expected < found.band[1]
    for wrong, message in (({"share_off": 0.0}, "share_off"), ({"repairs": -1}, "repairs")):
        with pytest.raises(PlanError, match=message):
            monte_carlo_repaired_life(rotations(3, 3), **{"share_off": 0.5, "repairs": 1, "seed": 0, **wrong})  # type: ignore[arg-type]


def test_when_a_repair_is_due() -> None:
    assert [due_for_repair(served, 6, 0.5) for served in range(7)] == [True] * 4 + [False] * 3
    assert not any(due_for_repair(served, 6, 0.0) for served in range(7))


def test_groups_of_two_sizes_have_an_exact_service_life_beyond_twenty() -> None:
    sizes = [3.0] * 15 + [2.0] * 10  # 65 slices in 25 groups
    life = service_life(rotations(25, 25), prior=sizes)
    drawn = monte_carlo_service_life(rotations(25, 25), prior=sizes, seed=1, trials=20_000)
    assert drawn.low < life.mean < drawn.high
    assert life.cdf(24) == 0.0
    low, high = life.band(0.9)
    assert life.cdf(int(low)) >= 0.05 > life.cdf(int(low) - 1)
    assert life.cdf(int(high)) >= 0.95 > life.cdf(int(high) - 1)


def test_the_chain_of_classes_agrees_with_the_subsets() -> None:
    p = [0.1, 0.1, 0.25, 0.05, 0.05]
    orders = [(g, (g + 1) % 5) for g in range(5)]
    life = service_life(orders, prior=[*p, 0.45], num_groups=6)  # by inclusion-exclusion
    classes = classes_of(p)
    assert [count for count, _ in classes] == [2, 2, 1]
    assert moments(classes) == pytest.approx((life.mean, life.std))
    assert [collected(classes, n) for n in range(40)] == pytest.approx([life.cdf(n) for n in range(40)])


def test_a_prior_of_huge_or_tiny_weights_is_its_proportions() -> None:
    for scale in (1e308, 1e-308):
        found = service_life([(0, 1), (1, 0)], prior=[scale, scale / 4])
        assert found.mean == pytest.approx(service_life([(0, 1), (1, 0)], prior=[4, 1]).mean)
