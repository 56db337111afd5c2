"""How many entries are kept, and which."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedforget.merging import selection
from fedforget.merging.selection import kept_count, kth_largest


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


values = st.lists(
    st.one_of(st.floats(0.0, 1e300), st.sampled_from([0.0, -0.0, 1.0, 5e-324, 1e-310])),
    min_size=1,
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(values, st.data())
def test_kth_largest_is_the_sorted_one(numbers, data):
    k = data.draw(st.integers(1, len(numbers)))
    cut = data.draw(st.integers(0, len(numbers)))
    blocks = [torch.tensor(part, dtype=torch.float64) for part in (numbers[:cut], numbers[cut:])]
    assert kth_largest(lambda: blocks, len(numbers), k) == sorted(map(abs, numbers), reverse=True)[k - 1]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 10, 499, 500]))
def test_kth_largest_by_refinement_alone(seed, k):
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(500, generator=generator, dtype=torch.float64).mul_(1e-3).add_(1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "_GATHER", 0)  # never gather: four rounds of histograms
        found = kth_largest(lambda: [numbers[:123], numbers[123:]], 500, k)
    assert found == float(numbers.sort(descending=True).values[k - 1])


def test_kth_largest_of_nothing_keeps_nothing():
    assert kth_largest(list, 0, 0) == math.inf
