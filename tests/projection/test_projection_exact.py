"""The exact solver: golden cases, KKT conditions, an independent solver, limits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedforget.projection import Certificate, project
from fedforget.projection.problem import Problem

F64 = torch.float64


def kkt(base, fishers, result, epsilon):
    """Residuals (16) to (19), recomputed here: of the base's norm, of epsilon, of the largest multiplier."""
    x, lam = result.update.double(), result.multipliers
    shrink = 1 + sum(value * fisher.double() for value, fisher in zip(lam, fishers, strict=True))
    b = torch.stack([0.5 * (f.double() * x * x).sum() for f in fishers])
    slack = lam / lam.max() * (b / epsilon - 1).abs() if lam.max() > 0 else torch.zeros(1)
    return float((shrink * x - base).norm() / base.norm()), float(b.max() / epsilon - 1), float(slack.max())


def test_one_client_one_coordinate_by_hand():
    # base 2, F 1, epsilon 1/2: 1/2 x^2 = 1/2 gives x = 1, and 2 / (1 + lambda) = 1 gives lambda = 1.
    result = project(torch.tensor([2.0], dtype=F64), [torch.tensor([1.0], dtype=F64)], 0.5)
    assert float(result.update) == pytest.approx(1.0, rel=1e-10)
    assert float(result.multipliers) == pytest.approx(1.0, rel=1e-10)
    assert float(result.damage) == pytest.approx(0.5, rel=1e-10)
    assert float(result.damage) <= 0.5
    assert result.certificate.certified


def test_one_client_two_coordinates_by_hand():
    # base (4, 3), F (1, 1/2), lambda 2: x = (4/3, 3/2), b = 1/2 (16/9 + 9/8) = 209/144.
    base, fisher = torch.tensor([4.0, 3.0], dtype=F64), torch.tensor([1.0, 0.5], dtype=F64)
    result = project(base, [fisher], 209 / 144)
    assert result.update.tolist() == pytest.approx([4 / 3, 3 / 2], rel=1e-10)
    assert float(result.multipliers) == pytest.approx(2.0, rel=1e-10)


def test_two_clients_by_hand():
    # base (6, 6), F1 (1, 0), F2 (1, 1), lambda (1, 1): x = (6/3, 6/2) = (2, 3), b1 = 2, b2 = 13/2. The
    # budget is common, so F1 is scaled by 13/4 and its multiplier by 4/13: x and b2 stay, b1 becomes 13/2.
    base = torch.tensor([6.0, 6.0], dtype=F64)
    fishers = [torch.tensor([3.25, 0.0], dtype=F64), torch.tensor([1.0, 1.0], dtype=F64)]
    result = project(base, fishers, 6.5)
    assert result.update.tolist() == pytest.approx([2.0, 3.0], rel=1e-10)
    assert result.multipliers.tolist() == pytest.approx([4 / 13, 1.0], rel=1e-9)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    m=st.integers(1, 6),
    d=st.integers(1, 30),
    keep=st.sampled_from([0.1, 0.5, 1.0]),
    share=st.sampled_from([1e-9, 1e-3, 0.1, 0.5, 0.99, 1.5]),
    duplicate=st.booleans(),
)
def test_kkt_conditions_hold(seed, m, d, keep, share, duplicate):
    rng = np.random.default_rng(seed)
    base = torch.tensor(rng.standard_normal(d))
    fishers = [torch.tensor(rng.random(d) ** 4 * (rng.random(d) < keep)) for _ in range(m)]
    if duplicate:
        fishers[-1] = fishers[0].clone()
    damages = [0.5 * float((f * base * base).sum()) for f in fishers]
    epsilon = share * max(damages) or 1.0
    result = project(base, fishers, epsilon)
    stationarity, primal, complementarity = kkt(base, fishers, result, epsilon)
    assert stationarity <= 1e-9
    assert primal <= 0.0
    assert complementarity <= 1e-9
    assert bool((result.multipliers >= 0).all())
    assert result.certificate.certified


