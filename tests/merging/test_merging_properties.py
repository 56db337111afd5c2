"""What every method owes its caller, whatever it computes."""

from __future__ import annotations

import random
import weakref
from collections.abc import Mapping

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedforget.merging import merge, merge_tensors, methods
from fedforget.summaries import ClientSummary, LoraFactors

ALL = sorted(methods())
DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
quick = settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def assert_same_bits(one, other):
    assert list(one) == list(other)
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype
        assert torch.equal(tensor, other[name]), name


@pytest.mark.parametrize("method", ALL)
@quick
@given(seed=st.integers(0, 10**6), shuffle=st.integers(0, 10**6))
def test_order_of_clients_does_not_matter(federation, method, seed, shuffle):
    clients = federation(seed)
    expected = merge(clients, method)
    shuffled = list(clients)
    random.Random(shuffle).shuffle(shuffled)
    result = merge(iter(shuffled), method)
    assert_same_bits(expected.deltas, result.deltas)
    assert result.report == expected.report


@pytest.mark.parametrize("method", ALL)
@quick
@given(seed=st.integers(0, 10**6), gamma=st.floats(1e-3, 1e3))
def test_scale_equivariance(federation, method, seed, gamma):
    clients = federation(seed, torch.float64)
    one, scaled = merge(clients, method), merge(clients, method, gamma=gamma)
    for name, tensor in one.deltas.items():
        torch.testing.assert_close(scaled.deltas[name], gamma * tensor, rtol=1e-13, atol=1e-300)


@pytest.mark.parametrize("method", ALL)
@quick
@given(seed=st.integers(0, 10**6), factor=st.sampled_from([0.25, 2.0, 1024.0]))
def test_equivariance_in_the_task_vectors(federation, method, seed, factor):
    clients = federation(seed, torch.float64)
    one = merge(clients, method)
    for summary in clients:
        summary.deltas = {name: delta * factor for name, delta in summary.deltas.items()}
    for name, tensor in merge(clients, method).deltas.items():
        torch.testing.assert_close(tensor, factor * one.deltas[name], rtol=1e-13, atol=1e-300)


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_are_unchanged_and_the_dtype_is_kept(federation, method, dtype):
    clients = federation(2, dtype)
    before = federation(2, dtype)
    result = merge(clients, method)
    for summary, original in zip(clients, before, strict=True):
        assert_same_bits(dict(summary.deltas), dict(original.deltas))
        assert_same_bits(dict(summary.fisher), dict(original.fisher))
    assert list(result.deltas) == sorted(clients[0].deltas)
    for name, tensor in result.deltas.items():
        assert tensor.dtype == dtype
        assert tensor.shape == clients[0].deltas[name].shape
        assert bool(torch.isfinite(tensor).all())


@pytest.mark.parametrize("method", ALL)
def test_narrow_inputs_are_accumulated_wide(federation, method):
    # The same values held in fp64: rounding the fp64 merge once must give the bf16 one.
    clients = federation(4, torch.bfloat16)
    narrow = merge(clients, method).deltas
    for summary in clients:
        summary.deltas = {name: delta.double() for name, delta in summary.deltas.items()}
        summary.fisher = {name: fisher.double() for name, fisher in summary.fisher.items()}
    wide = merge(clients, method).deltas
    assert_same_bits(narrow, {name: delta.to(torch.bfloat16) for name, delta in wide.items()})


@pytest.mark.parametrize("method", ALL)
def test_summaries_read_from_disk_give_the_same_bits(federation, method, tmp_path):
    clients = federation(6, torch.bfloat16)
    shapes = clients[0].deltas["b.weight"].shape
    for i, summary in enumerate(clients):
        generator = torch.Generator().manual_seed(i)
        A = torch.randn(2, shapes[1], generator=generator).bfloat16()
        B = torch.randn(shapes[0], 2, generator=generator).bfloat16()
        summary.deltas = {**summary.deltas, "b.weight": LoraFactors(A, B, 0.5)}
        summary.save(tmp_path / summary.client_id)
    loaded = [ClientSummary.load(tmp_path / summary.client_id) for summary in clients]
    assert_same_bits(merge(clients, method).deltas, merge(loaded, method).deltas)


@pytest.mark.parametrize("method", ALL)
def test_factors_merge_as_their_product(federation, method):
    clients = federation(7, torch.float64, {"w": (12, 10)})
    dense = federation(7, torch.float64, {"w": (12, 10)})
    for i, summary in enumerate(clients):
        generator = torch.Generator().manual_seed(i)
        A = torch.randn(3, 10, generator=generator, dtype=torch.float64)
        B = torch.randn(12, 3, generator=generator, dtype=torch.float64)
        factors = LoraFactors(A, B, 2.0)
        summary.deltas = {"w": factors}
        dense[i].deltas = {"w": 2.0 * (B @ A)}
    torch.testing.assert_close(
        merge(clients, method).deltas["w"], merge(dense, method).deltas["w"], rtol=1e-12, atol=1e-15
    )


