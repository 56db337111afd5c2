"""The library's FIRM against an independent transcription of the paper, on random federations.

Fishers lie on a coarse dyadic grid and domains have 1, 2 or 4 members, so that pooled means are exact in
fp32 and a tie at the threshold is the same tie in both.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import reference_firm
import torch

from fedforget.merging import merge
from fedforget.summaries import ClientSummary, LoraFactors

ALPHAS = {0.1: (1, 10), 0.29: (29, 100), 0.5: (1, 2), 1.0: (1, 1)}
SHAPES = ((1,), (2,), (3, 4), (10, 10), (100,), (7, 13))


def federation(rng, shape, lora, num_retain):
    """Return the same clients as summaries and as plain dictionaries of fp32 arrays."""
    summaries, plain = [], []

    def add(role, domain):
        fisher = rng.integers(0, 9, shape).astype(np.float32) / 8 * np.float32(2.0 ** rng.integers(-12, 3))
        fisher *= rng.random(shape) < rng.choice([0.3, 1.0])
        if rng.random() < 0.05:
            fisher[:] = 0
        if lora:
            # Small integers: the product B A is exact in fp32 whatever the order of its sum.
            factors = LoraFactors(
                torch.tensor(rng.integers(-4, 5, (2, shape[1])), dtype=torch.float32),
                torch.tensor(rng.integers(-4, 5, (shape[0], 2)), dtype=torch.float32),
                0.125,
            )
            delta = (0.125 * factors.B.double() @ factors.A.double()).numpy()
            sent = factors
        else:
            delta = rng.standard_normal(shape).astype(np.float32)
            sent = torch.tensor(delta)
        name = f"client-{len(plain):02d}"
        summaries.append(ClientSummary(name, role, domain, 1, {"w": sent}, {"w": torch.tensor(fisher)}))
        plain.append({"role": role, "domain": domain, "delta": delta, "fisher": fisher})

    for index in range(rng.integers(1, 4)):
        for _ in range(rng.choice([1, 2, 4])):
            add("forget", f"domain-{index}")
    for index in range(num_retain):
        add("retain", f"kept-{index}")
    return summaries, plain


def assert_close(ours, reference, terms=None):
    """Compare within 1e-6 of the tensor's largest entry, or of the ``terms`` that cancelled in an entry."""
    ours = ours.double().numpy()
    assert ours.shape == reference.shape
    scale = np.abs(reference).max() + np.abs(0.0 if terms is None else terms)
    assert np.all(np.abs(ours - reference) <= 1e-6 * scale)
    # A coordinate that no Fisher keeps is exactly zero in both. Where two terms cancel it need not be: in
    # fp64 the stabiliser leaves 1e-8 of them, which is below the resolution of the library's fp32.
    alone = reference != 0 if terms is None else np.abs(reference) > 1e-7 * np.abs(terms)
    assert np.array_equal((ours == 0)[alone], (reference == 0)[alone])
    assert not ours[np.broadcast_to(reference == 0 if terms is None else terms == 0, ours.shape)].any()


def cancelled(plain, alpha):
    """Sizes of the forget and the retain term of equation (4), before their sum."""
    halves = [[c for c in plain if c["role"] == role] for role in ("forget", "retain")]
    return sum(np.abs(reference_firm.base_merge(half, 1.0, alpha)[0]) for half in halves)


@pytest.mark.parametrize("alpha", sorted(ALPHAS))
@pytest.mark.parametrize("lora", [False, True])
def test_the_base_merge_is_equations_2_to_5(alpha, lora):
    rng = np.random.default_rng([1, round(100 * alpha), lora])
    for _ in range(40):
        shape = SHAPES[rng.integers(len(SHAPES))]
        if lora and len(shape) < 2:
            shape = (5, 8)
        summaries, plain = federation(rng, shape, lora, int(rng.integers(0, 4)))
        gamma = float(rng.choice([0.25, 1.0, 1.3]))
        result = merge(summaries, "firm", gamma=gamma, alpha=alpha)
        terms = gamma * cancelled(plain, ALPHAS[alpha])
        assert_close(result.deltas["w"], reference_firm.merge(plain, gamma, ALPHAS[alpha]), terms)


