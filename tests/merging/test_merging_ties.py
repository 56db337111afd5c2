"""TIES: the choices on which public versions differ."""

from __future__ import annotations

import pytest
import torch

from fedforget.merging import merge
from fedforget.merging.kernels import elect_and_average
from fedforget.summaries import ClientSummary


def test_zero_sum_elects_plus(make):
    # 2 - 2 = 0 elects +: the mean over the entries of that sign is 2 and not 0.
    assert merge([make("a", [2.0]), make("b", [-2.0])], "ties", density=1.0).deltas["w"].tolist() == [2.0]


def test_sign_is_that_of_the_mass_and_not_of_the_majority(make):
    # Two small positive entries against one large negative one.
    clients = [make("a", [1.0]), make("b", [1.0]), make("c", [-3.0])]
    assert merge(clients, "ties", density=1.0).deltas["w"].tolist() == [-3.0]


def test_mean_is_over_agreeing_entries_that_are_not_zero(make):
    # 5 and 1 agree, 0 and -1 do not count: 6 / 2.
    clients = [make("a", [5.0]), make("b", [1.0]), make("c", [0.0]), make("d", [-1.0])]
    assert merge(clients, "ties", density=1.0).deltas["w"].tolist() == [3.0]


def test_exact_count_and_ties_with_the_last(make):
    # 0.29 of 100 keeps 29 entries: magnitudes 72 to 100.
    client = make("a", [float(i) for i in range(1, 101)])
    assert int(merge([client], "ties", density=0.29).deltas["w"].count_nonzero()) == 29
    # 2 of 5: the second largest magnitude is 3, and three entries have it.
    client = make("a", [3, -3, 9, 3, 1])
    assert merge([client], "ties", density=0.4).deltas["w"].tolist() == [3, -3, 9, 3, 0]


def test_retain_clients_do_not_enter(four):
    with_retain, without = merge(four, "ties"), merge(four[:3], "ties")
    assert torch.equal(with_retain.deltas["w"], without.deltas["w"])


def test_scope_of_trimming():
    # 4 of 8 entries: per tensor two of each; over the whole vector the four of `large`.
    deltas = {
        "large": torch.tensor([[10.0, -20.0], [30.0, 40.0]]),
        "small": torch.tensor([1.0, 2.0, -3.0, 4.0]),
    }
    client = ClientSummary("a", "forget", "bio", 1, deltas)
    per_tensor = merge([client], "ties", density=0.5, scope="tensor").deltas
    assert per_tensor["large"].tolist() == [[0.0, 0.0], [30.0, 40.0]]
    assert per_tensor["small"].tolist() == [0.0, 0.0, -3.0, 4.0]
    whole = merge([client], "ties", density=0.5, scope="global").deltas
    assert whole["large"].tolist() == deltas["large"].tolist()
    assert whole["small"].tolist() == [0.0] * 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_global_scope_is_per_client(dtype):
    # The second client's entries are all smaller than the first one's smallest; each keeps its own half.
    one = {"u": torch.tensor([8.0, 1.0], dtype=dtype), "v": torch.tensor([4.0, 2.0], dtype=dtype)}
    two = {"u": torch.tensor([0.25, 0.5], dtype=dtype), "v": torch.tensor([0.125, 0.75], dtype=dtype)}
    clients = [ClientSummary("a", "forget", "bio", 1, one), ClientSummary("b", "forget", "bio", 1, two)]
    merged = merge(clients, "ties", density=0.5, scope="global").deltas
    assert merged["u"].tolist() == [8.0, 0.5]
    assert merged["v"].tolist() == [4.0, 0.75]


def test_kernel_leaves_its_inputs():
    vectors = [torch.tensor([1.0, -2.0]), torch.tensor([3.0, 1.0])]
    before = [vector.clone() for vector in vectors]
    assert elect_and_average(vectors).tolist() == [2.0, -2.0]
    assert all(torch.equal(one, other) for one, other in zip(vectors, before, strict=True))