@pytest.mark.parametrize("seed", range(6))
def test_agrees_with_a_general_solver_on_the_primal(seed, draw):
    m, d = 1 + seed % 3, 5
    base, fishers = draw(seed, m, d, keep=0.8)
    damages = [0.5 * float((f * base * base).sum()) for f in fishers]
    epsilon = 0.3 * max(damages)
    x0, fs = base.numpy(), [f.numpy() for f in fishers]
    reference = minimize(
        lambda x: 0.5 * np.sum((x - x0) ** 2),
        0.1 * x0,
        jac=lambda x: x - x0,
        method="SLSQP",
        constraints=[
            {
                "type": "ineq",
                "fun": lambda x, f=f: 1 - 0.5 * np.sum(f * x * x) / epsilon,
                "jac": lambda x, f=f: -f * x / epsilon,
            }
            for f in fs
        ],
        options={"ftol": 1e-15, "maxiter": 500},
    )
    assert reference.status in (0, 8)  # converged, or no descent left in fp64
    np.testing.assert_allclose(project(base, fishers, epsilon).update.numpy(), reference.x, atol=2e-6)


def test_the_duality_gap_bounds_the_distance_to_the_optimum(draw):
    base, fishers = draw(3, 3, 200)
    epsilon = 0.2 * 0.5 * float((fishers[0] * base * base).sum())
    optimum = project(base, fishers, epsilon).update
    for dtype in (torch.float16, torch.bfloat16):
        result = project(base.to(dtype), fishers, epsilon)
        optimum = project(base.to(dtype).double(), fishers, epsilon).update
        distance = 0.5 * float((result.update.double() - optimum).square().sum())
        assert 0.0 < distance <= result.certificate.duality_gap


def test_a_multiplier_that_rises_first_can_fall_to_zero():
    # Alone, client 0 needs lambda > 0; client 1 asks for more on the same coordinates, so client 0 is slack.
    base = torch.tensor([1.0, 1.0], dtype=F64)
    fishers = [torch.tensor([0.5, 0.5], dtype=F64), torch.tensor([1.0, 1.0], dtype=F64)]
    result = project(base, fishers, 0.1)
    assert float(result.multipliers[0]) == 0.0
    assert float(result.multipliers[1]) > 0.0
    assert float(result.damage[0]) == pytest.approx(0.05, rel=1e-9)
    assert result.certificate.certified


def test_duplicated_clients_give_the_same_update(draw):
    base, fishers = draw(11, 2, 50)
    epsilon = 0.1 * 0.5 * float((fishers[0] * base * base).sum())
    once = project(base, fishers, epsilon).update
    thrice = project(base, [fishers[0], fishers[1], fishers[0], fishers[0]], epsilon).update
    torch.testing.assert_close(once, thrice, rtol=1e-9, atol=0)


def test_the_order_of_the_clients_does_not_matter(draw):
    base, fishers = draw(12, 4, 60)
    epsilon = 0.1 * 0.5 * float((fishers[0] * base * base).sum())
    forward, backward = project(base, fishers, epsilon), project(base, fishers[::-1], epsilon)
    torch.testing.assert_close(forward.update, backward.update, rtol=1e-9, atol=0)
    torch.testing.assert_close(forward.multipliers, backward.multipliers.flip(0), rtol=1e-8, atol=0)


def test_scaling_base_and_budget_scales_the_update(draw):
    base, fishers = draw(13, 3, 60)
    epsilon = 0.1 * 0.5 * float((fishers[0] * base * base).sum())
    plain = project(base, fishers, epsilon)
    scaled = project(1024 * base, fishers, 1024**2 * epsilon)
    assert torch.equal(scaled.update, 1024 * plain.update)
    assert torch.equal(scaled.multipliers, plain.multipliers)


def test_sixty_four_clients(draw):
    base, fishers = draw(14, 64, 2000, keep=0.1)
    epsilon = 0.05 * max(0.5 * float((f * base * base).sum()) for f in fishers)
    result = project(base, fishers, epsilon)
    stationarity, primal, complementarity = kkt(base, fishers, result, epsilon)
    assert stationarity <= 1e-9
    assert primal <= 0.0
    assert complementarity <= 1e-9


def test_more_coordinates_than_the_starting_sample(draw):
    base, fishers = draw(15, 2, 150_000, keep=0.9)
    epsilon = 0.05 * max(0.5 * float((f * base * base).sum()) for f in fishers)
    result = project(base, fishers, epsilon)
    assert max(kkt(base, fishers, result, epsilon)) <= 1e-9
    assert result.certificate.certified


