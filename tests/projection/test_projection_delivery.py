"""What is delivered keeps the budget after its cast, without a tolerance."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedforget.projection import delivery, project


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_cast_update_keeps_every_budget(dtype, draw):
    rng = np.random.default_rng(1)
    for seed in range(60):
        m, d = int(rng.integers(1, 5)), int(rng.choice([1, 2, 7, 50, 400]))
        base, fishers = draw(seed, m, d, dtype=dtype)
        epsilon = float(rng.uniform(0.01, 1.0)) * max(
            0.5 * float((f * base.double() ** 2).sum()) for f in fishers
        )
        if epsilon == 0.0:
            continue
        result = project(base, fishers, epsilon)
        assert result.update.dtype == dtype
        for k, fisher in enumerate(fishers):
            terms = fisher.double() * result.update.double() ** 2
            # Summed in three ways: none may exceed the budget by a rounding error.
            exact = 0.5 * math.fsum(terms.tolist())
            for value in (0.5 * float(terms.sum()), 0.5 * sum(terms.tolist()), exact):
                assert value <= epsilon
            assert float(result.damage[k]) == pytest.approx(exact, rel=1e-12)
        assert bool((result.update.double().abs() <= base.double().abs()).all())
        assert result.certificate.primal == 0.0
        assert result.certificate.certified


def test_rounding_to_nearest_would_break_the_budget(draw):
    broken = 0
    for seed in range(40):
        base, fishers = draw(seed, 1, 50, dtype=torch.bfloat16)
        epsilon = 0.3 * 0.5 * float((fishers[0] * base.double() ** 2).sum())
        optimum = project(base.double(), fishers, epsilon).update.bfloat16()
        broken += 0.5 * float((fishers[0] * optimum.double() ** 2).sum()) > epsilon
    assert broken >= 10


def test_the_cast_costs_no_more_than_rounding(draw):
    for seed in range(20):
        base, fishers = draw(seed, 3, 400, dtype=torch.bfloat16)
        epsilon = 0.2 * max(0.5 * float((f * base.double() ** 2).sum()) for f in fishers)
        optimum = project(base.double(), fishers, epsilon).update
        delivered = project(base, fishers, epsilon).update.double()
        # bf16 keeps 8 bits: rounding moves a coordinate by up to 2^-8, toward zero by up to 2^-7.
        assert float(((delivered - optimum).abs() / optimum.abs().clamp_min(1e-30)).max()) <= 2.0**-6


def test_one_coordinate_takes_the_largest_feasible_value():
    # sqrt(2 epsilon) = 1.006; the bf16 neighbours are 1 and 1.0078125, and only the first is feasible.
    epsilon = 0.5 * 1.006**2
    result = project(torch.tensor([3.0]).bfloat16(), [torch.ones(1)], epsilon)
    assert result.update.tolist() == [1.0]
    assert result.certificate.certified


def test_negative_values_round_toward_zero_too():
    epsilon = 0.5 * 1.006**2
    assert project(torch.tensor([-3.0]).half(), [torch.ones(1)], epsilon).update.item() == -1.005859375


def test_values_that_become_subnormal_are_feasible_and_the_certificate_says_what_was_lost():
    base = torch.tensor([1e-7, 6e-8]).half()
    result = project(base, [torch.ones(2)], 1e-16)
    assert float(result.damage) <= 1e-16
    assert not result.certificate.certified
    assert result.certificate.primal == 0.0


def test_fishers_of_mixed_dtypes(draw):
    base, fishers = draw(5, 3, 100, dtype=torch.float32)
    mixed = [fishers[0].bfloat16(), fishers[1].half(), fishers[2]]
    epsilon = 0.1 * 0.5 * float((mixed[0].double() * base.double() ** 2).sum())
    result = project(base, mixed, epsilon)
    same = project(base, [f.double() for f in mixed], epsilon)
    torch.testing.assert_close(result.update, same.update, rtol=1e-6, atol=0)
    assert result.certificate.certified


def test_the_same_bits_every_time(draw):
    base, fishers = draw(6, 4, 5000, dtype=torch.bfloat16)
    epsilon = 0.1 * 0.5 * float((fishers[0] * base.double() ** 2).sum())
    first, second = project(base, fishers, epsilon), project(base, fishers, epsilon)
    assert torch.equal(first.update, second.update)
    assert torch.equal(first.multipliers, second.multipliers)


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-30, 1e30])
@pytest.mark.parametrize("kind", ["bf16", "fp32", "two clients", "fp32 update"])
def test_numba_gives_the_same_bits(kind: str, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    monkeypatch.setattr(delivery, "_SAMPLED", 1 << 15)
    generator = torch.Generator().manual_seed(0)
    for n in (1, 9, 5_000, 40_003):
        base = (torch.randn(n, generator=generator) * scale).to(torch.float32)
        base[::17] = 0.0
        base = base if kind == "fp32 update" else base.bfloat16()
        raw = [torch.randn(n, generator=generator).mul(2.0).exp() for _ in range(1 + (kind == "two clients"))]
        fishers = [one if kind == "fp32" else one.bfloat16().float() / 7.0 for one in raw]
        fishers[0][0] = 1.0
        base[0] = scale
        epsilon = 0.3 * 0.5 * min(float((f.double() * base.double().square()).sum()) for f in fishers)
        plain, fast = (project(base, fishers, epsilon, compiled=compiled) for compiled in (False, True))
        assert torch.equal(plain.update, fast.update)
        assert torch.equal(plain.multipliers, fast.multipliers)
        assert torch.equal(plain.damage, fast.damage)
        assert plain.certificate == fast.certificate
        assert not torch.equal(plain.update, base)


def test_client_that_the_sample_misses_keeps_its_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "_SAMPLED", 1 << 13)
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(20_000, generator=generator)
    wide, narrow = torch.rand(20_000, generator=generator), torch.zeros(20_000)
    narrow[1 : 5 * delivery._STRIDE : delivery._STRIDE] = 1.0  # none at a multiple of the stride
    base[narrow > 0.0] = 200.0
    damage = [0.5 * float((fisher.double() * base.double().square()).sum()) for fisher in (wide, narrow)]
    narrow *= damage[0] / damage[1]
    for share in (0.5, 0.9):
        for update in (base, base.bfloat16()):
            result = project(update, [wide, narrow], share * damage[0])
            assert result.certificate.certified
            assert bool((result.damage <= share * damage[0]).all())
