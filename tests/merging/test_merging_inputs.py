"""Everything a server must refuse, and what it says."""

from __future__ import annotations

import math

import pytest
import torch

from fedforget.errors import ConfigError, SummaryError
from fedforget.merging import merge, merge_tensors, methods

NEED_FISHER = sorted(name for name, method in methods().items() if method.needs_fisher)


def test_no_summaries():
    with pytest.raises(SummaryError, match="no client summary"):
        merge([])


def test_no_forget_client(make):
    with pytest.raises(SummaryError, match="none of the 1 clients has the role 'forget'"):
        merge([make("r", [1], [1], role="retain")])


def test_repeated_client(make):
    with pytest.raises(SummaryError, match="client 'a': two summaries have this id"):
        merge([make("a", [1], [1]), make("b", [1], [1]), make("a", [2], [1])])


def test_methods_that_need_fishers():
    assert NEED_FISHER == ["firm", "firm_unnormalised", "fisher_average", "support_matched"]


@pytest.mark.parametrize("method", NEED_FISHER)
def test_missing_fisher(make, method):
    with pytest.raises(SummaryError, match="client 'b': sent no Fisher"):
        merge([make("a", [1], [1]), make("b", [1])], method)


@pytest.mark.parametrize("method", sorted(set(methods()) - set(NEED_FISHER)))
def test_fisher_is_optional_elsewhere(make, method):
    assert merge([make("a", [1.0]), make("b", [1.0])], method).deltas["w"].shape == (1,)


def test_other_tensors(make):
    other = make("b", [1], [1])
    other.deltas = {"w": other.deltas["w"], "v": other.deltas["w"]}
    other.fisher = {"w": other.fisher["w"], "v": other.fisher["w"]}
    with pytest.raises(SummaryError, match="client 'b': tensor 'v' is not among client 'a'"):
        merge([make("a", [1], [1]), other])
    with pytest.raises(SummaryError, match="client 'c': tensor 'v' is missing; client 'b' has it"):
        merge([other, make("c", [1], [1])])


def test_other_shape(make):
    with pytest.raises(SummaryError, match=r"client 'b': tensor 'w' has shape \(2,\), client 'a' has \(1,\)"):
        merge([make("a", [1], [1]), make("b", [1, 2], [1, 2])])


@pytest.mark.parametrize(
    ("delta", "fisher", "message"),
    [
        ([math.nan, 1], [1, 1], "task vector 'w' holds NaN or infinite"),
        ([math.inf, 1], [1, 1], "task vector 'w' holds NaN or infinite"),
        ([1, 1], [1, math.nan], "Fisher 'w' holds NaN or infinite"),
        ([1, 1], [1, -1e-9], "Fisher 'w' holds negative values"),
        ([1, 1], [1], "Fisher 'w' has shape"),
    ],
)
def test_bad_values(make, delta, fisher, message):
    with pytest.raises(SummaryError, match=f"client 'b': {message}"):
        merge([make("a", [1, 1], [1, 1]), make("b", delta, fisher)])


def test_retain_clients_are_checked_even_where_they_do_not_enter(make):
    with pytest.raises(SummaryError, match="client 'r': task vector 'w'"):
        merge([make("a", [1]), make("r", [math.nan], role="retain")], "sum")


def test_overflow_is_not_delivered(make):
    clients = [make("a", [6e4], dtype=torch.float16), make("b", [6e4], dtype=torch.float16)]
    with pytest.raises(SummaryError, match=r"tensor 'w': the merge by 'sum' overflows torch.float16"):
        merge(clients, "sum")
    assert float(merge(clients, "sum", gamma=0.5).deltas["w"]) == float(torch.tensor(6e4).half())


def test_unknown_method(make):
    with pytest.raises(ConfigError, match=r"unknown merge method 'frim' \(did you mean 'firm'\?\)"):
        merge([make("a", [1], [1])], "frim")


