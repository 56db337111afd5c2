"""Barycentre-aware centring (BAC): groups whose mean embedding is near the mean of all data.

FedSGT, section 4.1, gives the idea (fill the group furthest from the global mean with the slice that
brings it nearest); the details of its appendix are not in the text we have, so the fill below is
followed by exchanges until none lowers the objective.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedforget.errors import PlanError
from fedforget.sequences.groups import assign, clients_of, collect
from fedforget.sequences.participation import Ints, count, group_sizes
from fedforget.sequences.slices import AnySlice, ClientBudget, budgets, in_order

Floats = NDArray[np.float64]

_TOLERANCE = 1e-12  # of the slices' mean squared distance from the global mean: what counts as an improvement


def barycentre_groups(
    slices: Iterable[AnySlice],
    embeddings: Mapping[AnySlice, ArrayLike],
    num_groups: int,
    seed: int,
    client_budget: ClientBudget = None,
) -> list[list[AnySlice]]:
    """Group slices so that each group's mean embedding is close to the global one.

    Parameters
    ----------
    slices : iterable of Slice
        All slices of all clients.
    embeddings : mapping of Slice to array, shape [d]
        Mean embedding of each slice's records, from a model that was *not* trained on them.
    num_groups, seed, client_budget
        As for :func:`~fedforget.sequences.balanced_groups`, whose grouping is the start.

    Returns
    -------
    list of list of Slice
        As for ``balanced_groups``; :func:`barycentre_objective` is at most that grouping's.

    Raises
    ------
    PlanError
        As for ``balanced_groups``; or an embedding is missing, not finite or of another length.

    Notes
    -----
    The grouping depends on the data. After a deletion, serving is exact with respect to the grouping
    *kept as it is*: retraining on the remaining data that grouped it afresh could group it otherwise.
    Slices count equally in a mean, whatever their sizes, so that sizes play no part.
    """
    ordered = in_order(slices)
    points = _points(ordered, embeddings)
    points -= points.mean(axis=0)
    start = assign(ordered, num_groups, seed, client_budget)
    names, client = clients_of(ordered)
    limits = budgets(names, client_budget, num_groups)
    budget = np.array([limits[name] for name in names], dtype=np.int64)
    filled = _fill(points, client, budget, group_sizes(len(ordered), num_groups))
    # With budgets, the fill can leave a slice that fits nowhere; the random grouping is then the only start.
    starts = [start] if filled is None else [start, filled]
    improved = [_exchange(points, client, budget, group.copy(), num_groups) for group in starts]
    best = min([*improved, start], key=lambda group: _objective(points, group, num_groups))
    return collect(ordered, best, num_groups)


def barycentre_objective(
    groups: Sequence[Sequence[AnySlice]], embeddings: Mapping[AnySlice, ArrayLike]
) -> float:
    """Return problem (1)'s objective: the sum of squared distances of group means to the global mean.

    Parameters
    ----------
    groups : sequence of sequences of Slice
        None of them empty.
    embeddings : mapping of Slice to array, shape [d]

    Raises
    ------
    PlanError
        A group is empty, or an embedding is missing, not finite or of another length.
    """
    if not groups or not all(groups):
        raise PlanError("groups: there is an empty group, which has no mean")
    ordered = [item for group in groups for item in group]
    points = _points(ordered, embeddings)
    points -= points.mean(axis=0)
    group = np.repeat(np.arange(len(groups)), [len(members) for members in groups])
    return _objective(points, group, len(groups))


def _points(ordered: list[AnySlice], embeddings: Mapping[AnySlice, ArrayLike]) -> Floats:
    rows: list[Floats] = []
    for item in ordered:
        if item not in embeddings:
            raise PlanError(f"embeddings: client {item[0]!r}, slice {item[1]!r} has none")
        row = np.asarray(embeddings[item], dtype=np.float64)
        if row.ndim != 1 or (rows and row.shape != rows[0].shape):
            raise PlanError(
                f"embeddings: client {item[0]!r}, slice {item[1]!r} has shape {row.shape}; "
                f"expected {rows[0].shape if rows else 'one vector'}"
            )
        if not np.isfinite(row).all():
            raise PlanError(f"embeddings: client {item[0]!r}, slice {item[1]!r} holds NaN or infinite values")
        rows.append(row)
    return np.stack(rows)


def _means(points: Floats, group: Ints, num_groups: int) -> Floats:
    sums = np.zeros((num_groups, points.shape[1]))
    np.add.at(sums, group, points)
    return np.asarray(sums / np.bincount(group, minlength=num_groups)[:, None])


def _objective(points: Floats, group: Ints, num_groups: int) -> float:
    return float((_means(points, group, num_groups) ** 2).sum())


def _fill(points: Floats, client: Ints, budget: Ints, sizes: Ints) -> Ints | None:
    """Fill the group furthest away with the slice that brings it nearest; None in a dead end."""
    num_groups = len(sizes)
    group = np.full(len(points), -1, dtype=np.int64)
    sums = np.zeros((num_groups, points.shape[1]))
    members = np.zeros(num_groups, dtype=np.int64)
    counts = np.zeros((len(budget), num_groups), dtype=np.int64)
    for _ in range(len(points)):
        # An empty group has no mean yet, so empty groups come first.
        distance = np.where(members > 0, ((sums / np.maximum(members, 1)[:, None]) ** 2).sum(axis=1), np.inf)
        distance[members >= sizes] = -np.inf
        free = group < 0
        for g in np.argsort(-distance, kind="stable").tolist():
            if members[g] >= sizes[g]:
                return None
            allowed = np.flatnonzero(
                free & ((counts[client, g] > 0) | ((counts > 0).sum(axis=1) < budget)[client])
            )
            if allowed.size:
                break
        else:
            return None
        after = ((sums[g] + points[allowed]) ** 2).sum(axis=1)
        chosen = int(allowed[np.argmin(after)])
        group[chosen] = g
        sums[g] += points[chosen]
        members[g] += 1
        counts[client[chosen], g] += 1
    return group


def _exchange(points: Floats, client: Ints, budget: Ints, group: Ints, num_groups: int) -> Ints:
    """Exchange pairs of slices while that lowers the objective, in place; groups far from the mean first."""
    threshold = _TOLERANCE * float((points**2).sum(axis=1).mean())
    size = np.bincount(group, minlength=num_groups).astype(np.float64)
    counts = count(client, group, len(budget), num_groups)
    # Every exchange lowers the objective, so this ends; the bound keeps the time polynomial.
    for _ in range(20 * len(points)):
        means = _means(points, group, num_groups)
        for g in np.argsort(-(means**2).sum(axis=1), kind="stable").tolist():
            ours, others = np.flatnonzero(group == g), np.flatnonzero(group != g)
            if not others.size:
                return group
            change = _change(points, means, size, g, ours, others, group[others])
            change[~_allowed(counts, budget, client, g, ours, others, group[others])] = np.inf
            a, b = np.unravel_index(int(np.argmin(change)), change.shape)
            if change[a, b] < -threshold:
                break
        else:
            return group
        mine, theirs = int(ours[a]), int(others[b])
        h = int(group[theirs])
        group[mine], group[theirs] = h, g
        counts[client[mine], [g, h]] += [-1, 1]
        counts[client[theirs], [h, g]] += [-1, 1]
    return group


def _change(points: Floats, means: Floats, size: Floats, g: int, ours: Ints, others: Ints, h: Ints) -> Floats:
    """Return the change in the objective when ``ours[a]`` and ``others[b]`` change places; shape [a, b].

    With delta = x_b - x_a, the mean of g moves by delta / n_g and that of h by -delta / n_h.
    """
    a, b = points[ours], points[others]
    squared = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :] - 2.0 * a @ b.T
    along_g = (b @ means[g])[None, :] - (a @ means[g])[:, None]
    along_h = (b * means[h]).sum(axis=1)[None, :] - a @ means[h].T
    n_g, n_h = size[g], size[h][None, :]
    return np.asarray(2.0 * along_g / n_g - 2.0 * along_h / n_h + squared * (1.0 / n_g**2 + 1.0 / n_h**2))


def _allowed(
    counts: Ints, budget: Ints, client: Ints, g: int, ours: Ints, others: Ints, h: Ints
) -> NDArray[np.bool_]:
    """Return which exchanges leave both clients within their budgets; shape [a, b]."""
    i, j = client[ours], client[others]
    degree = (counts > 0).sum(axis=1)
    after_i = degree[i][:, None] - (counts[i, g] == 1)[:, None] + (counts[i][:, h] == 0)
    after_j = degree[j] - (counts[j, h] == 1) + (counts[j, g] == 0)
    same = i[:, None] == j[None, :]
    return np.asarray(same | ((after_i <= budget[i][:, None]) & (after_j <= budget[j])[None, :]))
