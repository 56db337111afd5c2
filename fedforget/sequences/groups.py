"""Randomised balanced grouping of client slices: FedSGT, section 4.1 and Algorithm 1."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import numpy as np

from fedforget.errors import PlanError
from fedforget.seeds import derive_seed
from fedforget.sequences.participation import (
    Ints,
    count,
    exact_counts,
    group_sizes,
    keep_within,
    misplaced,
    packed_counts,
)
from fedforget.sequences.slices import AnySlice, ClientBudget, budgets, in_order


def balanced_groups(
    slices: Iterable[AnySlice], num_groups: int, seed: int, client_budget: ClientBudget = None
) -> list[list[AnySlice]]:
    """Spread slices over groups at random, reading nothing but their indices.

    The slices are put in order, permuted with the seed and split evenly. If a client is then in
    more groups than its budget, slices change places until none is. Where that search ends without
    success, clients are packed as whole as they go, and where that fails too, an integer program finds
    a grouping or proves that there is none. A budget that the random grouping meets by itself changes
    nothing.

    Parameters
    ----------
    slices : iterable of Slice
        All slices of all clients, in any order (or bare ``(client, slice)`` pairs).
    num_groups : int
        L, from 1 to the number of slices M.
    seed : int
        The same slices and seed give the same groups.
    client_budget : int or mapping of client to int, optional
        B_i, the most groups that a client's slices may lie in. A hard limit.

    Returns
    -------
    list of list of Slice
        L groups of floor(M/L) or ceil(M/L) slices, each in order; every slice is in exactly one.

    Raises
    ------
    PlanError
        More groups than slices, malformed slices or budgets, or budgets that cannot be met together
        with equal sizes; names the client, and the budget that would do.

    Notes
    -----
    The groups depend on the set of slice indices, the seed and the budgets alone, not on sizes or
    contents, so deleting records from a slice leaves the grouping as it was.
    """
    ordered = in_order(slices)
    group = assign(ordered, num_groups, seed, client_budget)
    return collect(ordered, group, num_groups)


def assign(ordered: list[AnySlice], num_groups: int, seed: int, client_budget: ClientBudget) -> Ints:
    """Return the group of each slice, shape ``[M]``; see :func:`balanced_groups`."""
    check_num_groups(num_groups, len(ordered))
    sizes = group_sizes(len(ordered), num_groups)
    rng = np.random.default_rng(derive_seed(seed, "sequences", "groups"))
    group = np.empty(len(ordered), dtype=np.int64)
    group[rng.permutation(len(ordered))] = np.repeat(np.arange(num_groups), sizes)
    limits = budgets((item[0] for item in ordered), client_budget, num_groups)
    names, client = clients_of(ordered)
    budget = np.array([limits[name] for name in names], dtype=np.int64)
    if not misplaced(count(client, group, len(names), num_groups), budget).any():
        return group
    if not keep_within(group, client, budget, rng):
        per_client = np.bincount(client, minlength=len(names))
        counts = packed_counts(per_client, sizes, budget, rng)
        if counts is None:
            counts = exact_counts(per_client, sizes, budget, names)
        group = _deal(counts, client, rng)
    return group


def check_num_groups(num_groups: int, num_slices: int) -> None:
    """Raise ``PlanError`` unless 1 <= L <= M."""
    if num_groups < 1:
        raise PlanError(f"num_groups: {num_groups} is less than 1")
    if num_groups > num_slices:
        raise PlanError(
            f"num_groups: {num_groups} groups cannot be formed from {num_slices} slices; "
            "ask for fewer groups, or cut the clients' data into more slices"
        )


def clients_of(ordered: list[AnySlice]) -> tuple[list[Hashable], Ints]:
    """Return the clients in order, and the position in that list of each slice's client."""
    names: list[Hashable] = list(dict.fromkeys(item[0] for item in ordered))
    position = {name: i for i, name in enumerate(names)}
    return names, np.array([position[item[0]] for item in ordered], dtype=np.int64)


def collect(ordered: list[AnySlice], group: Ints, num_groups: int) -> list[list[AnySlice]]:
    """Return the slices of each group, in order."""
    groups: list[list[AnySlice]] = [[] for _ in range(num_groups)]
    for item, g in zip(ordered, group.tolist(), strict=True):
        groups[g].append(item)
    return groups


def _deal(counts: Ints, client: Ints, rng: np.random.Generator) -> Ints:
    """Choose slices to make up the counts; groups of one size, and slices of one client, are alike."""
    sizes = counts.sum(axis=0)
    for size in np.unique(sizes):
        same = np.flatnonzero(sizes == size)
        counts[:, same] = counts[:, rng.permutation(same)]
    group = np.empty(len(client), dtype=np.int64)
    for i, row in enumerate(counts):
        group[rng.permutation(np.flatnonzero(client == i))] = np.repeat(np.arange(len(row)), row)
    return group