def test_a_client_that_the_starting_sample_misses():
    base = torch.ones(200_001, dtype=F64)
    everywhere, one = torch.ones_like(base), torch.zeros_like(base)
    one[1] = 1.0
    epsilon = 1e-7
    result = project(base, [everywhere, one], epsilon)
    assert max(kkt(base, [everywhere, one], result, epsilon)) <= 1e-9
    assert bool((result.damage <= epsilon).all())


def test_coordinates_outside_the_union_of_supports_keep_their_bits():
    base = torch.tensor([1.1, -0.0, 0.0, -3.3, 1e-40, 2.0, -5.0], dtype=torch.float32)
    fisher = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.5])
    for solver in ("exact", "increase-only"):
        result = project(base, [fisher], 0.1, solver)
        assert torch.equal(result.update[:5].view(torch.int32), base[:5].view(torch.int32))
        assert bool((result.update[5:].abs() < base[5:].abs()).all())


def test_a_slack_clients_own_coordinates_keep_their_bits():
    base = torch.tensor([0.1, 4.0, -0.0], dtype=F64)
    fishers = [torch.tensor([1.0, 0.0, 1.0], dtype=F64), torch.tensor([0.0, 1.0, 0.0], dtype=F64)]
    result = project(base, fishers, 1.0)
    assert torch.equal(result.update[[0, 2]].view(torch.int64), base[[0, 2]].view(torch.int64))
    assert float(result.multipliers[0]) == 0.0


@pytest.mark.parametrize("epsilon", [math.inf, 1e9])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_budget_that_holds_returns_the_base(epsilon, dtype):
    base = torch.tensor([[1.5, -0.0], [3.0, -7.25]], dtype=dtype)
    result = project(base, [torch.ones(2, 2)], epsilon)
    assert torch.equal(result.update, base)
    assert result.update.dtype == dtype
    assert result.update.data_ptr() != base.data_ptr()
    assert result.multipliers.tolist() == [0.0]
    assert result.certificate == Certificate(0, 0, 0, 0, 0, 0, result.certificate.tolerance, True)


def test_no_retain_client_and_no_budget():
    base = torch.tensor([1.0, 2.0])
    result = project(base, [], math.inf)
    assert torch.equal(result.update, base)
    assert result.multipliers.shape == result.damage.shape == (0,)


def test_a_zero_budget_zeroes_the_supports():
    base = torch.tensor([1.0, -2.0, 3.0, -0.0, 5e-324], dtype=F64)
    fishers = [torch.tensor([1.0, 0.0, 1e-300, 1.0, 1.0], dtype=F64), torch.zeros(5, dtype=F64)]
    for solver in ("exact", "increase-only"):
        result = project(base, fishers, 0.0, solver)
        assert result.update.tolist() == [0.0, -2.0, 0.0, 0.0, 0.0]
        assert result.multipliers.tolist() == [math.inf, 0.0]
        assert result.damage.tolist() == [0.0, 0.0]
        assert result.certificate.certified


def test_a_zero_base_and_a_zero_fisher_are_left_alone():
    zero, one = torch.zeros(3), torch.ones(3)
    for base, fisher in ((zero, one), (one, zero), (zero, zero)):
        result = project(base, [fisher], 1e-12)
        assert torch.equal(result.update, base)
        assert result.multipliers.tolist() == [0.0]


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 1, 2)])
def test_shapes_are_kept(shape):
    base = torch.full(shape, 2.0, dtype=F64)
    result = project(base, [torch.ones(shape)], 1e-3)
    assert result.update.shape == shape
    assert bool((result.damage <= 1e-3).all())


def test_a_view_is_projected_and_not_changed():
    storage = torch.arange(1.0, 13.0, dtype=F64).reshape(3, 4)
    before = storage.clone()
    fisher = torch.ones(4, 3, dtype=F64)
    result = project(storage.t(), [fisher], 1.0)
    assert torch.equal(storage, before)
    assert torch.equal(fisher, torch.ones(4, 3, dtype=F64))
    torch.testing.assert_close(result.update, project(storage.t().contiguous(), [fisher], 1.0).update)


def test_a_parameter_that_requires_grad_is_projected_without_a_graph():
    result = project(torch.ones(4, requires_grad=True), [torch.ones(4)], 0.1)
    assert not result.update.requires_grad


