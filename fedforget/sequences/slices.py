"""Slices: what the server knows of a client's data, which is that it exists and how much of it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from fedforget.errors import PlanError, nearest


class Slice(NamedTuple):
    """One slice of one client's data: the atomic unit of training and of grouping.

    It names data and holds none. Slices are immutable and ordered by client, then slice.

    Attributes
    ----------
    client_id : str
        The client that keeps the data.
    slice_id : int
        Which of the client's slices.
    size : int
        Records in the slice. Grouping never reads it: the groups must stay as they are when
        records are deleted.
    """

    client_id: str
    slice_id: int
    size: int = 1


# The grouping reads the first two items of a slice, its index pair (i, j) in the paper, and hands
# back what it was given; so a bare (client, slice) pair serves as well as a Slice.
AnySlice = TypeVar("AnySlice", bound=tuple[Any, ...])

ClientBudget = int | Mapping[Any, int] | None


def in_order(slices: Iterable[AnySlice]) -> list[AnySlice]:
    """Return the slices ordered by client and slice, the order that every seed acts on.

    Raises
    ------
    PlanError
        There is no slice, one appears twice, is empty, or the ids cannot be ordered.
    """
    listed = list(slices)
    if not listed:
        raise PlanError("slices: there are none; every client declares at least one slice")
    for item in listed:
        if not isinstance(item, tuple) or len(item) < 2:
            raise PlanError(f"slices: {item!r} is not a Slice or a (client, slice) pair")
        if isinstance(item, Slice) and item.size < 1:
            raise PlanError(
                f"client {item.client_id!r}: slice {item.slice_id} has size {item.size}; "
                "leave empty slices out"
            )
    try:
        listed.sort(key=lambda item: (item[0], item[1]))
    except TypeError as error:
        raise PlanError(
            f"slices: the ids cannot be put in order ({error}); use one type for all of them"
        ) from error
    for before, after in pairwise(listed):
        if before[:2] == after[:2]:
            raise PlanError(f"client {after[0]!r}: slice {after[1]!r} appears twice")
    return listed


def budgets(clients: Iterable[Hashable], client_budget: ClientBudget, num_groups: int) -> dict[Hashable, int]:
    """Return B_i, the most groups that each client may be in; at most ``num_groups``.

    Parameters
    ----------
    clients : iterable
        Every client that has slices.
    client_budget : int, mapping of client to int, or None
        One budget for all or one per client; a client that the mapping leaves out, and every
        client under None, may be in any number of groups.
    num_groups : int
        L.

    Raises
    ------
    PlanError
        A budget below 1, or for a client that has no slices.
    """
    names = list(dict.fromkeys(clients))
    given: Mapping[Any, int]
    if client_budget is None:
        given = {}
    elif isinstance(client_budget, Mapping):
        given = client_budget
        for name in given:
            if name not in names:
                hint = nearest(str(name), [str(known) for known in names])
                raise PlanError(f"client_budget: client {name!r} has no slices{hint}")
    else:
        given = dict.fromkeys(names, client_budget)
    for name, budget in given.items():
        if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
            raise PlanError(
                f"client_budget: client {name!r} has {budget!r}; give a whole number of groups, at least 1"
            )
    return {name: min(given.get(name, num_groups), num_groups) for name in names}
