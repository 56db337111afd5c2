"""What each option of ``robust`` withstands: attacks on a tiny synthetic federation; writes the tables.

    python benchmarks/attacks.py

Five clients share one forget domain, three retain clients hold another each. Honest clients of a group
agree but for noise of a tenth. One client of the five, or one retain client, is the attacker. The error is
the distance of the merged update from the one that the same federation gives without the attacker's change
and with plain means, relative to that one's norm. The damage is that to the honest retain clients, by their
own Fishers and relative to the budget, the largest over clients and tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedforget.defence_config import RobustConfig
from fedforget.merging import kept_count, merge
from fedforget.merging.kernels import top_normalised_
from fedforget.robust import Hardening, judge, measure
from fedforget.summaries import ClientSummary

SHAPES: dict[str, tuple[int, ...]] = {"a.weight": (40, 50), "b.weight": (30, 30)}
ALPHA, EPS0, EPSILON = 0.1, 1e-8, 0.05
FORGET, RETAIN = "forget-bio-0", "retain-0-0"
OPTIONS = {
    "mean": RobustConfig(check="off"),
    "clip": RobustConfig(check="off", clip="median", clip_factor=1.0),
    "trimmed mean": RobustConfig(check="off", pool="trimmed_mean"),
    "geometric median": RobustConfig(check="off", pool="geometric_median"),
    "clip + trimmed": RobustConfig(check="off", clip="median", clip_factor=1.0, pool="trimmed_mean"),
}

Clients = dict[str, ClientSummary]
Attack = Callable[[Clients], Clients]


def federation(seed: int = 0) -> Clients:
    """Honest clients by id."""
    draw = torch.Generator().manual_seed(seed)

    def normal(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=draw)

    groups = [("forget", "bio", 5), *(("retain", str(k), 1) for k in range(3))]
    found = {}
    general = {name: normal(shape) for name, shape in SHAPES.items()}
    for role, domain, count in groups:
        # Retain clients look for much the same task vector, each on its own places.
        centre = {n: general[n] if role == "retain" else normal(s) for n, s in SHAPES.items()}
        fisher = {name: normal(shape).mul(2.0).exp() for name, shape in SHAPES.items()}
        for i in range(count):
            client = f"{role}-{domain}-{i}"
            found[client] = ClientSummary(
                client,
                role,  # type: ignore[arg-type]
                domain,
                10,
                {name: one + 0.1 * normal(tuple(one.shape)) for name, one in centre.items()},
                {name: one * normal(tuple(one.shape)).mul(0.1).exp() for name, one in fisher.items()},
            )
    return found


def _changed(client: str, delta: float = 1.0, fisher: float = 1.0) -> Attack:
    def attack(clients: Clients) -> Clients:
        one = clients[client]
        poisoned = replace(
            one,
            deltas={name: delta * value for name, value in one.deltas.items()},  # type: ignore[operator]
            fisher={name: fisher * value for name, value in one.fisher.items()},  # type: ignore[operator]
        )
        return {**clients, client: poisoned}

    return attack


def _spike(client: str, usual_norm: bool = False) -> Attack:
    def attack(clients: Clients) -> Clients:
        one = clients[client]
        spiked = {}
        for name, value in one.fisher.items():
            assert isinstance(value, Tensor)
            spiked[name] = value.clone()
            spiked[name].view(-1)[0] = 1e15
            if usual_norm:
                spiked[name] *= float(value.norm()) / 1e15
        return {**clients, client: replace(one, fisher=spiked)}

    return attack


def _copied(delta: float) -> Attack:
    """Another retain client that copies one's summary, its task vector times ``delta``."""

    def attack(clients: Clients) -> Clients:
        one = clients[RETAIN]
        values = {name: delta * value for name, value in one.deltas.items()}  # type: ignore[operator]
        return {
            **clients,
            "retain-copy-0": replace(one, client_id="retain-copy-0", domain="copy", deltas=values),
        }

    return attack


