"""The controls: what they share with FIRM's base merge and what they change."""

from __future__ import annotations

import math

import pytest
import torch

from fedforget.merging import merge


def norm(deltas):
    return math.sqrt(sum(float(delta.double().square().sum()) for delta in deltas.values()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_support_matched_has_firms_support_and_norm(federation, dtype):
    clients = federation(1, dtype)
    firm, matched = merge(clients, "firm", gamma=1.7), merge(clients, "support_matched", gamma=1.7)
    # fp32 inputs are merged in fp32, so gamma rounds every entry.
    rel = 1e-6 if dtype == torch.float32 else 1e-13
    assert norm(matched.deltas) == pytest.approx(norm(firm.deltas), rel=rel)
    for name, update in firm.deltas.items():
        assert torch.equal(update != 0, matched.deltas[name] != 0)
    # One factor for all tensors: their shares of the norm are free to differ from FIRM's.
    unscaled = merge(clients, "support_matched")
    assert matched.report["rescaling"] == pytest.approx(unscaled.report["rescaling"], rel=rel)
    ratios = [
        firm.report["tensors"][name]["norm"] / matched.report["tensors"][name]["norm"] for name in firm.deltas
    ]
    assert max(ratios) / min(ratios) > 1.001


def test_equal_fishers_make_firm_its_own_control(federation):
    # Where every kept weight is the same, FIRM's weighted means are the masks' plain means.
    clients = federation(2, torch.float64)
    for summary in clients:
        summary.fisher = {name: (fisher > 1e-4).double() for name, fisher in summary.fisher.items()}
        summary.domain = summary.client_id
    firm, matched = merge(clients, "firm", alpha=1.0), merge(clients, "support_matched", alpha=1.0)
    for name, update in firm.deltas.items():
        torch.testing.assert_close(update, matched.deltas[name], rtol=1e-7, atol=0.0)


def test_uniform_weights_are_uniform_when_domains_have_equal_sizes(federation):
    clients = federation(3, torch.float64)
    even, uniform = merge(clients, "firm_uniform_weights").deltas, merge(clients, "uniform").deltas
    for name, update in uniform.items():
        torch.testing.assert_close(even[name], update, rtol=2e-8, atol=1e-12)
    # With one client of a domain gone, domains still weigh the same and clients do not.
    uneven = merge(clients[1:], "firm_uniform_weights").deltas["a.weight"]
    assert not torch.allclose(uneven, merge(clients[1:], "uniform").deltas["a.weight"], rtol=1e-3)


def test_unnormalised_grows_with_the_raw_fisher(federation):
    clients = federation(4, torch.float64)
    one = merge(clients, "firm_unnormalised").deltas
    firm = merge(clients, "firm", eps0=1e-30).deltas
    for summary in clients:
        summary.fisher = {name: 8.0 * fisher for name, fisher in summary.fisher.items()}
    eight = merge(clients, "firm_unnormalised").deltas
    for name, update in merge(clients, "firm", eps0=1e-30).deltas.items():
        torch.testing.assert_close(eight[name], 8.0 * one[name], rtol=1e-14, atol=0.0)
        # FIRM's own merge does not see the scale of a Fisher.
        torch.testing.assert_close(update, firm[name], rtol=1e-14, atol=0.0)


def test_fisher_average_of_equal_fishers_is_the_mean(federation):
    clients = federation(5, torch.float64)
    for summary in clients:
        summary.fisher = clients[0].fisher
    for name, update in merge(clients, "fisher_average").deltas.items():
        torch.testing.assert_close(update, merge(clients, "avg").deltas[name], rtol=1e-12, atol=1e-17)


def test_fisher_average_where_no_client_has_any(make):
    # Entry 0: only zeros, the plain mean 2; entry 1: b alone.
    clients = [make("a", [1, 1], [0, 0]), make("b", [3, 5], [0, 1e-300])]
    assert merge(clients, "fisher_average").deltas["w"].tolist() == [2.0, 5.0]