@pytest.mark.parametrize(
    ("base", "fisher", "epsilon"),
    [
        ([3e38, 1.0], [1.0, 0.5], 1e-5),
        ([1e-20, 3e-21], [1.0, 0.5], 1e-45),
        ([1.0, 2.0], [1e-45, 1e-44], 1e-50),
        ([1.0, 2.0], [3e38, 1.0], 1e30),
        ([1.0, 2.0, 3.0], [0.5, 0.0, 1.0], 1e-60),
    ],
)
def test_extreme_values_are_solved(base, fisher, epsilon):
    result = project(torch.tensor(base), [torch.tensor(fisher)], epsilon)
    assert float(result.damage) <= epsilon
    assert float(result.damage) == pytest.approx(epsilon, rel=1e-6)
    assert result.certificate.certified


def test_a_budget_out_of_fp64_range_gives_a_feasible_update_that_is_not_certified():
    result = project(torch.tensor([1e200, 7.0], dtype=F64), [torch.tensor([1.0, 0.0], dtype=F64)], 1e-3)
    assert result.update.tolist() == [0.0, 7.0]
    assert not result.certificate.certified
    assert result.multipliers.tolist() == [math.inf]


def test_three_hundred_degenerate_problems():
    rng = np.random.default_rng(20)
    unsolved = []
    for case in range(300):
        m, d = int(rng.choice([1, 2, 3, 6, 12])), int(rng.choice([1, 2, 5, 30]))
        base = rng.standard_normal(d) * 10.0 ** rng.integers(-12, 4) * np.exp(3 * rng.standard_normal(d))
        fishers = np.exp(rng.choice([0.1, 2, 6]) * rng.standard_normal((m, d)))
        fishers *= rng.random((m, d)) < rng.choice([0.1, 0.5, 1])
        kind = case % 6
        if kind == 0:
            fishers[-1] = fishers[0]
        elif kind == 1:
            fishers[-1] = fishers[0] * (1 + 1e-9 * rng.random(d))
        elif kind == 2:
            fishers[rng.integers(m)] = 0
        elif kind == 3:
            base[rng.random(d) < 0.5] = 0
        elif kind == 4:
            fishers[:] = fishers[:1] * (1 + 1e-3 * rng.random((m, d)))
        fishers /= np.maximum(fishers.max(axis=1, keepdims=True), 1e-30)
        largest = max(0.5 * np.sum(f * base * base) for f in fishers)
        epsilon = largest * 10.0 ** rng.choice([-12.0, -6, -2, -1, -0.3, -0.001]) or 1.0
        dtype = (torch.float64, torch.float32, torch.bfloat16)[case % 3]
        rounded = torch.tensor(base).to(dtype)
        result = project(rounded, [torch.tensor(f) for f in fishers], epsilon)
        if not (result.certificate.certified and bool((result.damage <= epsilon).all())):
            unsolved.append((case, result.certificate))
    assert unsolved == []


def test_fisher_of_few_values_is_solved_in_few_terms(monkeypatch):
    rng = np.random.default_rng(0)
    base = torch.tensor(rng.standard_normal(20_000)).bfloat16()
    raw = torch.tensor(np.exp(2.0 * rng.standard_normal(20_000))).bfloat16().float()
    fisher = raw / (raw.max() + 1e-8)
    sizes = []
    grouped = Problem.grouped

    def noted(problem):
        found = grouped(problem)
        sizes.append(len(found.base) if found else None)
        return found

    monkeypatch.setattr(Problem, "grouped", noted)
    few = project(base, [fisher], 1.0)
    assert sizes[0] < 4_000
    # One Fisher entry that shares its leading bits with another: not what bf16 can hold.
    project(base, [torch.cat([fisher[:-1], torch.nextafter(fisher[:1], torch.ones(1))])], 1.0)
    assert sizes[1] is None
    monkeypatch.setattr(Problem, "grouped", lambda problem: None)
    many = project(base, [fisher], 1.0)
    assert few.certificate.certified
    assert float(few.damage) <= 1.0
    # What rounding will add is predicted from two points near the optimum.
    assert float(few.multipliers) == pytest.approx(float(many.multipliers), rel=1e-3)
    assert torch.allclose(few.update, many.update, rtol=2**-7, atol=0.0)
