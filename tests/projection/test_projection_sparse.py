"""A Fisher given on its support alone, bits that do not depend on threads, and few passes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

from fedforget.errors import SummaryError
from fedforget.projection import FisherSupport, project
from fedforget.projection.problem import Problem


def support(fisher: torch.Tensor, divisor: float = 1.0) -> FisherSupport:
    index = torch.nonzero(fisher).squeeze(1)
    return FisherSupport(index, fisher[index], divisor)


@pytest.mark.parametrize("solver", ["exact", "increase-only"])
def test_a_support_and_a_divisor_say_the_same_as_a_dense_fisher(solver, draw):
    base, fishers = draw(3, 3, 500, keep=0.3, dtype=torch.bfloat16)
    raw = [7.5 * fisher.bfloat16() for fisher in fishers]
    dense = [fisher.double() / 3.1 for fisher in raw]
    epsilon = 0.2 * 0.5 * float((dense[0] * base.double() ** 2).sum())
    expected = project(base, dense, epsilon, solver)
    found = project(base, [support(fisher, 3.1) for fisher in raw], epsilon, solver)
    torch.testing.assert_close(found.multipliers, expected.multipliers, rtol=1e-9, atol=0)
    torch.testing.assert_close(found.damage, expected.damage, rtol=1e-9, atol=0)
    assert torch.equal(found.update, expected.update)
    assert found.certificate.certified == expected.certificate.certified


@pytest.mark.parametrize(
    ("index", "values", "message"),
    [
        ([0, 1], [1.0, 0.0], "holds zeros"),
        ([0, 1], [1.0, -1.0], "holds negative"),
        ([0, 1], [1.0, math.nan], "holds NaN"),
        ([1, 0], [1.0, 1.0], "does not ascend within the 3"),
        ([1, 3], [1.0, 1.0], "does not ascend within the 3"),
        ([-1, 1], [1.0, 1.0], "does not ascend within the 3"),
        ([0], [1.0, 1.0], "as long as its values"),
    ],
)
def test_a_wrong_support_is_refused_and_named(index, values, message):
    bad = FisherSupport(torch.tensor(index), torch.tensor(values))
    with pytest.raises(SummaryError, match=f"retain Fisher 0.*{message}"):
        project(torch.ones(3), [bad], 0.1)
    with pytest.raises(SummaryError, match="divisor"):
        project(torch.ones(3), [FisherSupport(torch.tensor([0]), torch.ones(1), 0.0)], 0.1)


def problem_of(m: int, d: int, seed: int = 0) -> tuple[torch.Tensor, list[FisherSupport], float]:
    rng = np.random.default_rng(seed)
    base = torch.tensor(1e-3 * rng.standard_normal(d)).bfloat16()
    fishers = []
    for _ in range(m):
        fisher = np.exp(2.0 * rng.standard_normal(d))
        fisher[fisher < np.quantile(fisher, 0.9)] = 0.0
        fishers.append(support(torch.tensor(fisher).bfloat16(), float(fisher.max())))
    budget = np.mean(
        [float((f.values.double() / f.divisor * base[f.index].double() ** 2).sum()) for f in fishers]
    )
    return base, fishers, float(0.15 * budget)


@pytest.mark.parametrize(("m", "d"), [(1, 400_000), (3, 200_000), (16, 40_000), (128, 100_000)])
def test_at_most_twelve_passes(m, d, monkeypatch):
    base, fishers, epsilon = problem_of(m, d)
    blocks, read = Problem.blocks, [0]

    def counted(self):
        read[0] += self.fishers.shape[1]
        return blocks(self)

    monkeypatch.setattr(Problem, "blocks", counted)
    result = project(base, fishers, epsilon)
    union = len(torch.unique(torch.cat([f.positions for f in fishers])))
    # One more for the damages of the base, which are summed before there is a problem.
    assert read[0] / union + 1 <= 12
    assert result.certificate.certified
    assert result.certificate.before_rounding <= 1e-9
    assert bool((result.damage <= epsilon).all())


def test_bits_do_not_depend_on_the_number_of_blas_threads():
    base, fishers, epsilon = problem_of(12, 60_000, seed=1)
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads, "blas"):
            found.append(project(base, fishers, epsilon))
    assert torch.equal(found[0].update, found[1].update)
    assert torch.equal(found[0].multipliers, found[1].multipliers)
    assert found[0].certificate == found[1].certificate
