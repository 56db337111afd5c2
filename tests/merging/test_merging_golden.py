"""Every method on four clients with one tensor of four entries, worked out by hand.

    client        task vector       raw Fisher
    a (bio)       1  -2   3   0     4  0  2  1
    b (bio)       3   2  -1   4     0  4  2  1
    c (cyber)     8   4  -2   6     9  0  3  1
    r (retain)    1   1   1   1     0  1  0  3

Bio pooled:       2   0   1   2     2  2  2  1

FIRM with alpha = 1/2 keeps the 2 largest Fisher entries of 4, and ties; eps0 = 1 shows where it enters.

    bio    max 2: (2, 2, 2, -) / (2 + 1)  = 2/3  2/3  2/3   0     three entries tie
    cyber  max 9: (9, -, 3, -) / (9 + 1)  = 0.9   0   0.3   0
    retain max 3: (-, 1, -, 3) / (3 + 1)  =  0   0.25  0   0.75

    forget term  (2/3 * 2 + 0.9 * 8) / (2/3 + 0.9 + 1) = (128/15) / (77/30) = 256/77
                 (2/3 * 0) / (2/3 + 1)                 = 0
                 (2/3 * 1 - 0.3 * 2) / (2/3 + 0.3 + 1) = (2/30) / (59/30)   = 2/59
                 nothing survives                      = 0
    retain term  0,  0.25 / 1.25 = 1/5,  0,  0.75 / 1.75 = 3/7
"""

from __future__ import annotations

import math

import pytest
import torch

from fedforget.merging import calibrate_epsilon, merge
from fedforget.summaries import ClientSummary

FIRM_RAW = [256 / 77, 1 / 5, 2 / 59, 3 / 7]
# Weight 1 on each mask, eps0 = 1: (2 + 8) / 3, 0 / 2, (1 - 2) / 3, 0 and 0, 1/2, 0, 1/2.
MASKED = [10 / 3, 1 / 2, -1 / 3, 1 / 2]
MATCHED = [x * math.hypot(*FIRM_RAW) / math.hypot(*MASKED) for x in MASKED]

GOLDEN = [
    # (13, 5, 1, 11) is the sum of all four vectors, (12, 4, 0, 10) that of the three forget vectors.
    ("avg", {}, [13 / 4, 5 / 4, 1 / 4, 11 / 4]),
    ("sum", {}, [12, 4, 0, 10]),
    ("uniform", {}, [12 / 3 + 1, 4 / 3 + 1, 1, 10 / 3 + 1]),
    ("task_arithmetic", {}, [13, 5, 1, 11]),
    ("task_arithmetic", {"negate_forget": True}, [-11, -3, 1, -9]),
    ("firm", {"alpha": 0.5, "eps0": 1.0}, FIRM_RAW),
    # Raw Fishers, forget pooled: 2*2 + 9*8, 1*1, 2*1 - 3*2, 1*2 + 1*6 + 3*1.
    ("firm_unnormalised", {}, [76, 1, -4, 11]),
    # Half of each Fisher kept: the fourth entries of bio and cyber drop out.
    ("firm_unnormalised", {"keep": 0.5}, [76, 1, -4, 3]),
    # Domains (2, 0, 1, 2) and (8, 4, -2, 6) over 2 + eps0, the retain client over 1 + eps0.
    ("firm_uniform_weights", {"eps0": 1.0}, [10 / 3 + 0.5, 4 / 3 + 0.5, -1 / 3 + 0.5, 8 / 3 + 0.5]),
    ("support_matched", {"alpha": 0.5, "eps0": 1.0}, MATCHED),
    # (4*1 + 9*8) / 13, (4*2 + 1*1) / 5, (2*3 - 2*1 - 3*2) / 7, (0 + 4 + 6 + 3*1) / 6.
    ("fisher_average", {}, [76 / 13, 9 / 5, -2 / 7, 13 / 6]),
    # A floor of 2: F = (4,2,2,2), (2,4,2,2), (9,2,3,2), (2,2,2,3).
    ("fisher_average", {"floor": 2.0}, [84 / 17, 14 / 10, 0, 23 / 9]),
    # Two largest of each: (-,-2,3,-), (3,-,-,4), (8,-,-,6); all signs agree.
    ("ties", {"density": 0.5}, [11 / 2, -2, 3, 5]),
    # Nothing trimmed: sums 12, 4, 0, 10; the zero sum elects +, so the third entry is a's alone.
    ("ties", {"density": 1.0}, [12 / 3, 6 / 2, 3, 10 / 2]),
    # Clusters as declared: TIES(a, b) = (3,-2,3,4), TIES(c) = (8,-,-,6), r has four ties: (1,1,1,1).
    ("fulm", {"density": 0.5, "similarity": "domain"}, [12, -1, 4, 11]),
    ("fulm_mean", {"density": 0.5, "similarity": "domain"}, [12 / 3, -1 / 3, 4 / 3, 11 / 3]),
    # cos(b, c) = 58 / sqrt(30 * 120) = 0.967, cos(a, .) < 0: clusters a, {b, c}, r;
    # (-,-2,3,-) + (11/2,-,-,5) + (1,1,1,1).
    ("fulm", {"density": 0.5}, [13 / 2, -1, 4, 6]),
]