def test_unknown_parameter(make):
    with pytest.raises(ConfigError, match=r"'firm': unknown parameter 'gama' \(did you mean 'gamma'\?\)"):
        merge([make("a", [1], [1])], "firm", gama=1.0)


def test_every_problem_at_once(make):
    with pytest.raises(ConfigError) as caught:
        merge([make("a", [1], [1])], "firm", gamma=-1.0, alpha=0.0, epsilonn=1.0)
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize("method", sorted(methods()))
@pytest.mark.parametrize("gamma", [0.0, -1.0, math.inf, math.nan, "1", None, True])
def test_gamma_out_of_range(make, method, gamma):
    with pytest.raises(ConfigError, match="gamma must be a"):
        merge([make("a", [1], [1])], method, gamma=gamma)


@pytest.mark.parametrize(
    ("method", "name", "value"),
    [
        *[("firm", "alpha", value) for value in (0.0, -0.1, 1.01, math.nan)],
        *[("firm", "epsilon", value) for value in (-1e-9, math.nan, -math.inf)],
        *[("firm", "eps0", value) for value in (0.0, -1e-8, math.nan, math.inf)],
        *[("firm", "solver", value) for value in ("exactly", "", 1)],
        *[("support_matched", "alpha", value) for value in (0.0, 2)],
        *[("firm_unnormalised", "keep", value) for value in (0.0, 2)],
        *[("firm_uniform_weights", "eps0", value) for value in (0.0, math.nan)],
        *[("ties", "density", value) for value in (0.0, 1.5, math.nan)],
        *[("ties", "scope", value) for value in ("tensors", None)],
        *[("fulm", "threshold", value) for value in (-1.1, 1.1, math.nan)],
        *[("fulm", "linkage", value) for value in ("ward",)],
        *[("fulm_mean", "similarity", value) for value in ("euclid",)],
        *[("fisher_average", "floor", value) for value in (-1.0, math.inf, math.nan)],
        *[("dare", "drop", value) for value in (-0.1, 1.0, math.nan)],
        *[("dare", "seed", value) for value in (1.5, True)],
        *[("task_arithmetic", "negate_forget", value) for value in (1, "yes")],
    ],
)
def test_parameter_out_of_range(make, method, name, value):
    with pytest.raises(ConfigError, match=f"merge method '{method}': {name} must be "):
        merge([make("a", [1], [1])], method, **{name: value})


def test_streaming_checks_before_the_first_tensor(make):
    with pytest.raises(SummaryError, match="two summaries have this id"):
        merge_tensors([make("a", [1], [1]), make("a", [1], [1])], "firm")
    with pytest.raises(ConfigError, match="budget per retain client"):
        merge_tensors([make("a", [1], [1])], "firm", epsilon=1.0)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.ones(3).to(torch.float8_e4m3fn), "dtype torch.float8_e4m3fn"),
        (torch.ones(3).to_sparse(), "is a torch.sparse_coo tensor"),
        (torch.ones(3, device="meta"), "holds no values"),
        (torch.ones(3).numpy(), "is a ndarray, not a torch tensor"),
    ],
    ids=["float8", "sparse", "meta", "numpy"],
)
def test_tensors_that_nothing_computes_with(make, value, message):
    for where in ("deltas", "fisher"):
        other = make("b", [1, 2, 3], [1, 2, 3])
        setattr(other, where, {"w": value})
        with pytest.raises(SummaryError, match=f"client 'b': .*{message}"):
            merge([make("a", [1, 2, 3], [1, 2, 3]), other], "firm")


def test_overflow_before_the_projection_is_called_one(make):
    four = [make("a", [1], [1], dtype=torch.float32), make("r", [1], [1], role="retain", dtype=torch.float32)]
    with pytest.raises(SummaryError, match="tensor 'w': the merge by 'firm' overflows"):
        merge(four, "firm", gamma=1e39, epsilon=1.0)
    with pytest.raises(ConfigError, match="gamma must be a positive finite number"):
        merge(four, "firm", gamma=10**400)
