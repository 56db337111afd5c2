"""Bad input is refused with one sentence that names what is wrong."""

from __future__ import annotations

import math

import pytest
import torch

from fedforget.errors import ConfigError, SummaryError
from fedforget.projection import project

BASE, FISHER = torch.ones(3), torch.ones(3)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, math.inf])
def test_a_non_finite_base_is_refused(value, epsilon):
    with pytest.raises(SummaryError, match="base update holds NaN or infinite"):
        project(torch.tensor([1.0, value, 2.0]), [FISHER], epsilon)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_non_finite_fisher_is_refused_and_named(value, dtype):
    bad = torch.tensor([1.0, value, 2.0], dtype=dtype)
    with pytest.raises(SummaryError, match="retain Fisher 1 holds NaN or infinite"):
        project(BASE, [FISHER, bad], 0.1)


def test_a_negative_fisher_is_refused():
    with pytest.raises(SummaryError, match="retain Fisher 0 holds negative values"):
        project(BASE, [torch.tensor([1.0, -1e-30, 0.0])], math.inf)


def test_a_fisher_of_another_shape_is_refused():
    with pytest.raises(SummaryError, match=r"retain Fisher 0 has shape \(3, 1\), the base update \(3,\)"):
        project(BASE, [torch.ones(3, 1)], 0.1)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_a_dtype_that_is_not_floating_is_refused(dtype):
    with pytest.raises(SummaryError, match="base update has dtype"):
        project(BASE.to(dtype), [FISHER], 0.1)
    with pytest.raises(SummaryError, match="retain Fisher 0 has dtype"):
        project(BASE, [FISHER.to(dtype)], 0.1)


@pytest.mark.parametrize("epsilon", [-1e-300, -1.0, -math.inf, math.nan])
def test_a_negative_or_nan_budget_is_refused(epsilon):
    with pytest.raises(ConfigError, match=r"epsilon: .* is not a budget"):
        project(BASE, [FISHER], epsilon)


def test_an_unknown_solver_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match="did you mean 'increase-only'"):
        project(BASE, [FISHER], 0.1, "increase_only")
    with pytest.raises(ConfigError, match="is not one of exact, increase-only"):
        project(BASE, [FISHER], 0.1, "zzz")


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_a_finite_budget_without_a_retain_client_is_refused(epsilon):
    with pytest.raises(ConfigError, match="needs a retain Fisher"):
        project(BASE, [], epsilon)


@pytest.mark.parametrize("eps0", [-1e-8, math.nan, math.inf])
def test_a_bad_stabiliser_is_refused(eps0):
    with pytest.raises(ConfigError, match="eps0"):
        project(BASE, [FISHER], 0.1, "increase-only", eps0=eps0)
