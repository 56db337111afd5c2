"""DARE: random masks that are reproducible and leave the expectation as it is."""

from __future__ import annotations

import torch

from fedforget.merging import merge


def test_without_dropping_it_is_task_arithmetic(four):
    assert merge(four, "dare", drop=0.0).deltas["w"].tolist() == [13, 5, 1, 11]


def test_kept_entries_are_rescaled_and_their_share_is_as_asked(make):
    client = make("a", [1.0] * 10_000)
    update = merge([client], "dare", drop=0.75).deltas["w"]
    assert set(update.tolist()) == {0.0, 4.0}
    # 2,500 of 10,000 expected; the standard deviation is sqrt(10,000 * 0.25 * 0.75) = 43.
    assert abs(int(update.count_nonzero()) - 2_500) < 5 * 44


def test_masks_depend_on_the_seed_the_client_and_the_tensor_alone(make):
    a, b = make("a", [1.0] * 500), make("b", [1.0] * 500)
    alone = merge([a], "dare", drop=0.5).deltas["w"]
    other = merge([b], "dare", drop=0.5).deltas["w"]
    assert torch.equal(alone, merge([a], "dare", drop=0.5).deltas["w"])
    assert not torch.equal(alone, other)
    assert not torch.equal(alone, merge([a], "dare", drop=0.5, seed=1).deltas["w"])
    # Another client's presence changes nothing for this one.
    assert torch.equal(merge([a, b], "dare", drop=0.5).deltas["w"], alone + other)
