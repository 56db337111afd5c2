"""Training and communication costs (FedSGT, Sections 5.3 and A.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from fedforget.errors import PlanError
from fedforget.sequences.theory.inputs import Sequences, checked_sequences, count
from fedforget.sequences.theory.remaining import occupancy


def communication_rounds(
    num_groups: int, slices_per_client: int, budget: int, slices_in_all: int | None = None
) -> float:
    """Expected number of rounds one client takes part in, ``B (L+1) sum_k P(K=k) k/(k+1)``.

    A client whose slices lie in K = k groups takes part in every phase from the first of them
    on: ``(L+1) k/(k+1)`` of the L phases, on average over the order of the groups.

    Parameters
    ----------
    num_groups : int
        L.
    slices_per_client : int
        S.
    budget : int
        B. The paper's equation (19) has L here, for B = L.
    slices_in_all : int, optional
        The paper draws each slice's group independently, ``P(K=k) = C(L,k) k! S(S,k) / L^S``,
        and calls the result exact. The balanced partition of Algorithm 1 draws without
        replacement, which spreads a client over slightly more groups. Give M, the number of
        slices of all clients, a multiple of L, for the exact value under that partition.

    Returns
    -------
    float
        71.5 for L = B = 10, S = 2, as in Section 5.4 (72.37 with ``slices_in_all=20``).

    Raises
    ------
    PlanError
        A count that is not a positive integer, or M that is too small or no multiple of L.

    Notes
    -----
    Phases that sequences share, having a prefix in common, are counted once per sequence as in
    the paper. :func:`participation_rounds` counts them once in all, as they are trained.
    """
    L, S = count(num_groups, "num_groups", 1), count(slices_per_client, "slices_per_client", 1)
    B = count(budget, "budget", 1)
    share = sum(
        (_distinct_groups(L, S, k, slices_in_all) * Fraction(k, k + 1) for k in range(1, min(S, L) + 1)),
        Fraction(0),
    )
    return float(B * (L + 1) * share)


def _distinct_groups(L: int, S: int, k: int, slices_in_all: int | None) -> Fraction:
    if slices_in_all is None:
        return occupancy(L, S, k)
    M = count(slices_in_all, "slices_in_all", S)
    if M % L:
        raise PlanError(f"slices_in_all is {M}; give a multiple of num_groups, {L}")
    g = M // L
    # Choices of S of the M slices that fall in exactly k groups of g, by inclusion-exclusion.
    onto = sum((-1) ** (k - j) * math.comb(k, j) * math.comb(j * g, S) for j in range(k + 1))
    return Fraction(math.comb(L, k) * onto, math.comb(M, S))


def participation_rounds(sequences: Sequences, client_groups: Sequence[int]) -> int:
    """Rounds that a client with slices in ``client_groups`` takes part in; one round per trained module.

    Counts the distinct prefixes of the sequences that hold one of the groups: a prefix that
    sequences share is trained once.

    Raises
    ------
    PlanError
        Malformed sequences.
    """
    orders, _ = checked_sequences(sequences, None)
    mine = set(client_groups)
    prefixes = {order[:i] for order in orders for i in range(1, len(order) + 1)}
    return sum(not mine.isdisjoint(prefix) for prefix in prefixes)


def matched_budget(rounds: int, num_groups: int) -> float:
    """Budget at which FedSGT's training cost equals T rounds of FedAvg or FedCIO, ``2TL/(L+1)``.

    From ``B E (L+1)/2 = T E L`` in Section 5.3.1. It gives 18.2 for T = L = 10. Section 5.4
    says "B about 36" for the same setting, which does not follow from the formula (nor does
    it with FedCIO's two clustering rounds added, 21.8).

    Raises
    ------
    PlanError
        Either is not a positive integer.
    """
    T, L = count(rounds, "rounds", 1), count(num_groups, "num_groups", 1)
    return 2 * T * L / (L + 1)


def fedavg_communication_rounds(rounds: int) -> int:
    """FedAvg's rounds per client: all T (Section 5.3.2).

    Raises
    ------
    PlanError
        ``rounds`` is not a positive integer.
    """
    return count(rounds, "rounds", 1)


def fedcio_communication_rounds(rounds: int, clustering_rounds: int = 2) -> int:
    """FedCIO's rounds per client, ``T_cluster + T`` (Section 5.3.2).

    Raises
    ------
    PlanError
        ``rounds`` is not positive, or ``clustering_rounds`` is negative.
    """
    return count(clustering_rounds, "clustering_rounds", 0) + count(rounds, "rounds", 1)
