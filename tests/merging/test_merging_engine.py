"""The engine: the naive reference's bits, whatever the blocks, threads and order; bounded memory."""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
import textwrap
import weakref

import pytest
import reference_base
import torch

from fedforget.config import MergeConfig
from fedforget.errors import ConfigError, SummaryError
from fedforget.mapped import MappedTensors
from fedforget.merging import compiled, layout, merge, methods, selection
from fedforget.merging.layout import Layout, in_threads
from fedforget.summaries import ClientSummary, LoraFactors
from fedforget.updates import load_update, merge_to

WIDE = {"w": (150, 1400)}  # four blocks of 46 rows, the last one short


def same(one, other):
    return torch.equal(one.view(torch.int8), other.view(torch.int8))


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def federation(dtype, shape=WIDE["w"], seed=0, domains=(3, 2), retain=2):
    """Heavy-tailed Fishers, some of them with ties, some entries zero, some subnormal."""
    generator = torch.Generator().manual_seed(seed)
    roles = [("forget", f"d{i}") for i, n in enumerate(domains) for _ in range(n)] + [
        ("retain", "r")
    ] * retain
    clients = []
    for i, (role, domain) in enumerate(roles):
        delta = torch.randn(shape, generator=generator) * 1e-3
        fisher = torch.randn(shape, generator=generator).mul(3.0).exp() * 1e-9
        fisher[torch.rand(shape, generator=generator) < 0.1] = 0.0
        fisher[0, :7] = 1e-40
        clients.append(
            ClientSummary(f"{role}-{i}", role, domain, 1, {"w": delta.to(dtype)}, {"w": fisher.to(dtype)})
        )
    return clients


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_base_merge_has_the_bits_of_the_naive_reference(dtype, number, threads):
    threads(number)
    for seed, alpha, gamma in ((0, 0.1, 1.0), (1, 0.37, 1.3), (2, 1.0, 0.7)):
        clients = federation(dtype, seed=seed, domains=(3, 1, 2) if seed else (3, 3), retain=seed)
        expected = reference_base.firm_base(clients, gamma, alpha)
        assert same(merge(clients[::-1], "firm", gamma=gamma, alpha=alpha).deltas["w"], expected)


@pytest.mark.parametrize("method", sorted(methods()))
def test_numba_gives_the_same_bits_with_every_method(method, monkeypatch):
    pytest.importorskip("numba")
    monkeypatch.setattr(selection, "_GATHER", 1000)  # the way of long tensors
    for domains, retain, size in (((5, 2), 2, (150, 1400)), ((1,), 1, (1, 70_001)), ((1, 4), 1, (7, 13))):
        clients = federation(torch.bfloat16, size, domains=domains, retain=retain)
        clients[0].deltas["w"][0, :3] = -0.0
        plain, fast = (merge(clients, method, engine=engine) for engine in ("torch", "numba"))
        assert same(plain.deltas["w"], fast.deltas["w"])
        assert plain.report == fast.report


@pytest.mark.parametrize(
    "options", [{"density": 1.0}, {"density": 0.3, "scope": "global"}, {"density": 1e-5}]
)
@pytest.mark.parametrize("method", ["ties", "fulm"])
def test_numba_trims_and_elects_with_the_same_bits(method, options):
    pytest.importorskip("numba")
    clients = federation(torch.bfloat16, domains=(3, 2), retain=1)
    clients[0].deltas["w"][0, :3] = -0.0
    clients[1].deltas["w"][:20] = -clients[0].deltas["w"][:20]  # sums of zero
    plain, fast = (merge(clients, method, engine=engine, **options) for engine in ("torch", "numba"))
    assert same(plain.deltas["w"], fast.deltas["w"])


@pytest.mark.parametrize("method", ["firm", "support_matched"])
def test_numba_gives_the_same_bits(method):
    pytest.importorskip("numba")
    clients = federation(torch.bfloat16, domains=(3, 1), retain=2)
    # One client that the kernel does not read.
    clients[3].fisher = {"w": clients[3].fisher["w"].float()}
    plain, fast = (merge(clients, method, engine=engine, gamma=1.3) for engine in ("torch", "numba"))
    assert same(plain.deltas["w"], fast.deltas["w"])
    assert plain.report == fast.report
    for alpha in (0.01, 1.0):
        expected = reference_base.firm_base(clients, 1.3, alpha)
        assert same(
            merge(clients, "firm", engine="numba", alpha=alpha, gamma=1.3).deltas["w"],
            expected.to(clients[0].deltas["w"].dtype),
        )


