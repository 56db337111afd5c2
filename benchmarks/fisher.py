"""The Fisher diagonal of a few weights against a full backward pass per sequence: time and peak memory.

    python benchmarks/fisher.py --small                       a few seconds on one core
    python benchmarks/fisher.py                               a Llama of 12 blocks and width 512
    python benchmarks/fisher.py --dtype bf16 --device cuda --batch 1 8

Both ways run on the same randomly drawn model and sequences, in turn, several times; the medians
are printed, by the block that is selected. The naive way is ``loss.backward()`` with every parameter
requiring a gradient, reading off the gradients of the selected weights. Its result must be the same
to the bit, and is checked. Seconds are CPU seconds, on a GPU those of the wall. A peak is what
torch's allocator held above what was there before: on a CPU, read from the profiler's allocations
in a pass of its own; on a GPU, from the allocator.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from transformers import LlamaConfig, LlamaForCausalLM

from fedforget.fisher import empirical_fisher

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass
class Measured:
    """One way's figures."""

    seconds: float
    peak: int
    result: dict[str, Tensor]


def main() -> None:
    """Run the benchmark and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--small", action="store_true", help="6 blocks, width 128, 3 sequences of 64 tokens")
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batch", type=int, nargs="+", default=[1], help="sequences in one pass (fp32)")
    parser.add_argument("--recompute", action="store_true", help="ours computes activations again")
    parser.add_argument("--dtype", choices=_DTYPES, default="fp32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    if args.small:
        args.blocks, args.width, args.tokens, args.sequences, args.repeats = 6, 128, 64, 3, 3
    torch.set_num_threads(args.threads)
    model = _model(args.blocks, args.width, args.tokens).to(args.device, _DTYPES[args.dtype])
    draw = torch.Generator().manual_seed(1)
    lengths = [args.tokens - i * args.tokens // (2 * args.sequences) for i in range(args.sequences)]
    data = [torch.randint(3, 2048, (1, length), generator=draw) for length in lengths]
    weights = sum(parameter.nbytes for parameter in model.parameters())
    print(
        f"Llama, {args.blocks} blocks, width {args.width}, {args.dtype} ({_mb(weights)} MB), "
        f"{args.sequences} sequences of {min(lengths)} to {args.tokens} tokens, {args.device}, "
        f"{args.threads} threads; median of {args.repeats}"
    )
    print(
        f"{'selected down_proj':>20} {'batch':>5} {'naive s':>9} {'ours s':>9} {'ratio':>6} "
        f"{'naive MB':>9} {'ours MB':>9} {'share':>6}  result"
    )
    for label, blocks, targets in _selections(args.blocks):
        names = [f"model.layers.{block}.{target}.weight" for block in blocks for target in targets]
        for batch in args.batch:
            print(f"{label:>20} {batch:>5} {_compared(model, data, names, batch, args)}", flush=True)


def _model(blocks: int, width: int, tokens: int) -> nn.Module:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2048,
        hidden_size=width,
        intermediate_size=width * 7 // 2,
        num_hidden_layers=blocks,
        num_attention_heads=max(1, width // 64),
        num_key_value_heads=max(1, width // 64),
        max_position_embeddings=tokens,
    )
    return LlamaForCausalLM(config).eval().requires_grad_(False)


def _selections(blocks: int) -> Iterator[tuple[str, list[int], tuple[str, ...]]]:
    """Yield a label, blocks and projections.

    ``down_proj`` of the last block, a middle one, three from 1/6 of the depth as RMU trains, the first, all;
    then all seven projections of all blocks.
    """
    down = ("mlp.down_proj",)
    yield "last block", [blocks - 1], down
    yield "middle block", [blocks // 2], down
    start = blocks // 6
    yield f"blocks {start}-{start + 2}", [start, start + 1, start + 2], down
    yield "first block", [0], down
    yield "all blocks", list(range(blocks)), down
    attention = tuple(f"self_attn.{one}_proj" for one in "qkvo")
    yield "all, 7 projections", list(range(blocks)), (*attention, "mlp.gate_proj", "mlp.up_proj", *down)


def _compared(
    model: nn.Module, data: list[Tensor], names: list[str], batch: int, args: argparse.Namespace
) -> str:
    def ours() -> dict[str, Tensor]:
        given = [{"input_ids": ids} for ids in data]
        options = {"dtype": torch.float32, "batch": batch, "recompute": args.recompute}
        return empirical_fisher(model, given, names, len(data), **options)

    naive, fast = _measured(
        [lambda: _naive(model, data, names), ours], args.repeats, next(model.parameters()).device
    )
    off = max(float((fast.result[n] - naive.result[n]).norm() / naive.result[n].norm()) for n in names)
    same = "same bits" if off == 0.0 else f"off by {off:.1e}"
    return (
        f"{naive.seconds:9.3f} {fast.seconds:9.3f} {naive.seconds / fast.seconds:6.2f} "
        f"{_mb(naive.peak):>9} {_mb(fast.peak):>9} {fast.peak / naive.peak:6.2f}  {same}"
    )


def _naive(model: nn.Module, data: list[Tensor], names: list[str]) -> dict[str, Tensor]:
    parameters = dict(model.named_parameters())
    sums = {name: torch.zeros_like(parameters[name], dtype=torch.float32) for name in names}
    try:
        model.requires_grad_(True)
        for ids in data:
            model.zero_grad()
            on = ids.to(parameters[names[0]].device)
            model(input_ids=on, labels=on, use_cache=False).loss.backward()
            for name in names:
                gradient = parameters[name].grad
                assert gradient is not None
                sums[name].add_(gradient.float().square())
    finally:
        model.requires_grad_(False)
        model.zero_grad()
    return {name: (total / len(data)).cpu() for name, total in sums.items()}


def _measured(
    ways: list[Callable[[], dict[str, Tensor]]], repeats: int, device: torch.device
) -> list[Measured]:
    results = [way() for way in ways]  # warms up
    seconds: list[list[float]] = [[] for _ in ways]
    for _ in range(repeats):
        for taken, way in zip(seconds, ways, strict=True):
            _wait(device)
            started = _clock(device)
            way()
            _wait(device)
            taken.append(_clock(device) - started)
    return [
        Measured(statistics.median(taken), _peak(way, device), result)
        for taken, way, result in zip(seconds, ways, results, strict=True)
    ]


def _clock(device: torch.device) -> float:
    """Return seconds: of this process's CPUs, which other processes do not disturb; of the wall for a GPU."""
    return time.perf_counter() if device.type == "cuda" else time.process_time()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _peak(way: Callable[[], dict[str, Tensor]], device: torch.device) -> int:
    """Return the most that was allocated at once, above what was there before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        way()
        return int(torch.cuda.max_memory_allocated(device) - before)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        way()
    held, most = 0, 0
    for event in sorted(recorded.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def _mb(size: float) -> str:
    return f"{size / 1e6:.1f}"


if __name__ == "__main__":
    main()
