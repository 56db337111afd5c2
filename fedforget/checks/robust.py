"""What a configuration can get wrong about poisoned clients: ranges, and codecs that pooling rules out."""

from __future__ import annotations

from collections import Counter

from fedforget.checks.ranges import at_least, one_of, positive
from fedforget.config import RunConfig
from fedforget.merging import methods
from fedforget.robust.hardening import GEOMETRIC, TRIMMED, fewest

POOLS = ("mean", TRIMMED, GEOMETRIC)
# Exact for the mean of a domain's Fishers, or for none.
_PARTIAL = ("two-phase", "approximate-top")


def robust_problems(config: RunConfig) -> list[str]:
    """Return one sentence per value of ``robust`` out of range and per contradiction."""
    robust = config.robust
    problems = one_of("robust.check", robust.check, ("off", "warn", "refuse"))
    problems += positive("robust.threshold", robust.threshold)
    problems += one_of("robust.clip", robust.clip, ("none", "median"))
    problems += positive("robust.clip_factor", robust.clip_factor)
    problems += at_least("robust.trim", robust.trim, 1)
    problems += one_of("robust.pool", robust.pool, POOLS)
    return problems if problems or robust.pool == "mean" else _pooling(config)


def _pooling(config: RunConfig) -> list[str]:
    pool, method, fisher = config.robust.pool, config.merge.method, config.communication.fisher
    problems = []
    if method in methods() and not methods()[method].pools:
        pooling = ", ".join(sorted(name for name, one in methods().items() if one.pools))
        problems.append(
            f"robust.pool: method {method!r} does not pool by domain; leave it mean, or take one of {pooling}"
        )
    if fisher in _PARTIAL:
        problems.append(
            f"robust.pool: {pool} needs the whole Fisher of every pooled client, and communication.fisher "
            f"{fisher!r} sends a part that tells the mean at best; set it to exact or lossless"
        )
    sizes: Counter[str] = Counter()
    for group in config.clients:
        if group.role == "forget":
            sizes[group.domain] += group.count
    least = fewest(config.robust)
    problems += [
        f"robust.pool: {pool} needs at least {least} clients in a domain, and {domain!r} has {size}; add "
        "clients, or leave it mean"
        for domain, size in sorted(sizes.items())
        if 1 < size < least
    ]
    return problems
