"""Membership inference: the AUC and its interval, and differences to a retrained model."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from fedforget.errors import DataError
from fedforget.evaluation.membership import auc_difference, member_scores, membership_auc, pooled_auc


def test_scores_are_minus_the_loss() -> None:
    probabilities = np.array([[0.25, 0.75], [1.0, 0.0]])
    scores = member_scores(probabilities, np.array([1, 1]))
    assert scores[0] == pytest.approx(math.log(0.75))
    assert np.isfinite(scores[1])
    assert scores[1] < -700


def test_the_auc_counts_pairs() -> None:
    # Of the six pairs 3 > 1, 3 > 2, 2 > 1 and 3 > 2.5 are won, 2 = 2 is half, 2 < 2.5 is lost.
    found = membership_auc([3.0, 2.0], [1.0, 2.0, 2.5])
    assert found.value == pytest.approx(4.5 / 6)
    assert (found.members, found.others) == (2, 3)
    assert found.low <= found.value <= found.high <= 1.0
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=40), rng.normal(size=70)
    assert membership_auc(x, y).value == pytest.approx(mannwhitneyu(x, y).statistic / (40 * 70))


def test_the_standard_error_by_hand() -> None:
    # Members' placements: 3 beats all of (1, 2): 1; 2 beats 1 and ties 2: 3/4. Variance 1/32.
    # Others': 1 is beaten by both: 1; 2 by one and a tie: 3/4. Variance 1/32. Sum over two each: 1/32.
    found = membership_auc([3.0, 2.0], [1.0, 2.0])
    assert found.standard_error == pytest.approx(math.sqrt(1 / 32))


def test_the_interval_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    true = 0.7602  # of N(1, 1) against N(0, 1): Phi(1 / sqrt 2)
    hits = 0
    for _ in range(300):
        one = membership_auc(rng.normal(1.0, 1.0, 30), rng.normal(0.0, 1.0, 60))
        hits += one.low <= true <= one.high
    assert 0.90 <= hits / 300 <= 0.985


def test_a_model_compared_with_itself_differs_by_nothing() -> None:
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=20), rng.normal(size=30)
    same = auc_difference((x, x), (y, y))
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)


def test_pairing_narrows_the_interval_and_keeps_the_value() -> None:
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=40), rng.normal(size=60)
    nearly = (x + 0.1 * rng.normal(size=40), y + 0.1 * rng.normal(size=60))
    paired = auc_difference((x, nearly[0]), (y, nearly[1]))
    first, second = membership_auc(x, y), membership_auc(*nearly)
    assert paired.value == pytest.approx(first.value - second.value)
    assert paired.standard_error < 0.5 * math.hypot(first.standard_error, second.standard_error)


def test_a_member_is_found() -> None:
    rng = np.random.default_rng(4)
    trained = (rng.normal(2.0, 1.0, 40), rng.normal(0.0, 1.0, 60))
    retrained = (rng.normal(0.0, 1.0, 40), rng.normal(0.0, 1.0, 60))
    found = auc_difference((trained[0], retrained[0]), (trained[1], retrained[1]))
    assert found.low > 0
    assert membership_auc(*retrained).low < 0.5 < membership_auc(*retrained).high


def test_pooling_over_seeds() -> None:
    rng = np.random.default_rng(5)
    parts = [membership_auc(rng.normal(size=20), rng.normal(size=30)) for _ in range(4)]
    pooled = pooled_auc(parts)
    assert pooled.value == pytest.approx(np.mean([one.value for one in parts]))
    expected = math.sqrt(sum(one.standard_error**2 for one in parts)) / 4
    assert pooled.standard_error == pytest.approx(expected)
    assert (pooled.members, pooled.others) == (80, 120)


def test_too_few_records_are_said_to_be() -> None:
    one = membership_auc([1.0], [0.0, 2.0])
    assert (one.value, one.low, one.high) == (0.5, 0.0, 1.0)
    with pytest.raises(DataError, match="no deleted record"):
        membership_auc([], [1.0])
    with pytest.raises(DataError, match="not finite"):
        membership_auc([math.nan], [1.0])
    with pytest.raises(DataError, match="different numbers of held-out"):
        auc_difference(([1.0], [1.0]), ([1.0], [1.0, 2.0]))
    with pytest.raises(DataError, match="no membership results"):
        pooled_auc([])