@pytest.mark.parametrize(("method", "parameters", "expected"), GOLDEN)
def test_value_worked_out_by_hand(four, method, parameters, expected):
    result = merge(four, method, **parameters)
    torch.testing.assert_close(
        result.deltas["w"], torch.tensor(expected, dtype=torch.float64), rtol=1e-14, atol=1e-15
    )


def test_base_damage_and_calibration(four):
    # Retain Fisher (0, 1/4, 0, 3/4): b = 1/2 (1/4 * (1/5)^2 + 3/4 * (3/7)^2), times gamma^2.
    expected = 0.5 * (0.25 / 25 + 0.75 * 9 / 49)
    report = merge(four, "firm", alpha=0.5, eps0=1.0).report["tensors"]["w"]
    assert report["base_damage"] == pytest.approx([expected], rel=1e-14)
    epsilon = calibrate_epsilon(four, 0.3, 2.0, alpha=0.5, eps0=1.0)
    assert epsilon == pytest.approx(0.3 * 4.0 * expected, rel=1e-14)


def test_calibration_averages_over_retain_clients_and_tensors(four):
    # A second retain client with the same Fisher and a tensor with no damage at all: the mean over
    # 2 clients x 2 tensors is half of the damage in `w`.
    for summary in four:
        summary.deltas = {**summary.deltas, "z": torch.zeros(2, dtype=torch.float64)}
        summary.fisher = {**summary.fisher, "z": torch.zeros(2, dtype=torch.float64)}
    twin = ClientSummary("r2", "retain", "general", 10, four[3].deltas, four[3].fisher)
    # Two equal weights double numerator and denominator: 0.5 / 1.5 = 1/3 and 1.5 / 2.5 = 3/5.
    damage = 0.5 * (0.25 / 9 + 0.75 * 9 / 25)
    epsilon = calibrate_epsilon([*four, twin], 1.0, 1.0, alpha=0.5, eps0=1.0)
    assert epsilon == pytest.approx(damage / 2, rel=1e-14)


def test_projection_of_one_constraint(make):
    # One forget and one retain client, alpha = 1, eps0 tiny: F~ = 1 everywhere, base = delta_f + delta_r =
    # (3, 4). b = 25/2; a budget of 1/2 shrinks to the unit circle: x = base / (1 + lambda), lambda = 4.
    clients = [
        make("f", [2, 3], [5, 5]),
        make("r", [1, 1], [7, 7], role="retain"),
    ]
    result = merge(clients, "firm", alpha=1.0, eps0=1e-15, epsilon=0.5)
    torch.testing.assert_close(
        result.deltas["w"], torch.tensor([0.6, 0.8], dtype=torch.float64), rtol=1e-9, atol=0.0
    )
    report = result.report["tensors"]["w"]
    assert report["multipliers"] == pytest.approx([4.0], rel=1e-8)
    assert report["damage"] == pytest.approx([0.5], rel=1e-9)
    assert report["damage"][0] <= 0.5
    assert report["base_damage"] == pytest.approx([12.5])
    assert report["base_norm"] == pytest.approx(5.0)
    assert report["norm"] == pytest.approx(1.0)
    assert report["certificate"]["certified"] is True
