"""Merging at scale: this library, naive torch and peers side by side on the same tensors.

    python benchmarks/merging.py                            4M coordinates per client: a minute
    python benchmarks/merging.py --sizes 3x4096x14336       FIRM's WMDP shape, 58.7M coordinates per tensor
    python benchmarks/merging.py --sizes 1x1024x1024 3x4096x14336 18x4096x14336 --lora 16 --repeats 1
                                                            up to 1.06G coordinates per client, from disk
    python benchmarks/merging.py --engines ours mergekit --mergekit MERGEKIT/bin/python --methods ties

Every cell runs in a process of its own, with the engines interleaved round after round; medians are
printed. ``ours`` is the plain engine, ``numba`` the optional one. A cell that took more than a minute is not
repeated. Clients' files are written once, before anything is timed, and are in the page cache where they fit;
from the fourth tensor on they hold the values of the first three again. CPU seconds are those of all threads,
user and system. Memory is the peak of the process over what it held before the merge, and in all. Ours reads
from disk and hands over tensor by tensor, as the server does; the others get their inputs in memory, which
counts only in all. The last column is the least traffic, every input read and every output written once, over
the wall time, as a share of the bandwidth measured at the start. mergekit runs in its own environment, given
by its python.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import shutil
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
from measuring import measure
from peers import ALPHA, DENSITY, PEERS, Work
from torch import Tensor

from fedforget.merging import merge_tensors
from fedforget.summaries import ClientSummary

ROLES = [("forget", "bio")] * 3 + [("forget", "cyber")] * 3 + [("retain", "general")]
METHODS = ["firm", "firm-projected", "ties", "fulm", "avg", "sum"]
# Seconds of wall time from which a cell is measured once.
_LONG = 60.0


def main() -> None:
    """Run one cell where asked for it, else all of them, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["2x1024x2048"], help="tensors x rows x columns, each")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lora", type=int, default=0, help="rank of the task vectors; 0 sends them dense")
    parser.add_argument("--engines", nargs="+", default=["ours", "numba", "naive", "peft"])
    parser.add_argument(
        "--methods", nargs="+", default=["firm", "firm-projected", "ties", "fulm", "avg", "sum"]
    )
    parser.add_argument("--mergekit", type=Path, help="python of an environment with mergekit")
    parser.add_argument("--folder", type=Path, help="where clients are kept; by default a temporary folder")
    parser.add_argument("--cell", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.cell:
        clients = [ClientSummary.load(path) for path in sorted(args.folder.iterdir())]
        print(json.dumps(measure(ENGINES[args.cell[0]][args.cell[1]](clients))))
        return
    bandwidth = memory_bandwidth(args.threads)
    print(
        f"{len(ROLES)} clients, bf16{f', task vectors as factors of rank {args.lora}' if args.lora else ''}; "
        f"{args.threads} threads; median of {args.repeats}; memory bandwidth {bandwidth / 1e9:.1f} GB/s\n"
    )
    print(
        "| tensors | coordinates | method | engine | runs | CPU s | wall s | peak MB over what was held "
        "| peak MB in all | share of bandwidth |"
    )
    print(f"| --- | ---: | --- | --- |{' ---: |' * 6}")
    with tempfile.TemporaryDirectory() as temporary:
        for size in args.sizes:
            folder = (args.folder or Path(temporary)) / size
            write_clients(folder, *_numbers(size), args.lora)
            rows(args, size, folder, bandwidth)
            if not args.folder:
                shutil.rmtree(folder)


def _numbers(size: str) -> tuple[int, int, int]:
    tensors, height, width = (int(number) for number in size.split("x"))
    return tensors, height, width


def rows(args: argparse.Namespace, size: str, folder: Path, bandwidth: float) -> None:
    """Time every engine on every method, interleaved, and print medians."""
    cells = [(e, m) for m in args.methods for e in args.engines if m in ENGINES[e]]
    found: dict[tuple[str, str], list[dict[str, float]]] = {one: [] for one in cells}
    for _ in range(args.repeats):
        for one, runs in found.items():
            if not runs or runs[-1]["wall"] < _LONG:
                runs.append(in_process(args, folder, one))
    tensors, height, width = _numbers(size)
    d = tensors * height * width
    for (engine, name), runs in found.items():
        cpu, wall, peak, held = (
            statistics.median(run[key] for run in runs) for key in ("cpu", "wall", "peak", "held")
        )
        share = traffic(name, d, tensors * (height + width) * args.lora) / wall / bandwidth
        print(
            f"| {tensors} x {height} x {width} | {d / 1e6:.1f}M | {name} | {engine} | {len(runs)} "
            f"| {cpu:.2f} | {wall:.2f} | {peak:.0f} | {held:.0f} | {share:.0%} |",
            flush=True,
        )


def traffic(name: str, d: int, factors: int) -> float:
    """Bytes that a merge must move at least: every input read once, the output written once."""
    clients = len(ROLES) - 1 if name in ("ties", "sum") else len(ROLES)
    return 2.0 * (clients * (factors or d) + (len(ROLES) * d if name.startswith("firm") else 0) + d)


def in_process(args: argparse.Namespace, folder: Path, one: tuple[str, str]) -> dict[str, float]:
    """Run one cell in a new process."""
    command = [sys.executable, __file__, "--cell", *one, "--folder", str(folder)]
    command += ["--threads", str(args.threads)]
    if one[0] == "mergekit":
        script = Path(__file__).with_name("mergekit_ties.py")
        command = [str(args.mergekit), str(script), str(folder), str(DENSITY), str(args.threads)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads), "MKL_NUM_THREADS": str(args.threads)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(one)} failed:\n{done.stderr[-2000:]}")
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


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
            name = _name(t)
            if t >= 3:
                deltas[name], fishers[name] = deltas[_name(t % 3)], fishers[_name(t % 3)]
                continue
            if rank:
                A, B = (torch.randn(s, generator=generator) for s in ((rank, columns), (rows, rank)))
                deltas[name] = LoraFactors((A * 1e-2).bfloat16(), (B * 1e-2).bfloat16(), 2.0)
            else:
                deltas[name] = (torch.randn(rows, columns, generator=generator) * 1e-3).bfloat16()
            spread = torch.randn(rows, columns, generator=generator).mul_(2.0).exp_()
            fishers[name] = spread.mul_(1e-9).bfloat16()
        ClientSummary(f"client-{i}", role, domain, 1, deltas, fishers).save(folder / f"client-{i}")