@pytest.mark.parametrize("method", ALL)
def test_dtypes_that_differ_are_promoted(federation, method):
    clients = federation(8, torch.bfloat16)
    clients[1].deltas = {name: delta.to(torch.float16) for name, delta in clients[1].deltas.items()}
    # Neither of bf16 and fp16 holds the other.
    assert {delta.dtype for delta in merge(clients, method).deltas.values()} == {torch.float32}


@pytest.mark.parametrize("method", ALL)
def test_streaming_gives_what_merge_collects(federation, method):
    clients = federation(9)
    result = merge(clients, method)
    streamed = list(merge_tensors(clients, method))
    assert [name for name, _, _ in streamed] == sorted(clients[0].deltas)
    assert_same_bits(result.deltas, {name: delta for name, delta, _ in streamed})
    assert result.report["tensors"] == {name: report for name, _, report in streamed}


@pytest.mark.parametrize("method", ALL)
def test_layout_in_memory_and_gradients_do_not_matter(federation, method):
    clients = federation(10)
    expected = merge(clients, method).deltas
    for summary in clients:
        summary.deltas = {
            name: (delta.T.contiguous().T if delta.ndim == 2 else delta).requires_grad_()
            for name, delta in summary.deltas.items()
        }
    result = merge(clients, method).deltas
    assert_same_bits(expected, result)
    assert not any(delta.requires_grad for delta in result.values())


@pytest.mark.parametrize("method", ALL)
def test_empty_tensors_and_all_zero_clients(federation, method):
    clients = federation(11, shapes={"w": (3, 4), "none": (0, 4)})
    for summary in clients:
        summary.deltas = {name: torch.zeros_like(delta) for name, delta in summary.deltas.items()}
    merged = merge(clients, method).deltas
    assert merged["none"].shape == (0, 4)
    assert not bool(merged["w"].any())


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("avg", {}),
        ("sum", {}),
        ("uniform", {}),
        ("task_arithmetic", {}),
        ("ties", {"density": 1.0}),
        ("fisher_average", {}),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_forget_adapter_gives_itself_back(federation, method, parameters, dtype):
    client = federation(12, dtype)[0]
    assert_same_bits(merge([client], method, **parameters).deltas, dict(sorted(client.deltas.items())))


@pytest.mark.parametrize("method", ["avg", "sum", "uniform", "task_arithmetic", "ties"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_forget_adapter_in_factors_gives_its_product_back(method, dtype):
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(2, 5, generator=generator, dtype=torch.float64).to(dtype)
    B = torch.randn(4, 2, generator=generator, dtype=torch.float64).to(dtype)
    factors = LoraFactors(A, B, 0.75)
    client = ClientSummary("f", "forget", "bio", 1, {"w": factors})
    parameters = {"density": 1.0} if method == "ties" else {}
    assert_same_bits(merge([client], method, **parameters).deltas, {"w": factors.dense()})


def test_merging_does_not_depend_on_the_number_of_threads(federation):
    clients = federation(13, shapes={"w": (520, 505)})
    threads = torch.get_num_threads()
    results = []
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            results.append([merge(clients, method).deltas for method in ("firm", "fulm")])
    finally:
        torch.set_num_threads(threads)
    for one, other in zip(*results, strict=True):
        assert_same_bits(one, other)


class Watched(Mapping):
    """Tensors copied at every access, as from disk; counts those of other weights still in memory."""

    def __init__(self, tensors, alive, most):
        self._tensors, self._alive, self._most = tensors, alive, most

    def __getitem__(self, name):
        array = self._tensors[name].numpy().copy()
        self._alive[:] = [(other, memory) for other, memory in self._alive if memory() is not None]
        self._most[0] = max(self._most[0], sum(other != name for other, _ in self._alive))
        # The tensor, and every view of it, keeps the array alive.
        self._alive.append((name, weakref.ref(array)))
        return torch.from_numpy(array)

    def __iter__(self):
        return iter(self._tensors)

    def __len__(self):
        return len(self._tensors)


@pytest.mark.parametrize("method", ALL)
def test_one_weight_at_a_time_is_in_memory(federation, method):
    clients = federation(14, torch.float64)
    alive, most = [], [0]
    for summary in clients:
        summary.deltas = Watched(summary.deltas, alive, most)
        summary.fisher = Watched(summary.fisher, alive, most)
    for parameters in ({}, {"scope": "global"}) if method in ("ties", "fulm") else ({},):
        merge(clients, method, **parameters)
    # A loop that reads the next tensor still holds the one before: never more than one.
    assert most[0] <= 1
    assert len(alive) > 1
