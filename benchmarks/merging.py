"""Merging at scale: this library, naive torch and peers side by side on the same tensors.

    python benchmarks/merging.py                            4M coordinates per client: a minute
    python benchmarks/merging.py --tensors 3 --rows 4096 --columns 14336 --repeats 3
                                                            FIRM's WMDP shape, 58.7M coordinates per tensor
    python benchmarks/merging.py --tensors 18 --rows 4096 --columns 14336 --engines ours --repeats 1
                                                            1.06G coordinates per client, from disk

Every cell runs in a process of its own, with the engines interleaved round after round; medians are
printed. ``ours`` is the plain engine, ``numba`` the optional one (for dense clients). Clients' files are
written once, before anything is timed, and are in the page cache where they fit. CPU seconds are those of
all threads, user and system. Memory is the peak of the process over what it held before the merge. Ours reads
from disk and hands over tensor by tensor, as the server does; the others get their inputs in memory, which is
not counted. The last column is the least traffic, every input read and every output written once, over the
wall time, as a share of the bandwidth measured at the start.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedforget.merging import kept_count, merge_tensors
from fedforget.summaries import ClientSummary

ROLES = [("forget", "bio")] * 3 + [("forget", "cyber")] * 3 + [("retain", "general")]
ALPHA, DENSITY = 0.1, 0.3


def main() -> None:
    """Run one cell where asked for it, else all of them, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tensors", type=int, default=2)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--columns", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lora", type=int, default=0, help="rank of the task vectors; 0 sends them dense")
    parser.add_argument("--engines", nargs="+", default=["ours", "numba", "naive", "peft"])
    parser.add_argument("--methods", nargs="+", default=["firm", "firm-projected", "ties", "fulm", "avg"])
    parser.add_argument("--folder", type=Path, help="where clients are kept; by default a temporary folder")
    parser.add_argument("--cell", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.cell:
        print(json.dumps(cell(*args.cell, args.folder)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary) / "clients"
        write_clients(folder, args.tensors, args.rows, args.columns, args.lora)
        table(args, folder)


def table(args: argparse.Namespace, folder: Path) -> None:
    """Time every engine on every method, interleaved, and print medians."""
    cells = [(e, m) for m in args.methods for e in args.engines if m in ENGINES[e]]
    found: dict[tuple[str, str], list[dict[str, float]]] = {one: [] for one in cells}
    bandwidth = memory_bandwidth(args.threads)
    for _ in range(args.repeats):
        for one in cells:
            found[one].append(in_process(args, folder, one))
    d = args.tensors * args.rows * args.columns
    print(
        f"{args.tensors} x {args.rows} x {args.columns} = {d / 1e6:.1f}M coordinates per client, "
        f"{len(ROLES)} clients, bf16{f', factors of rank {args.lora}' if args.lora else ''}; "
        f"{args.threads} threads; median of {args.repeats}; memory bandwidth {bandwidth / 1e9:.1f} GB/s\n"
    )
    print("| method | engine | CPU s | wall s | peak MB over inputs | share of bandwidth |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for (engine, name), runs in found.items():
        cpu, wall, peak = (statistics.median(run[key] for run in runs) for key in ("cpu", "wall", "peak"))
        share = traffic(name, d, args) / wall / bandwidth
        print(f"| {name} | {engine} | {cpu:.2f} | {wall:.2f} | {peak:.0f} | {share:.0%} |")


def traffic(name: str, d: int, args: argparse.Namespace) -> float:
    """Bytes that a merge must move at least: every input read once, the output written once."""
    delta = d / args.columns / args.rows * args.lora * (args.rows + args.columns) if args.lora else d
    clients = len(ROLES) - 1 if name == "ties" else len(ROLES)
    return 2.0 * (clients * delta + (len(ROLES) * d if name.startswith("firm") else 0) + d)


def in_process(args: argparse.Namespace, folder: Path, one: tuple[str, str]) -> dict[str, float]:
    """Run one cell in a new process."""
    command = [sys.executable, __file__, "--cell", *one, "--folder", str(folder)]
    command += ["--threads", str(args.threads)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads), "MKL_NUM_THREADS": str(args.threads)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(one)} failed:\n{done.stderr[-2000:]}")
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def cell(engine: str, name: str, folder: Path) -> dict[str, float]:
    """Measure one engine on one method in this process."""
    clients = [ClientSummary.load(path) for path in sorted(folder.iterdir())]
    work = ENGINES[engine][name](clients)
    before, cpu, wall = resident(), os.times(), time.perf_counter()
    work()
    after = os.times()
    return {
        "wall": time.perf_counter() - wall,
        "cpu": after.user - cpu.user + after.system - cpu.system,
        "peak": max(0.0, resident("VmHWM") - before) / 1e6,
    }


def resident(key: str = "VmRSS") -> float:
    """Bytes that the process holds, or held at most; the peak is set back before a measurement of it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    if key == "VmRSS":
        Path("/proc/self/clear_refs").write_text("5")
    return float(next(line for line in lines if line.startswith(key)).split()[1]) * 1024


def memory_bandwidth(threads: int) -> float:
    """Bytes per second of a copy between two buffers that no cache holds: read and write, best of five."""
    torch.set_num_threads(threads)
    source, target = torch.ones(1 << 26), torch.empty(1 << 26)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        target.copy_(source)
        best = min(best, time.perf_counter() - start)
    return 2 * source.nbytes / best


def write_clients(folder: Path, tensors: int, rows: int, columns: int, rank: int) -> None:
    """Write clients with normal task vectors and log-normal Fishers, where they are not there already."""
    from fedforget.summaries import LoraFactors

    for i, (role, domain) in enumerate(ROLES):
        if (folder / f"client-{i}").exists():
            continue
        generator = torch.Generator().manual_seed(i)
        deltas: dict[str, Any] = {}
        fishers: dict[str, Tensor] = {}
        for t in range(tensors):
            name = f"model.layers.{t:02d}.mlp.down_proj.weight"
            if rank:
                A, B = (torch.randn(s, generator=generator) for s in ((rank, columns), (rows, rank)))
                deltas[name] = LoraFactors((A * 1e-2).bfloat16(), (B * 1e-2).bfloat16(), 2.0)
            else:
                deltas[name] = (torch.randn(rows, columns, generator=generator) * 1e-3).bfloat16()
            spread = torch.randn(rows, columns, generator=generator).mul_(2.0).exp_()
            fishers[name] = spread.mul_(1e-9).bfloat16()
        ClientSummary(f"client-{i}", role, domain, 1, deltas, fishers).save(folder / f"client-{i}")


Work = Callable[[list[ClientSummary]], Callable[[], None]]


def ours(method: str, **parameters: Any) -> Work:
    """Stream the merge from disk and drop each tensor as it is ready."""

    def prepare(clients: list[ClientSummary]) -> Callable[[], None]:
        def work(some: list[ClientSummary] = clients) -> None:
            for _ in merge_tensors(some, method, **parameters):
                pass

        if parameters["engine"] == "numba":  # compiled before the clock runs
            work([_corner(client) for client in clients])
        return work

    return prepare


def _corner(client: ClientSummary) -> ClientSummary:
    name = next(iter(client.deltas))
    tensors = ({name: values[name][:2, :2].clone()} for values in (client.deltas, client.fisher))
    return ClientSummary(client.client_id, client.role, client.domain, 1, *tensors)


def in_memory(merge: Callable[[list[Tensor], list[Tensor]], Tensor]) -> Work:
    """Read every input first; then merge weight by weight and keep nothing."""

    def prepare(clients: list[ClientSummary]) -> Callable[[], None]:
        deltas = {name: [_dense(c.deltas[name]) for c in clients] for name in clients[0].deltas}
        fishers = {name: [c.fisher[name].clone() for c in clients] for name in deltas}

        def work() -> None:
            for name in deltas:
                merge(deltas[name], fishers[name])

        return work

    return prepare


def _dense(delta: Any) -> Tensor:
    tensor: Tensor = delta.clone() if isinstance(delta, Tensor) else delta.dense()
    return tensor


def naive_firm(deltas: list[Tensor], fishers: list[Tensor]) -> Tensor:
    """Equations (2) to (5) on whole fp32 tensors."""
    terms = []
    for groups in (([0, 1, 2], [3, 4, 5]), ([6],)):
        numerator: Any = 0.0
        denominator: Any = 0.0
        for members in groups:
            pooled = torch.stack([fishers[i].float() for i in members]).mean(0)
            weight = pooled / (pooled.max() + 1e-8)
            threshold = weight.flatten().topk(kept_count(weight.numel(), ALPHA)).values[-1]
            weight = torch.where(weight >= threshold, weight, 0.0)
            numerator = numerator + weight * torch.stack([deltas[i].float() for i in members]).mean(0)
            denominator = denominator + weight
        terms.append(numerator / (denominator + 1e-8))
    return (terms[0] + terms[1]).bfloat16()


def naive_ties(deltas: list[Tensor], fishers: list[Tensor]) -> Tensor:
    """TIES on whole fp32 tensors."""
    vectors = torch.stack([delta.float() for delta in deltas[:6]])
    for vector in vectors:
        threshold = vector.abs().flatten().topk(kept_count(vector.numel(), DENSITY)).values[-1]
        vector[vector.abs() < threshold] = 0.0
    agrees = vectors * torch.where(vectors.sum(0) < 0, -1.0, 1.0) > 0
    return ((vectors * agrees).sum(0) / agrees.sum(0).clamp(min=1)).bfloat16()


def naive_avg(deltas: list[Tensor], fishers: list[Tensor]) -> Tensor:
    """Mean of all clients."""
    return torch.stack([delta.float() for delta in deltas]).mean(0).bfloat16()


def peft_ties(deltas: list[Tensor], fishers: list[Tensor]) -> Tensor:
    """PEFT's TIES on the forget clients."""
    from peft.utils.merge_utils import ties

    merged: Tensor = ties([delta.float() for delta in deltas[:6]], torch.ones(6), DENSITY)
    return merged.bfloat16()


def peft_dare(deltas: list[Tensor], fishers: list[Tensor]) -> Tensor:
    """PEFT's DARE, a tenth kept, on all clients."""
    from peft.utils.merge_utils import dare_linear

    merged: Tensor = dare_linear([delta.float() for delta in deltas], torch.ones(len(deltas)), 0.1)
    return merged.bfloat16()


ENGINES: dict[str, dict[str, Work]] = {
    "ours": {
        "firm": ours("firm", alpha=ALPHA, engine="torch"),
        "firm-projected": ours("firm", alpha=ALPHA, epsilon=1e-5, engine="torch"),
        "ties": ours("ties", density=DENSITY, engine="torch"),
        "fulm": ours("fulm", density=DENSITY, engine="torch"),
        "dare": ours("dare", drop=0.9, engine="torch"),
        "avg": ours("avg", engine="torch"),
    },
    "numba": {
        "firm": ours("firm", alpha=ALPHA, engine="numba"),
        "firm-projected": ours("firm", alpha=ALPHA, epsilon=1e-5, engine="numba"),
    },
    "naive": {
        "firm": in_memory(naive_firm),
        "ties": in_memory(naive_ties),
        "avg": in_memory(naive_avg),
    },
    "peft": {"ties": in_memory(peft_ties), "dare": in_memory(peft_dare)} if find_spec("peft") else {},
}
if not find_spec("numba"):
    ENGINES["numba"] = {}


if __name__ == "__main__":
    main()