def _name(t: int) -> str:
    return f"model.layers.{t:02d}.mlp.down_proj.weight"


def ours(method: str, **parameters: Any) -> Work:
    """Stream the merge from disk and drop each tensor as it is ready."""

    def prepare(clients: list[ClientSummary]) -> Callable[[], None]:
        def work(some: list[ClientSummary] = clients) -> None:
            collections.deque(merge_tensors(some, method, **parameters), maxlen=0)

        if parameters["engine"] == "numba":  # compiled before the clock runs
            tiny = torch.ones(2, 2).bfloat16()
            work([ClientSummary(f"{i}", *role, 1, {"w": tiny}, {"w": tiny}) for i, role in enumerate(ROLES)])
        return work

    return prepare


def _engine(engine: str) -> dict[str, Work]:
    return {
        "firm": ours("firm", alpha=ALPHA, engine=engine),
        "firm-projected": ours("firm", alpha=ALPHA, epsilon=1e-5, engine=engine),
        "ties": ours("ties", density=DENSITY, engine=engine),
        "fulm": ours("fulm", density=DENSITY, engine=engine),
        "dare": ours("dare", drop=0.9, engine=engine),
        "avg": ours("avg", engine=engine),
        "sum": ours("sum", engine=engine),
    }


ENGINES: dict[str, dict[str, Work]] = {
    "ours": _engine("torch"),
    "numba": _engine("numba") if find_spec("numba") else {},
    **PEERS,
    "mergekit": {"ties": lambda clients: lambda: None},  # measured by its own script
}


if __name__ == "__main__":
    main()
