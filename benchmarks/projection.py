"""The retention projection against its peers on the same problem: CPU seconds, passes, distance, budget.

    python benchmarks/projection.py --small        under half a minute on one core
    python benchmarks/projection.py                m = 1 to 128, up to 58.7M coordinates

The ways run in turn, several times, and medians are printed. Peers, over the whole tensor and cast at the
end: dense bisection in torch (one client), scipy's L-BFGS-B on the dual at its default tolerance, and SLSQP
on the primal, which needs a dense d x d matrix, where there are at most 200 coordinates. For several
clients the paper's increase-only routine runs too. A pass reads all Fishers once on the union of their
supports. ``over`` is the largest b_k / epsilon - 1 of what is delivered: positive means that a
budget is broken. ``excess`` is how much farther from the base it is than our update, in per cent; what
breaks its budget can be nearer.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from unittest import mock

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from fedforget.projection import FisherSupport, project
from fedforget.projection.problem import Problem

_SMALL = [(1, 2_000_000), (3, 300_000), (16, 100_000), (3, 100)]
_LARGE = [(1, 58_700_000), (3, 4_000_000), (16, 2_000_000), (64, 500_000), (128, 200_000), (3, 100)]
_ALPHA, _SHARE = 0.1, 0.3


def main() -> None:
    """Run the benchmark and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--small", action="store_true", help="smaller tensors, fewer repeats")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| m | coordinates | way | CPU s | passes | over | excess % |")
    print("| ---: | ---: | --- | ---: | ---: | ---: | ---: |")
    for m, d in _SMALL if args.small else _LARGE:
        _case(m, d, 1 if args.small else args.repeats)


def _case(m: int, d: int, repeats: int) -> None:
    base, fishers = _draw(m, d)
    epsilon = _SHARE * float(np.mean([_damage(base, one) for one in fishers]))
    ways = _ways(base, fishers, epsilon)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    updates: dict[str, Tensor] = {}
    for _ in range(repeats):
        for name, way in ways.items():
            started = time.process_time()
            updates[name] = way()
            seconds[name].append(time.process_time() - started)
    ours = _distance(updates["ours"], base)
    for name, update in updates.items():
        over = max(_damage(update, one) for one in fishers) / epsilon - 1.0
        passes = f"{_passes(base, fishers, epsilon):.1f}" if name == "ours" else ""
        excess = 100.0 * (_distance(update, base) / ours - 1.0)
        spent = statistics.median(seconds[name])
        print(f"| {m} | {d:,} | {name} | {spent:.3f} | {passes} | {over:.1e} | {excess:.3f} |", flush=True)


def _draw(m: int, d: int) -> tuple[Tensor, list[FisherSupport]]:
    draw = torch.Generator().manual_seed(0)
    base = (1e-3 * torch.randn(d, generator=draw)).bfloat16()
    fishers = []
    for _ in range(m):
        raw = torch.exp(2.0 * torch.randn(d, generator=draw)).bfloat16()
        keep = max(1, int(_ALPHA * d))
        bits = np.partition(raw.view(torch.int16).numpy(), d - keep)  # non-negative bf16 sorts as integers
        index = torch.nonzero(raw.view(torch.int16) >= int(bits[d - keep])).squeeze(1)
        fishers.append(FisherSupport(index, raw[index], float(raw.max())))
    return base, fishers


def _ways(base: Tensor, fishers: list[FisherSupport], epsilon: float) -> dict[str, Callable[[], Tensor]]:
    dense = [_dense(one, base.numel()) for one in fishers] if base.numel() * len(fishers) <= 6e7 else []
    ways: dict[str, Callable[[], Tensor]] = {"ours": lambda: project(base, fishers, epsilon).update}
    if len(fishers) == 1:
        ways["dense bisection"] = lambda: _bisection(base, dense[0], epsilon)
    elif base.numel() * len(fishers) <= 2e6:
        ways["increase-only"] = lambda: project(base, fishers, epsilon, "increase-only").update
    if dense:
        ways["L-BFGS-B on the dual"] = lambda: _lbfgs(base, dense, epsilon)
    if base.numel() <= 200:
        ways["SLSQP on the primal"] = lambda: _slsqp(base, dense, epsilon)
    return ways


def _bisection(base: Tensor, fisher: Tensor, epsilon: float) -> Tensor:
    x = base.double()

    def damage(multiplier: float) -> float:
        return 0.5 * float((fisher * (x / (1 + multiplier * fisher)).square()).sum())

    high = 1.0
    while damage(high) > epsilon:
        high *= 2
    low = 0.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if damage(middle) > epsilon else (low, middle)
    return (x / (1 + high * fisher)).to(base.dtype)


def _lbfgs(base: Tensor, fishers: list[Tensor], epsilon: float) -> Tensor:
    x, stacked = base.double(), torch.stack(fishers)

    def negative_dual(scaled: np.ndarray) -> tuple[float, np.ndarray]:
        shrink = 1 + torch.from_numpy(scaled / epsilon) @ stacked
        update = x / shrink
        values = 0.5 * (stacked @ update.square())
        dual = 0.5 * float((x * (x - update)).sum()) - float(scaled.sum())
        return -dual, 1.0 - (values / epsilon).numpy()

    start = np.full(len(fishers), epsilon)
    found = minimize(negative_dual, start, jac=True, method="L-BFGS-B", bounds=[(0, None)] * len(fishers))
    return (x / (1 + torch.from_numpy(found.x / epsilon) @ stacked)).to(base.dtype)


def _slsqp(base: Tensor, fishers: list[Tensor], epsilon: float) -> Tensor:
    size = float(base.double().abs().max())
    x = base.double().numpy() / size
    budgets = [
        {
            "type": "ineq",
            "fun": lambda y, f=f: 1 - 0.5 * np.sum(f * y * y) * size**2 / epsilon,
            "jac": lambda y, f=f: -f * y * size**2 / epsilon,
        }
        for f in (one.numpy() for one in fishers)
    ]
    found = minimize(
        lambda y: 0.5 * np.sum((y - x) ** 2),
        0.1 * x,
        jac=lambda y: y - x,
        method="SLSQP",
        constraints=budgets,
    )
    return torch.from_numpy(found.x * size).to(base.dtype)


def _passes(base: Tensor, fishers: list[FisherSupport], epsilon: float) -> float:
    blocks, read = Problem.blocks, [0]
    union = torch.unique(torch.cat([one.index for one in fishers])).numel()

    def counted(problem: Problem):  # type: ignore[no-untyped-def]
        read[0] += problem.fishers.shape[1]
        return blocks(problem)

    with mock.patch.object(Problem, "blocks", counted):
        project(base, fishers, epsilon)
    return 1.0 + read[0] / union  # the first sums the damages of the base


def _dense(fisher: FisherSupport, size: int) -> Tensor:
    full = torch.zeros(size, dtype=torch.float64)
    full[fisher.index] = fisher.values.double() / fisher.divisor
    return full


def _damage(update: Tensor, fisher: FisherSupport) -> float:
    terms = fisher.values.double() / fisher.divisor * update[fisher.index].double().square()
    return 0.5 * float(terms.sum())


def _distance(update: Tensor, base: Tensor) -> float:
    return float((update.double() - base.double()).norm())


if __name__ == "__main__":
    main()
