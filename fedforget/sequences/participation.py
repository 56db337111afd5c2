"""Balanced groups in which no client takes part in more groups than its budget: FedSGT, problem (1).

Only counts matter here: ``counts[i, g]``, the slices of client i in group g. Which tables of counts
exist, given the clients' slices, the groups' sizes and the budgets, is a bin-packing question (every
budget 1 is bin packing itself), so there is no fast test for all cases. A local search answers the
ordinary ones and keeps the grouping close to the random one; a packing heuristic answers many of the
tight ones; an integer program decides the rest, and alone says that there is no grouping.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from fedforget.errors import PlanError

Ints = NDArray[np.int64]

_NODE_LIMIT = 1_000  # of branch and bound; a count of nodes, unlike seconds, gives the same answer anywhere
_ROUNDING = 1e-6
_NOISE = 0.05
_PACKINGS = 50
_TAKE = 0.8  # how often a client that fits is taken: below 1, so that packings differ


def group_sizes(num_slices: int, num_groups: int) -> Ints:
    """Return the size of each group: ceil(M/L) for the first M mod L groups, floor(M/L) for the rest."""
    small, larger = divmod(num_slices, num_groups)
    return np.array([small + 1] * larger + [small] * (num_groups - larger), dtype=np.int64)


def count(client: Ints, group: Ints, num_clients: int, num_groups: int) -> Ints:
    """Return the slices of each client in each group, shape ``[num_clients, num_groups]``."""
    table = np.zeros((num_clients, num_groups), dtype=np.int64)
    np.add.at(table, (client, group), 1)
    return table


def misplaced(counts: Ints, budget: Ints) -> Ints:
    """Return, per row, the slices outside the row's ``budget`` fullest groups; 0 where the budget is met.

    Parameters
    ----------
    counts : array of int, shape [n, L]
    budget : array of int, shape [n]
    """
    descending = -np.sort(-counts, axis=1)
    beyond = np.arange(counts.shape[1])[None, :] >= budget[:, None]
    return np.asarray((descending * beyond).sum(axis=1), dtype=np.int64)


def keep_within(group: Ints, client: Ints, budget: Ints, rng: np.random.Generator) -> bool:
    """Exchange slices between groups, in place, until every client is within its budget.

    Each step moves one misplaced slice to one of its client's fullest groups, in exchange for the
    slice that this harms least (a random one with probability 0.05, to leave dead ends). The sizes
    of the groups never change.

    Parameters
    ----------
    group, client : array of int, shape [M]
        Group and client of each slice; ``group`` is changed.
    budget : array of int, shape [num_clients]

    Returns
    -------
    bool
        Whether the budgets are met. False decides nothing: see :func:`exact_counts`.
    """
    num_groups = int(group.max()) + 1
    counts = count(client, group, len(budget), num_groups)
    wrong = misplaced(counts, budget)
    for _ in range(200 + 4 * len(group)):
        if not wrong.any():
            return True
        i = int(rng.choice(np.flatnonzero(wrong)))
        fullest = np.argsort(-(counts[i] + 0.5 * rng.random(num_groups)))[: budget[i]]
        inside = np.isin(group, fullest)
        out = int(rng.choice(np.flatnonzero((client == i) & ~inside)))
        candidates = np.flatnonzero(inside & (client != i))
        if not candidates.size:
            return False
        source = int(group[out])
        moved = counts[client[candidates]]
        rows = np.arange(candidates.size)
        moved[rows, group[candidates]] -= 1
        moved[:, source] += 1
        harm = misplaced(moved, budget[client[candidates]]) - wrong[client[candidates]]
        best = rows if rng.random() < _NOISE else np.flatnonzero(harm == harm.min())
        back = int(candidates[rng.choice(best)])
        target, j = int(group[back]), int(client[back])
        group[out], group[back] = target, source
        counts[i, source] -= 1
        counts[i, target] += 1
        counts[j, target] -= 1
        counts[j, source] += 1
        wrong[[i, j]] = misplaced(counts[[i, j]], budget[[i, j]])
    return not wrong.any()


def packed_counts(slices: Ints, sizes: Ints, budget: Ints, rng: np.random.Generator) -> Ints | None:
    """Fill one group after another with whole clients, and cut a client only where that is needed.

    This is for budgets near 1, where exchanging single slices leads nowhere and the integer program
    takes long. Each group is filled exactly, by subset sums over what the clients have left, large
    clients first; where no subset fits, one client that may still be in a further group fills the gap.

    Parameters
    ----------
    slices, sizes, budget
        As for :func:`exact_counts`.

    Returns
    -------
    array of int, shape [N, L], or None
        None decides nothing.
    """
    for _ in range(_PACKINGS):
        counts = _pack_once(slices, sizes, budget, rng)
        if counts is not None:
            return counts
    return None


def _pack_once(slices: Ints, sizes: Ints, budget: Ints, rng: np.random.Generator) -> Ints | None:
    left, more = slices.tolist(), budget.tolist()
    counts = np.zeros((len(left), len(sizes)), dtype=np.int64)
    for g, room in enumerate(sizes.tolist()):
        jitter = rng.random(len(left))
        by_size = sorted((i for i in range(len(left)) if left[i]), key=lambda i: (-left[i], jitter[i]))
        cut = next((i for i in by_size if left[i] > room and more[i] > 1), None)
        fills: dict[int, int] = {}
        if cut is not None:
            fills[cut] = room
        else:
            whole = [i for i in by_size if left[i] <= room]
            sums = [1]  # bit s of sums[k]: the last k of them, or some of those, hold s slices in all
            for i in reversed(whole):
                sums.append(sums[-1] | sums[-1] << left[i])
            goal = (sums[-1] & ((2 << room) - 1)).bit_length() - 1
            gap = room - goal
            for k, i in enumerate(whole):
                after = sums[len(whole) - k - 1]
                fits = left[i] <= goal and after >> (goal - left[i]) & 1
                if fits and (rng.random() < _TAKE or not after >> goal & 1):
                    fills[i] = left[i]
                    goal -= left[i]
            if gap:
                cut = next((i for i in by_size if i not in fills and left[i] > gap and more[i] > 1), None)
                if cut is None:
                    return None
                fills[cut] = gap
        for i, number in fills.items():
            counts[i, g] = number
            left[i] -= number
            more[i] -= 1
    return counts


def exact_counts(slices: Ints, sizes: Ints, budget: Ints, names: Sequence[Hashable]) -> Ints:
    """Find counts within the budgets by integer programming, or prove that there are none.

    The program lowers the total by which budgets would have to be raised; the budgets can be met
    if and only if the least such total is 0, and where it is not, a solution says whose to raise.

    Parameters
    ----------
    slices : array of int, shape [N]
        Slices of each client.
    sizes : array of int, shape [L]
        Slices of each group; they sum to the same M.
    budget : array of int, shape [N]
    names : sequence
        The clients, for the error.

    Returns
    -------
    array of int, shape [N, L]

    Raises
    ------
    PlanError
        The budgets cannot be met (names the clients and the budgets that would do), or branch and
        bound reached its limit of nodes undecided, which is then what the message says.
    """
    for k, name in enumerate(names):
        room = int(np.sort(sizes)[::-1][: budget[k]].sum())
        if slices[k] > room:
            raise PlanError(
                f"client_budget: client {name!r} has {slices[k]} slices, but {budget[k]} of "
                f"{len(sizes)} groups hold at most {room}; raise its budget, or declare fewer slices"
            )
    n, num_groups = len(slices), len(sizes)
    cells = n * num_groups
    i, g = (index.ravel() for index in np.indices((n, num_groups)))
    cell = np.arange(cells)
    most = np.minimum(slices[i], sizes[g])
    # Variables: counts x[i, g], then use y[i, g] in {0, 1}, then the raise t[i] of each budget.
    row_of_x = coo_array((np.ones(cells), (i, cell)), shape=(n, 2 * cells + n))
    column_of_x = coo_array((np.ones(cells), (g, cell)), shape=(num_groups, 2 * cells + n))
    used = coo_array(
        (np.r_[np.ones(cells), -most], (np.r_[cell, cell], np.r_[cell, cells + cell])),
        shape=(cells, 2 * cells + n),
    )
    groups_of = coo_array(
        (
            np.r_[np.ones(cells), -np.ones(n)],
            (np.r_[i, np.arange(n)], np.r_[cells + cell, 2 * cells + np.arange(n)]),
        ),
        shape=(n, 2 * cells + n),
    )
    solution = milp(
        np.r_[np.zeros(2 * cells), np.ones(n)],
        integrality=np.ones(2 * cells + n),
        bounds=Bounds(0, np.r_[most, np.ones(cells), num_groups - budget]),
        constraints=[
            LinearConstraint(row_of_x, slices, slices),
            LinearConstraint(column_of_x, sizes, sizes),
            LinearConstraint(used, -np.inf, 0),
            LinearConstraint(groups_of, -np.inf, budget),
        ],
        options={"node_limit": _NODE_LIMIT},
    )
    if solution.x is not None:
        counts: Ints = np.rint(solution.x[:cells]).astype(np.int64).reshape(n, num_groups)
        sums_hold = (counts.sum(axis=1) == slices).all() and (counts.sum(axis=0) == sizes).all()
        if sums_hold and not misplaced(counts, budget).any():
            return counts
    # A positive lower bound on the total raise is the proof, be its minimum found or not.
    ruled_out = solution.mip_dual_bound is not None and solution.mip_dual_bound > _ROUNDING
    if not ruled_out or solution.x is None:
        raise PlanError(
            "client_budget: no balanced grouping within the budgets was found, and the search stopped before "
            f"it could rule one out; raise the budget of client {names[int(np.argmax(slices / budget))]!r}, "
            "which has the most slices per group"
        )
    raises = np.rint(solution.x[2 * cells :]).astype(np.int64)
    needed = ", ".join(
        f"client {names[k]!r} from {budget[k]} to {budget[k] + raises[k]}"
        for k in np.flatnonzero(raises).tolist()
    )
    raise PlanError(
        "client_budget: groups of equal size cannot be formed, because the clients' slices do not fit "
        f"together within these budgets; it is enough to raise that of {needed}"
    )