@pytest.mark.parametrize("engine", ["torch", "numba"])
def test_values_are_refused_in_the_passes_that_read_them(engine, monkeypatch):
    if engine == "numba":
        pytest.importorskip("numba")
    monkeypatch.setattr(selection, "_GATHER", 1000)  # the way of long tensors
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for of_fisher, bad in ((False, math.nan), (False, -math.inf), (True, math.nan), (True, -1e-3)):
            clients = federation(dtype, domains=(2, 1), retain=1)
            one = clients[1]
            (one.fisher if of_fisher else one.deltas)["w"][-1, 3] = bad
            with pytest.raises(SummaryError, match=f"'forget-1': {'Fisher' if of_fisher else 'task vector'}"):
                merge(clients, "firm", engine=engine)
            clients[0].fisher["w"][5, 5] = -0.0  # a zero like any other
            (one.fisher if of_fisher else one.deltas)["w"][-1, 3] = 0.0
            merge(clients, "firm", engine=engine)


def test_engine_that_does_not_exist_or_is_not_installed(monkeypatch):
    clients = federation(torch.bfloat16, (3, 4))
    with pytest.raises(ConfigError, match="engine: 'numbas' is not one of auto, torch, numba"):
        merge(clients, "firm", engine="numbas")
    monkeypatch.setattr(compiled, "find_spec", lambda name: None)
    assert same(merge(clients, "firm").deltas["w"], merge(clients, "firm", engine="torch").deltas["w"])
    with pytest.raises(ConfigError, match="numba is not installed"):
        merge(clients, "firm", engine="numba")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_ties_has_the_bits_of_the_naive_reference(dtype):
    clients = federation(dtype)
    assert same(
        merge(clients, "ties", density=0.3, gamma=1.3).deltas["w"], reference_base.ties(clients, 1.3, 0.3)
    )


@pytest.mark.parametrize("method", sorted(methods()))
def test_no_method_depends_on_the_number_of_threads(method, threads):
    # Factors too: their product is computed block by block, on one thread each.
    clients = federation(torch.bfloat16)
    generator = torch.Generator().manual_seed(1)
    for one in clients[1::2]:
        A = torch.randn(8, 1400, generator=generator).bfloat16()
        B = torch.randn(150, 8, generator=generator).bfloat16()
        one.deltas = {"w": LoraFactors(A, B, 1e-3)}
    results = []
    for number in (1, 2, 5):
        threads(number)
        results.append(merge(clients, method))
        assert torch.get_num_threads() == number
    for result in results[1:]:
        assert same(result.deltas["w"], results[0].deltas["w"])
        assert result.report == results[0].report


def test_projection_sees_the_whole_support(monkeypatch):
    # One block against many.
    clients = federation(torch.bfloat16, (60, 50))
    whole = merge(clients, "firm", epsilon=1e-12)
    monkeypatch.setattr(layout, "BLOCK", 170)
    many = merge(clients, "firm", epsilon=1e-12)
    assert same(whole.deltas["w"], many.deltas["w"])
    report, other = whole.report["tensors"]["w"], many.report["tensors"]["w"]
    assert report["multipliers"] == other["multipliers"]
    assert report["damage"] == other["damage"]
    assert all(0.0 < value <= 1e-12 for value in report["damage"])


@pytest.mark.parametrize("shape", [(), (5,), (0, 3), (3, 0), (7, 11), (2, 35), (1, 100), (3, 2, 5)])
def test_blocks_cover_a_tensor_once_and_in_order(shape, monkeypatch):
    monkeypatch.setattr(layout, "BLOCK", 30)
    one = Layout(shape)
    assert [i for start, stop in one.blocks for i in range(start, stop)] == list(range(one.size))
    for start, stop in one.blocks:
        assert stop - start <= 30
        assert start % one.width == stop % one.width == 0 or start // one.width == (stop - 1) // one.width


