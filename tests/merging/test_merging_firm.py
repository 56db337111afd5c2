"""What FIRM promises beyond its formula: bounds, supports, degenerate Fishers, reports, the projection."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedforget.errors import ConfigError
from fedforget.merging import calibrate_epsilon, merge
from fedforget.merging.layout import BLOCK


def one_role(federation, role, seed):
    """The forget clients alone, or the retain clients alone presented as one forget domain each."""
    clients = [summary for summary in federation(seed, torch.float64) if summary.role == role]
    for i, summary in enumerate(clients):
        if role == "retain":
            summary.role, summary.domain = "forget", str(i)
    return clients


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10**6),
    alpha=st.sampled_from([0.1, 0.5, 1.0]),
    role=st.sampled_from(["forget", "retain"]),
)
def test_each_role_is_bounded_by_its_largest_contribution(federation, seed, alpha, role):
    clients = one_role(federation, role, seed)
    merged = merge(clients, "firm", alpha=alpha).deltas
    for name, term in merged.items():
        largest = torch.stack([summary.deltas[name].abs() for summary in clients]).amax(dim=0)
        assert bool((term.abs() <= largest).all())


def test_roles_add_up(federation):
    clients = federation(3, torch.float64)
    both = merge(clients, "firm").deltas
    forget = merge(one_role(federation, "forget", 3), "firm").deltas
    retain = merge(one_role(federation, "retain", 3), "firm").deltas
    for name, update in both.items():
        torch.testing.assert_close(update, forget[name] + retain[name], rtol=1e-14, atol=0.0)


def test_nothing_survives_outside_the_supports(make):
    # alpha 0.25 of 8 keeps 2 entries per Fisher: 0 and 1 of the forget client's, 1 and 2 of the other's.
    clients = [
        make("f", [1.0] * 8, [9, 8, 1, 1, 1, 1, 1, 1]),
        make("r", [1.0] * 8, [1, 8, 9, 1, 1, 1, 1, 1], role="retain"),
    ]
    result = merge(clients, "firm", alpha=0.25)
    assert result.deltas["w"].nonzero().flatten().tolist() == [0, 1, 2]
    assert result.report["tensors"]["w"]["support"] == 4


def test_order_is_pool_then_normalise_then_sparsify(make):
    # Pooled Fisher (5, 3, 3.5): the largest is entry 0. Normalised first, the two would give
    # (1 + 0, 0.1 + 1, 0 + 1) / 2: entry 1; sparsified first, entries 0 and 2 would survive.
    clients = [make("a", [1, 1, 1], [10, 1, 0]), make("b", [1, 1, 1], [0, 5, 7])]
    update = merge(clients, "firm", alpha=1 / 3).deltas["w"]
    torch.testing.assert_close(
        update, torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64), rtol=1e-7, atol=0.0
    )


def test_retain_clients_are_not_pooled(make):
    # Each retain client keeps its own largest entry; pooled, only entry 0 would survive.
    clients = [
        make("f", [0, 0, 0], [0, 0, 1]),
        make("r1", [1, 1, 1], [9, 0, 0], role="retain"),
        make("r2", [1, 1, 1], [0, 1, 0], role="retain"),
    ]
    update = merge(clients, "firm", alpha=1 / 3).deltas["w"]
    torch.testing.assert_close(
        update, torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64), rtol=1e-7, atol=0.0
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_fisher_of_zeros_contributes_nothing(make, dtype):
    clients = [
        make("f", [1, 2, 3], [0, 0, 0], dtype=dtype),
        make("g", [4, 5, 6], [0, 0, 1], dtype=dtype, domain="x"),
    ]
    for method in ("firm", "support_matched"):
        update = merge(clients, method, alpha=1.0).deltas["w"]
        assert update[:2].tolist() == [0.0, 0.0]
        assert float(update[2]) == pytest.approx(6.0, rel=1e-7)  # eps0 takes 1e-8


def test_fewer_positive_entries_than_alpha_keeps(make):
    # The 2nd largest of (5, 0, 0, 0) is 0: keeping zeros must not put weight, or a mask, on them.
    clients = [make("f", [1, 2, 3, 4], [5, 0, 0, 0])]
    for method in ("firm", "support_matched"):
        update = merge(clients, method, alpha=0.5).deltas["w"]
        assert update.nonzero().flatten().tolist() == [0]


def test_subnormal_fisher_stays_finite(make):
    tiny = 1e-42  # subnormal in fp32; against eps0 its normalised weight is 1e-34
    clients = [make("f", [1, 2], [tiny, 0], dtype=torch.float32)]
    update = merge(clients, "firm", alpha=1.0).deltas["w"]
    # F~ = tiny / 1e-8, and F~ / (F~ + 1e-8) = tiny / 1e-16.
    assert float(update[0]) == pytest.approx(float(clients[0].fisher["w"][0]) / 1e-16, rel=1e-6)
    assert float(update[1]) == 0.0


def test_share_attenuated_by_the_stabiliser(make):
    # F~ = (1, 1e-7, 1e-5, 1e-6) up to 1e-8; with eps0 = 1e-8, eps0 / (F~ + eps0) exceeds 1 % below
    # 99e-8 = 9.9e-7: one of the four.
    clients = [make("f", [1, 1, 1, 1], [1, 1e-7, 1e-5, 1e-6])]
    report = merge(clients, "firm", alpha=1.0).report["tensors"]["w"]
    assert report["support"] == 4
    assert report["attenuated_share"] == 0.25


def test_base_without_retain_clients(make):
    clients = [make("f", [1, 2], [1, 1])]
    result = merge(clients, "firm", alpha=1.0, gamma=3.0)
    torch.testing.assert_close(
        result.deltas["w"], torch.tensor([3.0, 6.0], dtype=torch.float64), rtol=1e-7, atol=0.0
    )
    assert result.report["tensors"]["w"]["damage"] == []


def test_finite_budget_without_retain_clients_is_refused(make):
    with pytest.raises(ConfigError, match=r"add a retain client, or set epsilon=inf"):
        merge([make("f", [1, 2], [1, 1])], "firm", epsilon=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("solver", ["exact", "increase-only"])
def test_delivered_update_keeps_its_budgets(federation, dtype, solver):
    clients = federation(5, dtype)
    epsilon = calibrate_epsilon(clients, 0.3, 1.0)
    base = merge(clients, "firm")
    result = merge(clients, "firm", epsilon=epsilon, solver=solver)
    # The increase-only routine stops within this tolerance of the budget, and knows of no rounding.
    slack = 1.0 if solver == "exact" else 1.02
    for name, report in result.report["tensors"].items():
        assert result.deltas[name].dtype == dtype
        assert all(value <= epsilon * slack for value in report["damage"])
        assert report["base_damage"] == base.report["tensors"][name]["damage"]
        assert len(report["multipliers"]) == 2
        assert report["norm"] <= report["base_norm"]
        if solver == "exact":
            assert report["certificate"]["certified"]
    shrunk = [name for name in base.deltas if not torch.equal(base.deltas[name], result.deltas[name])]
    assert shrunk


def test_slack_budget_changes_nothing(federation):
    clients = federation(5)
    base, slack = merge(clients, "firm"), merge(clients, "firm", epsilon=1e9)
    for name, update in base.deltas.items():
        assert torch.equal(update, slack.deltas[name])


def test_reports_are_plain_values(federation):
    report = merge(federation(1), "firm", epsilon=1e-9).report
    assert json.loads(json.dumps(report, allow_nan=False)) == report


def test_tensor_of_many_blocks_is_merged_as_one(make):
    # Larger than one block, not a multiple of it; the largest Fisher entries are at both ends.
    d = BLOCK + 12_345
    delta, fisher = torch.arange(d, dtype=torch.float64) / d, torch.ones(d, dtype=torch.float64)
    fisher[0], fisher[-1] = 3.0, 2.0
    client = make("f", [0.0], [0.0])
    client.deltas, client.fisher = {"w": delta}, {"w": fisher}
    update = merge([client], "firm", alpha=2 / d).deltas["w"]
    assert update.nonzero().flatten().tolist() == [d - 1]  # entry 0 survives too, and its delta is 0
    assert float(update[-1]) == pytest.approx(float(delta[-1]), rel=1e-7)
    client.deltas = {"w": (delta + 1.0).reshape(-1, 1)}
    client.fisher = {"w": fisher.reshape(-1, 1)}
    assert merge([client], "firm", alpha=2 / d).deltas["w"].nonzero()[:, 0].tolist() == [0, d - 1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"fraction": 0.0, "gamma": 1.0}, "fraction must be a positive finite number"),
        ({"fraction": 0.3, "gamma": math.nan}, "gamma must be a positive finite number"),
        ({"fraction": 0.3, "gamma": 1.0, "alpha": 2.0}, "alpha must be in"),
    ],
)
def test_calibration_refuses(federation, given, message):
    with pytest.raises(ConfigError, match=message):
        calibrate_epsilon(federation(), **given)


def test_calibration_needs_a_retain_client(make):
    with pytest.raises(ConfigError, match="no retain client to calibrate epsilon on"):
        calibrate_epsilon([make("f", [1], [1])], 0.3, 1.0)
