"""How many entries are kept, and which."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedforget.merging import selection
from fedforget.merging.inputs import Clients
from fedforget.merging.selection import Stream, kept_count, select
from fedforget.summaries import ClientSummary


@pytest.mark.parametrize(
    ("d", "fraction", "expected"),
    [
        (100, 0.29, 29),  # 0.29 * 100 is 28.999999999999996 in floating point
        (1000, 0.07, 70),
        (100, 0.57, 57),
        (10, 0.1, 1),
        (19, 0.1, 1),
        (20, 0.1, 2),
        (3, 0.1, 1),  # never none
        (7, 1.0, 7),
        (100, 1e-05, 1),
        (58_720_256, 0.1, 5_872_025),
        (0, 0.5, 0),
    ],
)
def test_kept_count(d, fraction, expected):
    assert kept_count(d, fraction) == expected


@given(st.integers(1, 10**9), st.integers(1, 1000))
def test_kept_count_of_thousandths_is_exact(d, thousandths):
    assert kept_count(d, thousandths / 1000) == max(1, d * thousandths // 1000)


def streams(*parts, dtype=torch.float64):
    """One client's task vectors, one weight per part."""
    deltas = {str(i): torch.as_tensor(part, dtype=dtype) for i, part in enumerate(parts)}
    clients = Clients([ClientSummary("a", "forget", "bio", 1, deltas)], needs_fisher=False)
    return [Stream(clients.source(name, clients.all), of_fisher=False) for name in deltas]


def kth(values, k):
    return float(values.abs().flatten().sort(descending=True).values[k - 1])


values = st.lists(
    st.one_of(st.floats(-1e300, 1e300), st.sampled_from([0.0, -0.0, 1.0, 5e-324, 1e-310])),
    min_size=1,
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(values, st.data())
def test_kth_largest_is_the_sorted_one(numbers, data):
    k = data.draw(st.integers(1, len(numbers)))
    cut = data.draw(st.integers(0, len(numbers)))
    found = select(streams(numbers[:cut], numbers[cut:]), k)
    ordered = sorted(map(abs, numbers), reverse=True)
    assert (found.threshold, found.maximum) == (ordered[k - 1], ordered[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("way", ["bracket", "histograms"])
def test_kth_largest_of_a_long_stream(dtype, way, monkeypatch):
    monkeypatch.setattr(selection, "_GATHER", 0)
    monkeypatch.setattr(selection, "_PIECE", 16)
    if way == "histograms":
        monkeypatch.setattr(selection, "_WIDTH", -1e9)  # an empty bracket at the wrong place
    generator = torch.Generator().manual_seed(0)
    smooth = torch.randn(90_001, generator=generator, dtype=torch.float64).mul_(2.0).exp_().mul_(1e-2)
    many_zeros = smooth * (torch.rand(90_001, generator=generator) < 0.05)
    few_values = torch.randint(-3, 4, (90_001,), generator=generator)
    # One row is large: the pieces of the sample are no fair sample of the entries.
    uneven = smooth.clone()
    uneven[100:1100] *= 1e3
    for numbers in (smooth, -smooth, many_zeros, few_values, uneven):
        numbers = numbers.to(dtype)
        for k in (1, 2, 900, 9_000, 89_999, 90_001):
            found = select(streams(numbers[:70_000], numbers[70_000:], dtype=dtype), k)
            assert found.threshold == kth(numbers, k)
            assert found.maximum == kth(numbers, 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_key_beyond_the_sample_is_found_by_its_bracket(dtype, monkeypatch):
    monkeypatch.setattr(selection, "_GATHER", 0)
    monkeypatch.setattr(selection, "_PIECE", 16)
    monkeypatch.setattr(selection, "_refined", None)
    numbers = torch.randn(90_001, generator=torch.Generator().manual_seed(0)).exp().to(dtype)
    numbers[[20, 200]], numbers[[30, 300]] = 1e3, 1e-4  # between the first two pieces
    for k in (1, 2, 3, 89_999, 90_000, 90_001):
        assert select(streams(numbers, dtype=dtype), k).threshold == kth(numbers, k)


def test_histograms_of_weights_of_which_the_first_is_empty(monkeypatch):
    monkeypatch.setattr(selection, "_GATHER", 0)
    monkeypatch.setattr(selection, "_WIDTH", -1e9)  # an empty bracket at the wrong place
    assert select(streams([], [3.0, 1.0, 2.0]), 2).threshold == 2.0


def test_weights_of_several_dtypes_are_compared_as_values():
    deltas = {"u": torch.tensor([1.0, 0.25]), "v": torch.tensor([0.5, 2.0], dtype=torch.bfloat16)}
    clients = Clients([ClientSummary("a", "forget", "bio", 1, deltas)], needs_fisher=False)
    both = [Stream(clients.source(name, clients.all), of_fisher=False) for name in deltas]
    assert [select(both, k).threshold for k in (1, 2, 3, 4)] == [2.0, 1.0, 0.5, 0.25]


def test_kth_largest_of_nothing_keeps_nothing():
    assert select([], 0).threshold == math.inf