@pytest.mark.parametrize("alpha", sorted(ALPHAS))
@pytest.mark.parametrize("num_retain", [1, 2, 3])
def test_the_projected_merge_is_equation_7(alpha, num_retain):
    rng = np.random.default_rng([2, round(100 * alpha), num_retain])
    projected = 0
    for _ in range(12):
        shape = SHAPES[rng.integers(len(SHAPES))]
        summaries, plain = federation(rng, shape, False, num_retain)
        base, fishers = reference_firm.base_merge(plain, 1.0, ALPHAS[alpha])
        largest = max(reference_firm.proxy(base, fisher) for fisher in fishers)
        epsilon = float(rng.choice([0.01, 0.2, 0.7])) * largest or 1.0
        projected += largest > epsilon
        result = merge(summaries, "firm", gamma=1.0, alpha=alpha, epsilon=epsilon)
        reference = reference_firm.projection(base, fishers, epsilon)
        shrinkage = np.divide(reference, base, out=np.zeros_like(base), where=base != 0)
        assert_close(result.deltas["w"], reference, shrinkage * cancelled(plain, ALPHAS[alpha]))
        for fisher in fishers:
            # The library's Fishers are fp32, these fp64: the budget holds up to that difference.
            assert reference_firm.proxy(result.deltas["w"].double().numpy(), fisher) <= epsilon * (1 + 1e-6)
    assert projected >= 6


def test_a_zero_budget_leaves_only_what_no_retain_client_minds():
    rng = np.random.default_rng(3)
    for _ in range(20):
        summaries, plain = federation(rng, (6, 7), False, 2)
        result = merge(summaries, "firm", alpha=0.5, epsilon=0.0)
        assert_close(result.deltas["w"], reference_firm.merge(plain, 1.0, (1, 2), 0.0))


def test_ties_at_the_threshold_are_all_kept_by_both():
    # Eight equal entries and alpha = 0.1: the threshold is that value, so all eight are kept, not one.
    fisher = np.full(10, 0.25, dtype=np.float32)
    fisher[:2] = 0.125
    plain = [{"role": "forget", "domain": "a", "delta": np.ones(10, dtype=np.float32), "fisher": fisher}]
    summary = ClientSummary("a", "forget", "a", 1, {"w": torch.ones(10)}, {"w": torch.tensor(fisher)})
    reference = reference_firm.merge(plain)
    assert int((reference > 0).sum()) == 8
    assert_close(merge([summary], "firm").deltas["w"], reference)


@pytest.mark.parametrize(("alpha", "d", "count"), [(0.29, 100, 29), (0.1, 9, 1), (0.1, 30, 3), (1.0, 5, 5)])
def test_the_count_is_the_exact_floor(alpha, d, count):
    fisher = np.arange(1, d + 1, dtype=np.float32)
    plain = [{"role": "forget", "domain": "a", "delta": np.ones(d, dtype=np.float32), "fisher": fisher}]
    summary = ClientSummary("a", "forget", "a", 1, {"w": torch.ones(d)}, {"w": torch.tensor(fisher)})
    reference = reference_firm.merge(plain, alpha=ALPHAS[alpha])
    assert int((reference > 0).sum()) == count
    assert_close(merge([summary], "firm", alpha=alpha).deltas["w"], reference)


def test_the_reference_projects_by_hand():
    # base 2, F 1, epsilon 1/2 gives 1; two clients as in the projection's own hand-made case give (2, 3).
    assert reference_firm.projection(np.array([2.0]), [np.array([1.0])], 0.5) == pytest.approx([1.0])
    fishers = [np.array([3.25, 0.0]), np.array([1.0, 1.0])]
    assert reference_firm.projection(np.array([6.0, 6.0]), fishers, 6.5) == pytest.approx([2.0, 3.0])
    base = np.array([6.0, 6.0])
    assert reference_firm.projection(base, fishers, math.inf) is base
