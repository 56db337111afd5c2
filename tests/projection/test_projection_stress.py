"""Three thousand degenerate problems: feasible after the cast, optimal before it, each of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedforget.projection import project

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SHARES = (1e-200, 1e-30, 1e-12, 1e-6, 1e-2, 0.1, 0.5, 0.999, 1.0, 1.5, 1e6)


def degenerate(rng: np.random.Generator, case: int) -> tuple[torch.Tensor, list[torch.Tensor], float]:
    m, d = int(rng.choice([1, 1, 2, 3, 6, 16, 64], p=(0.2, 0.2, 0.2, 0.16, 0.1, 0.1, 0.04))), 1
    d = int(rng.choice([1, 2, 3, 7, 30, 150]))
    base = rng.standard_normal(d) * np.exp(rng.choice([0, 3]) * rng.standard_normal(d))
    fishers = np.exp(rng.choice([0.1, 2, 8]) * rng.standard_normal((m, d)))
    fishers *= rng.random((m, d)) < rng.choice([0.1, 0.5, 1])
    kind = case % 9
    if kind == 0:
        fishers[-1] = fishers[0]
    elif kind == 1:
        fishers[:] = fishers[:1] * (1 + 1e-9 * rng.random((m, d)))
    elif kind == 2:
        fishers[rng.integers(m)] = 0.0
    elif kind == 3:
        base[rng.random(d) < 0.6] = 0.0
    elif kind == 4:
        fishers *= 1e-310  # subnormal
    elif kind == 5:
        base *= 10.0 ** rng.integers(-30, 30)
    elif kind == 6:
        fishers *= 10.0 ** rng.integers(-150, 100, size=(m, 1))
    elif kind == 7:
        base[:] = 0.0
    dtype, other = DTYPES[case % 4], DTYPES[(case // 4) % 4]
    x = torch.tensor(base).to(dtype)
    mixed = [torch.tensor(f).to((other, torch.float64)[k % 2]) for k, f in enumerate(fishers)]
    x, mixed = x.nan_to_num(), [f.nan_to_num() for f in mixed]  # what overflowed becomes the largest
    if case % 29 == 0:
        return x, mixed, (0.0, math.inf)[case % 2]
    with np.errstate(over="ignore"):
        largest = max(0.5 * float(np.sum(f.double().numpy() * x.double().numpy() ** 2)) for f in mixed)
    epsilon = min(largest, 1e300) * float(rng.choice(SHARES))
    return x, mixed, epsilon or 5e-324


def over(x: np.ndarray, fisher: np.ndarray, epsilon: float) -> float:
    """b_k - epsilon in units of its own, summed exactly: powers of two keep it out of the subnormal range."""
    on = (fisher > 0) & (x != 0)
    if not on.any():
        return -1.0
    f, x = fisher[on], np.abs(x[on])
    e, c = int(np.frexp(x.max())[1]), int(np.frexp(f.max())[1])
    value = 0.5 * math.fsum(np.ldexp(f, -c) * np.square(np.ldexp(x, -e)))
    budget = math.inf if math.isinf(epsilon) else float(np.ldexp(epsilon, -(c + 2 * e)))
    return value - budget if value > budget else -1.0


@pytest.mark.parametrize("part", range(8))
def test_degenerate_problems(part: int) -> None:
    failures = []
    for case in range(part * 380, (part + 1) * 380):
        rng = np.random.default_rng([7, case])
        base, fishers, epsilon = degenerate(rng, case)
        result = project(base, fishers, epsilon)
        certificate, x = result.certificate, result.update.double().numpy()
        excess = [over(x, f.double().numpy(), epsilon) for f in fishers]
        wrong = [f"b_{k} exceeds the budget by {value}" for k, value in enumerate(excess) if value > 0.0]
        if not bool((result.update.abs() <= base.abs()).all()):
            wrong.append("a magnitude grew")
        if not bool((result.damage <= epsilon).all()):
            wrong.append("a reported damage above the budget")
        if certificate.primal != 0.0 or certificate.dual != 0.0:
            wrong.append("primal or dual residual")
        finite = bool(torch.isfinite(result.multipliers).all())
        if finite and certificate.before_rounding > 1e-9:
            wrong.append(f"KKT residual {certificate.before_rounding}")
        if finite and not certificate.duality_gap >= -1e-9 * float(base.double().square().sum()):
            wrong.append(f"gap {certificate.duality_gap}")
        if base.dtype == torch.float64 and finite and epsilon > 1e-290 and not certificate.certified:
            wrong.append("not certified")
        if wrong:
            failures.append((case, base.dtype, len(fishers), base.numel(), epsilon, wrong, certificate))
    assert failures == []