def test_factors_are_expanded_row_by_row_and_within_a_row(monkeypatch):
    # Small integers: every product is exact, whatever the cut.
    A, B = torch.arange(-6.0, 8.0).view(2, 7), torch.arange(-5.0, 5.0).view(5, 2)
    client = ClientSummary("a", "forget", "bio", 1, {"w": LoraFactors(A, B, 0.5)})
    for block in (3, 7, 20):
        monkeypatch.setattr(layout, "BLOCK", block)
        assert torch.equal(merge([client], "sum").deltas["w"], 0.5 * B @ A)


def test_failure_in_a_thread_is_raised(threads):
    threads(2)

    def fail(number):
        if number == 3:
            raise ValueError("third")
        return number

    with pytest.raises(ValueError, match="third"):
        in_threads(fail, range(10))
    assert in_threads(fail, [5, 4, 6]) == [5, 4, 6]


def test_mapped_tensors_can_be_read_again_after_their_release(tmp_path):
    client = federation(torch.bfloat16)[0]
    client.save(tmp_path / "c")
    mapped = MappedTensors(tmp_path / "c" / "fisher.safetensors")
    tensor, release = mapped.open("w")
    release(0, tensor.numel())
    assert same(tensor, client.fisher["w"])
    # What one reader changes, nobody else sees.
    tensor.zero_()
    assert same(pickle.loads(pickle.dumps(mapped))["w"], client.fisher["w"])


@pytest.mark.parametrize("left", [0, 100])
def test_file_that_was_cut_since_it_was_listed_is_refused(left, tmp_path):
    federation(torch.bfloat16)[0].save(tmp_path / "c")
    mapped = MappedTensors(tmp_path / "c" / "fisher.safetensors")
    os.truncate(tmp_path / "c" / "fisher.safetensors", left)
    with pytest.raises(SummaryError, match="safetensors: is shorter than it was"):
        mapped.open("w")


def test_update_is_written_while_one_tensor_is_held(tmp_path):
    names = ["a", "b", "c"]
    zeros = {name: torch.zeros(4, 4) for name in names}
    clients = [ClientSummary("one", "forget", "bio", 1, zeros)]
    before = []

    def stream(summaries, method, **parameters):
        for name in names:
            assert not before or before[-1]() is None
            tensor = torch.ones(4, 4)
            before.append(weakref.ref(tensor))
            yield name, tensor, {"norm": 4.0}
            del tensor

    merge_to(tmp_path, MergeConfig(method="avg"), clients, stream)
    assert len(before) == 3
    assert torch.equal(load_update(tmp_path)["c"], torch.ones(4, 4))


MEASURE = textwrap.dedent(
    """
    import sys, torch
    from pathlib import Path
    from fedforget.merging import merge_tensors
    from fedforget.summaries import ClientSummary

    torch.set_num_threads(2)
    clients = [ClientSummary.load(folder) for folder in sorted(Path(sys.argv[1]).iterdir())]

    def status(key):
        lines = open("/proc/self/status").read().splitlines()
        return int(next(line for line in lines if line.startswith(key)).split()[1]) / 1024

    # The first tensor is tiny: it loads the code.
    next(merge_tensors(clients[:1], "sum"))
    before = status("VmRSS")
    stream = merge_tensors(clients, sys.argv[2])
    for name, delta, report in stream:
        pass
    print(status("VmHWM") - before)
    """
)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("method", ["firm", "fulm"])
def test_memory_stays_far_below_the_tensors_that_are_streamed(method, tmp_path):
    # Per weight, four clients' task vectors and Fishers: 8 x 12 MiB in bf16; fp32 copies would be 192 MiB.
    generator = torch.Generator().manual_seed(0)
    big = torch.randn(6 << 20, generator=generator).mul(1e-3).bfloat16().view(6144, 1024)
    deltas = {"a": torch.zeros(2, 2).bfloat16(), "b": big, "c": big}
    fishers = {name: tensor.square() for name, tensor in deltas.items()}
    for i in range(4):
        role = "retain" if i == 3 else "forget"
        ClientSummary(f"c{i}", role, "x", 1, deltas, fishers).save(tmp_path / f"c{i}")
    run = [sys.executable, "-c", MEASURE, str(tmp_path), method]
    used = float(subprocess.run(run, capture_output=True, text=True, check=True).stdout)
    # 94 MiB: two outputs (one handed over, one being built) of 12 MiB, what two threads have mapped, a
    # sample, buffers. Inputs that stay mapped, or a single fp32 copy per client, would not fit.
    assert used < 140.0
