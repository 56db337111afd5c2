"""A plan for the ledger's tests, and modules of it."""

from __future__ import annotations

import hashlib

from fedforget.sequences.ledger import Ledger, Module

# Four groups, three clients; sequences share the prefix (0,).
GROUPS = [
    [("ann", 0, 10), ("bob", 0, 8)],
    [("ann", 1, 10), ("cat", 0, 5)],
    [("bob", 1, 8)],
    [("cat", 1, 5)],
]


SEQUENCES = [(0, 1, 2, 3), (0, 2, 1, 3), (3, 0, 1, 2), (1, 2, 3, 0)]


def record(ledger: Ledger, prefix: tuple[int, ...], content: str = "", data_key: str | None = None) -> Module:
    name = "-".join(map(str, prefix)) + content
    return ledger.record_module(
        prefix,
        data_key=data_key or ledger.data_key(prefix),
        sha256=hashlib.sha256(name.encode()).hexdigest(),
        path=f"modules/{name}.safetensors",
        participants=["bob", "ann"],
        examples=18 * len(prefix),
    )


def record_all(ledger: Ledger) -> set[tuple[int, ...]]:
    prefixes = {order[:i] for order in ledger.sequences() for i in range(1, len(order) + 1)}
    for prefix in sorted(prefixes):
        record(ledger, prefix)
    return prefixes