ATTACKS: dict[str, Attack] = {
    "none": lambda clients: clients,
    "forget Fisher times 1e6": _changed(FORGET, fisher=1e6),
    "forget Fisher times 1e6, task vector flipped": _changed(FORGET, delta=-1.0, fisher=1e6),
    "one forget Fisher entry 1e15": _spike(FORGET),
    "forget task vector flipped": _changed(FORGET, delta=-1.0),
    "forget task vector flipped, times 100": _changed(FORGET, delta=-100.0),
    "forget task vector times 100": _changed(FORGET, delta=100.0),
    "retain Fisher times 1e6": _changed(RETAIN, fisher=1e6),
    "one retain Fisher entry 1e15": _spike(RETAIN),
    "the same, scaled to the usual norm": _spike(RETAIN, usual_norm=True),
    "retain task vector times 100": _changed(RETAIN, delta=100.0),
    "a retain client copied": _copied(1.0),
    "a retain client copied, task vector flipped": _copied(-1.0),
}


@dataclass(frozen=True)
class Outcome:
    """One attack under one option."""

    error: float
    damage: float


def merged(clients: Clients, robust: RobustConfig, epsilon: float) -> Mapping[str, Tensor]:
    """Merge as a run with this option would."""
    seen = Hardening(list(clients.values()), robust).for_method("firm")
    return merge(seen, "firm", alpha=ALPHA, eps0=EPS0, epsilon=epsilon).deltas


def outcome(attack: str, option: str, honest: Clients) -> Outcome:
    """Attack, merge and compare with the honest federation."""
    attacked, robust = ATTACKS[attack](honest), OPTIONS[option]
    wanted = merged(honest, OPTIONS["mean"], math.inf)
    found = merged(attacked, robust, math.inf)
    apart = math.sqrt(sum(float((found[n] - wanted[n]).double().square().sum()) for n in SHAPES))
    size = math.sqrt(sum(float(wanted[n].double().square().sum()) for n in SHAPES))
    return Outcome(apart / size, damage(merged(attacked, robust, EPSILON), honest))


def damage(update: Mapping[str, Tensor], honest: Clients) -> float:
    """Largest ``b_k / epsilon`` over the honest retain clients and tensors, equation (6)."""
    largest = 0.0
    for one in honest.values():
        for name in SHAPES if one.role == "retain" else ():
            fisher = one.fisher[name]
            assert isinstance(fisher, Tensor)
            flat = fisher.reshape(-1)
            threshold = float(flat.sort(descending=True).values[kept_count(flat.numel(), ALPHA) - 1])
            weights = top_normalised_(flat.clone(), float(flat.max()), threshold, EPS0).double()
            harm = 0.5 * float((weights * update[name].reshape(-1).double().square()).sum())
            largest = max(largest, harm / EPSILON)
    return largest


def told(attack: str, honest: Clients) -> list[str]:
    """Return the clients that the check names."""
    clients = list(ATTACKS[attack](honest).values())
    return sorted({one.client for one in judge(clients, measure(clients), 3.5).findings})


def tables() -> str:
    """Return both tables in Markdown."""
    honest = federation()
    results: dict[tuple[str, str], Outcome] = {
        (a, o): outcome(a, o, honest) for a in ATTACKS for o in OPTIONS
    }
    lines = [
        "| attack | check names | " + " | ".join(OPTIONS) + " |",
        "| --- | --- |" + " ---: |" * len(OPTIONS),
    ]
    for attack in ATTACKS:
        cells = [_number(results[attack, option].error) for option in OPTIONS]
        lines.append(_row([attack, ", ".join(told(attack, honest)) or "nobody", *cells]))
    lines += ["", "| attack | " + " | ".join(OPTIONS) + " |", "| --- |" + " ---: |" * len(OPTIONS)]
    for attack in ATTACKS:
        lines.append(_row([attack, *(_number(results[attack, option].damage) for option in OPTIONS)]))
    return "\n".join(lines) + "\n"


def _row(cells: list[Any]) -> str:
    return "| " + " | ".join(cells) + " |"


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


if __name__ == "__main__":
    print(tables(), end="")
