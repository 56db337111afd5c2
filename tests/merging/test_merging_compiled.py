"""Both engines give the same update and the same report, and the kernels read nothing but the clients."""

from __future__ import annotations

import ctypes
import math
import mmap
import random

import pytest
import torch

from fedforget.merging import merge, selection
from fedforget.projection import delivery
from fedforget.summaries import ClientSummary, LoraFactors, SparseFisher

pytest.importorskip("numba")

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
SHAPES = [(), (0,), (7,), (1025,), (3, 700), (1, 66_001), (5, 3, 17)]


def laid_out(rng, tensor):
    """The same values with gaps, transposed, or in the middle of other memory."""
    way = rng.randrange(4)
    if way == 0 and tensor.ndim:
        apart = torch.zeros((*tensor.shape[:-1], 2 * tensor.shape[-1] + 1), dtype=tensor.dtype)[..., 1::2]
        return apart.copy_(tensor)
    if way == 1 and tensor.ndim > 1:
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if way == 2:
        return torch.zeros(tensor.numel() + 3, dtype=tensor.dtype)[3:].view(tensor.shape).copy_(tensor)
    return tensor


def random_fisher(rng, generator, shape):
    fisher = torch.randn(shape, generator=generator, dtype=torch.float64).mul_(2.0).exp_() * 1e-4
    way = rng.randrange(6)
    if way == 0:
        fisher.zero_()
    elif way == 1:
        fisher.fill_(rng.choice([1e-40, 1e-3]))
    elif way == 2:
        fisher = (fisher * 1e4).clamp(max=3.0).floor()  # ties, and zeros
    elif way == 3:
        fisher.view(-1)[::3] = -0.0
    elif way == 4:
        fisher.view(-1)[-1:] = 1e4
    return fisher


def random_clients(rng):
    """Clients of one or two domains; dtypes are one, mostly bf16, or anything; factors and sparse Fishers."""
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    shape, mixed, main = rng.choice(SHAPES), rng.random() < 0.3, rng.choice([*DTYPES, *3 * [torch.bfloat16]])
    roles = [("forget", f"d{i}") for i in range(rng.randint(1, 2)) for _ in range(rng.randint(1, 4))]
    roles += [("retain", "r")] * rng.randint(1, 2)
    unusual, clients = rng.choice([0.0, 0.4]), []
    for i, (role, domain) in enumerate(roles):
        one, other = rng.choices(DTYPES, k=2) if mixed else (main, main)
        delta = laid_out(rng, torch.randn(shape, generator=generator).to(one))
        fisher = laid_out(rng, random_fisher(rng, generator, shape).to(other))
        if len(shape) == 2 and rng.random() < unusual:
            A, B = (torch.randn(size, generator=generator).to(one) for size in ((2, shape[1]), (shape[0], 2)))
            delta = LoraFactors(A, B, 0.5)
        if rng.random() < unusual:
            flat = fisher.reshape(-1)
            places = torch.nonzero(torch.rand(len(flat), generator=generator) < 0.1).squeeze(1)
            fisher = SparseFisher(shape, places, flat[places])
        clients.append(ClientSummary(f"c{i}", role, domain, 1, {"w": delta}, {"w": fisher}))
    return clients


@pytest.mark.parametrize("seed", range(10))
def test_engines_agree(seed, monkeypatch):
    rng = random.Random(seed)
    monkeypatch.setattr(selection, "_GATHER", rng.choice([1 << 20, 0]))
    predicted, sampled = rng.choice([(1 << 13, 1 << 20), (1, 1 << 20), (1, 50)])
    monkeypatch.setattr(delivery, "_PREDICTED", predicted)
    monkeypatch.setattr(delivery, "_SAMPLED", sampled)
    clients = random_clients(rng)
    given = {"alpha": rng.choice([1e-6, 0.1, 0.5, 1.0]), "gamma": rng.choice([1.0, 1.3])}
    damage = max(merge(clients, "firm", engine="torch", **given).report["tensors"]["w"]["damage"])
    for share in (math.inf, 0.9, 1e-3):
        for solver in ("exact", "increase-only"):
            epsilon = share * damage if damage else math.inf
            plain, fast = (
                merge(clients, "firm", engine=engine, epsilon=epsilon, solver=solver, **given)
                for engine in ("torch", "numba")
            )
            one, other = (result.deltas["w"].reshape(-1).view(torch.uint8) for result in (plain, fast))
            assert torch.equal(one, other)
            assert plain.report == fast.report


class Fenced:
    """Tensors that begin, or end, where no memory can be read; a kernel that reads there ends the test."""

    def __init__(self):
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_long]
        self._libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self._libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._mapped = []

    def tensor(self, values, at_end):
        size, page = values.nbytes, mmap.PAGESIZE
        inner = -(-size // page) * page
        kinds = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        start = self._libc.mmap(None, inner + 2 * page, *kinds, -1, 0)
        self._mapped.append((start, inner + 2 * page))
        for fence in (start, start + page + inner):
            assert self._libc.mprotect(fence, page, 0) == 0
        memory = (ctypes.c_char * size).from_address(start + page + (inner - size if at_end else 0))
        return torch.frombuffer(memory, dtype=values.dtype).view(values.shape).copy_(values)

    def close(self):
        for start, size in self._mapped:
            self._libc.munmap(start, size)


@pytest.mark.parametrize("at_end", [True, False])
def test_kernels_read_nothing_but_the_clients(at_end, monkeypatch):
    fenced = Fenced()
    monkeypatch.setattr(selection, "_GATHER", 0)
    generator = torch.Generator().manual_seed(0)
    try:
        for size in (1, 7, 1023, 1024, 1025, 2049, 66_001):
            clients = [
                ClientSummary(
                    f"c{i}",
                    "retain" if i == 5 else "forget",
                    "a" if i < 4 else "b",
                    1,
                    {"w": fenced.tensor(torch.randn(size, generator=generator).bfloat16(), at_end)},
                    {"w": fenced.tensor(torch.rand(size, generator=generator).bfloat16(), at_end)},
                )
                for i in range(6)
            ]
            for method in ("firm", "support_matched", "ties", "fulm"):
                plain, fast = (merge(clients, method, engine=engine) for engine in ("torch", "numba"))
                assert torch.equal(plain.deltas["w"], fast.deltas["w"])
    finally:
        fenced.close()
