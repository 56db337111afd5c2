"""Ways to spread examples over clients; all return indices, so they know nothing of the examples."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from fedforget.errors import DataError

_ATTEMPTS = 1000


def iid(n: int, num_shards: int, seed: int) -> list[list[int]]:
    """Cut a seeded permutation of ``range(n)`` into shards whose sizes differ by at most one.

    Parameters
    ----------
    n : int
        Number of items, at least 0.
    num_shards : int
        At least 1; shards beyond ``n`` are empty.
    seed : int
        Of the permutation.

    Returns
    -------
    list of list of int
        Disjoint, together ``range(n)``; the larger shards come first.
    """
    if num_shards < 1:
        raise DataError(f"{num_shards} shards asked for; give at least 1")
    order = np.random.default_rng(seed).permutation(n)
    return [[int(i) for i in shard] for shard in np.array_split(order, num_shards)]


def contiguous(n: int, num_shards: int) -> list[list[int]]:
    """Cut ``range(n)``, in its order, into shards whose sizes differ by at most one; larger ones first."""
    if num_shards < 1:
        raise DataError(f"{num_shards} shards asked for; give at least 1")
    return [[int(i) for i in shard] for shard in np.array_split(np.arange(n), num_shards)]


def dirichlet(
    labels: Sequence[Hashable], num_clients: int, alpha: float, seed: int, min_examples: int = 1
) -> list[list[int]]:
    """Spread each label over the clients in proportions drawn from a symmetric Dirichlet distribution.

    The usual label-skewed partition: for every label, ``p ~ Dirichlet(alpha, ..., alpha)``, and
    the label's items, permuted, are cut at the cumulative proportions. A draw that leaves a client
    with fewer than ``min_examples`` is drawn again.

    Parameters
    ----------
    labels : sequence of hashable
        One label per item.
    num_clients : int
        At least 1.
    alpha : float
        Concentration, positive; small values give each client few labels, large ones approach IID.
    seed : int
        Of all draws.
    min_examples : int
        What every client must get.

    Returns
    -------
    list of list of int
        One sorted list per client; disjoint, together ``range(len(labels))``.

    Raises
    ------
    DataError
        There are too few items for that many clients, or no draw gave each of them enough.
    """
    if num_clients < 1:
        raise DataError(f"{num_clients} clients asked for; give at least 1")
    if not 0.0 < alpha < float("inf"):
        raise DataError(f"the Dirichlet concentration alpha is {alpha}; give a positive number")
    if len(labels) < num_clients * min_examples:
        raise DataError(
            f"{len(labels)} examples cannot give {num_clients} clients {min_examples} each; "
            "use fewer clients or more data"
        )
    rng = np.random.default_rng(seed)
    by_label = by_domain(labels)
    for _ in range(_ATTEMPTS):
        clients: list[list[int]] = [[] for _ in range(num_clients)]
        for indices in by_label.values():
            shuffled = rng.permutation(indices)
            cumulative = np.cumsum(rng.dirichlet(np.full(num_clients, alpha)))[:-1]
            # A tiny alpha can underflow to 0/0 in the draw; such a draw is refused below.
            if not np.isfinite(cumulative).all():
                break
            cuts = np.rint(cumulative * len(shuffled)).astype(int).clip(0, len(shuffled))
            for client, part in zip(clients, np.split(shuffled, cuts), strict=True):
                client.extend(int(i) for i in part)
        complete = sum(map(len, clients)) == len(labels)
        if complete and min(map(len, clients)) >= min_examples:
            return [sorted(client) for client in clients]
    raise DataError(
        f"no Dirichlet({alpha}) draw out of {_ATTEMPTS} gave each of {num_clients} clients {min_examples} "
        "examples; raise alpha or use fewer clients"
    )


def by_domain(labels: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    """Group indices by label, in order of first appearance."""
    groups: dict[Hashable, list[int]] = {}
    for i, label in enumerate(labels):
        groups.setdefault(label, []).append(i)
    return groups
