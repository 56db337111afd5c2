"""Which orders of the groups to train: rotations, or orders for a deletion prior (FedSGT, section 4.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf

from fedforget.errors import PlanError
from fedforget.sequences.prior import plan_for_prior

Sequence = tuple[int, ...]


def plan_sequences(
    num_groups: int,
    budget: int,
    deletion_prior: SequenceOf[float] | None = None,
    *,
    num_requests: int | None = None,
) -> list[Sequence]:
    """Choose the B sequences to train.

    Parameters
    ----------
    num_groups : int
        L, at least 1.
    budget : int
        B, from 1 to L!.
    deletion_prior : sequence of float, optional
        Per group, a non-negative weight proportional to the probability that a request hits it.
        None gives :func:`rotations`.
    num_requests : int, optional
        With a prior, how many requests the plan looks ahead: it maximises the expected longest
        active prefix, averaged over the times after 1, 2, ..., ``num_requests`` requests drawn
        independently from the prior. Default L.

    Returns
    -------
    list of tuple of int
        B distinct permutations of ``0 .. L-1``.

    Raises
    ------
    PlanError
        A number out of range, or a prior that is not one.

    Notes
    -----
    With a prior and L up to 16, the objective is computed exactly, over all 2^L sets of deleted
    groups. The sequences are chosen one at a time, each the best possible next one among all L! (by
    dynamic programming over subsets), then exchanged one for one where that helps (three passes, for
    up to 128 sequences). The objective is monotone
    and submodular in the set of sequences, so the value is at least (1 - 1/e) of the best possible
    one. It is never below that of the rotations. The objective says nothing of how long service
    lasts: that depends on the set of first groups alone, which rotations make as large as B and L
    allow, and a plan for a prior may make smaller.

    Beyond 16 groups the objective is estimated on 4096 drawn sets, each sequence is built group by
    group, and the plan is kept if it does better than the rotations on 4096 fresh sets. That carries
    no guarantee, except that a uniform prior gives the rotations.
    """
    check_plan(num_groups, budget)
    rotated = rotations(num_groups, budget)
    if deletion_prior is None:
        if num_requests is not None:
            raise PlanError("num_requests: has no effect without a deletion_prior; give both or neither")
        return rotated
    spare = rotations(num_groups, min(2 * budget, math.factorial(num_groups)))
    return plan_for_prior(rotated, spare, deletion_prior, num_requests)


def rotations(num_groups: int, budget: int) -> list[Sequence]:
    """Return the first B sequences of the cyclic rotation scheme.

    First the right rotations of ``0 .. L-1``: for L = 6, 012345, 501234, 450123 and so on. When those
    L are used up, each sequence keeps its first group and rotates the rest, by one step in all of
    them, then by two, and so on; then each keeps its first two groups; and so on up to all L!. At the
    end of stage d every ordered prefix of d + 1 groups begins exactly one sequence, so new prefixes
    are as short, and shared as widely, as they can be, and no sequence comes twice.

    Raises
    ------
    PlanError
        L below 1, or B outside 1 to L!.
    """
    check_plan(num_groups, budget)
    plan: list[Sequence] = [tuple(range(num_groups))]
    for kept in range(num_groups - 1):
        stage = list(plan)
        for step in range(1, num_groups - kept):
            for sequence in stage:
                if len(plan) == budget:
                    return plan
                head, tail = sequence[:kept], sequence[kept:]
                plan.append(head + tail[-step:] + tail[:-step])
    return plan


def check_plan(num_groups: int, budget: int) -> None:
    """Raise ``PlanError`` unless L >= 1 and 1 <= B <= L!."""
    if num_groups < 1:
        raise PlanError(f"num_groups: {num_groups} is less than 1")
    if budget < 1:
        raise PlanError(f"budget: {budget} is less than 1; train at least one sequence")
    if budget > math.factorial(num_groups):
        raise PlanError(
            f"budget: {num_groups} groups have only {math.factorial(num_groups)} orders, fewer than "
            f"{budget}; lower the budget or form more groups"
        )
