"""How long service lasts when what was switched off is repaired on the way. Not in the paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedforget.errors import PlanError
from fedforget.seeds import derive_seed
from fedforget.sequences.theory.inputs import Sequences, checked_sequences, count, request_distribution
from fedforget.sequences.theory.simulation import Estimate, estimate

MOST_REQUESTS = 100_000  # of one simulated stream


@dataclass(frozen=True)
class RepairedLife:
    """An estimate of the service life with repairs, from simulated request streams.

    Parameters
    ----------
    mean : Estimate
        Of the expected number of requests until service ends.
    std : float
        Of one stream's number of requests.
    band : tuple of float
        Central interval that one stream falls in with the same confidence, as simulated.
    """

    mean: Estimate
    std: float
    band: tuple[float, float]


def due_for_repair(served: int, sequences: int, share_off: float) -> bool:
    """Tell whether so many sequences serve nothing that it is time to repair.

    Parameters
    ----------
    served, sequences : int
        How many sequences serve, of how many.
    share_off : float
        Repair when at least this share of the sequences is off; 0: never.
    """
    return share_off > 0 and served < sequences and sequences - served >= share_off * sequences


def monte_carlo_repaired_life(
    sequences: Sequences,
    share_off: float,
    repairs: int,
    seed: int,
    trials: int = 10_000,
    prior: Sequence[float] | None = None,
    num_groups: int | None = None,
    confidence: float = 0.9,
) -> RepairedLife:
    """Estimate the number of requests until service ends, with repairs on the way.

    After a request that leaves service running and :func:`due_for_repair`, every group is put back in
    service at once, at most ``repairs`` times. Every group is taken to have data left then: a stream
    that uses the data up ends earlier.

    Parameters
    ----------
    sequences : sequence of sequences of int
        The trained orders of groups.
    share_off : float
        Share of sequences that are off when a repair is made, in (0, 1].
    repairs : int
        The most repairs.
    seed, trials, prior, num_groups
        As for :func:`monte_carlo_service_life`.
    confidence : float
        Of the interval of the mean, and of the band.

    Raises
    ------
    PlanError
        Malformed input, or a first group that is never hit.
    """
    orders, L = checked_sequences(sequences, num_groups)
    first = np.array([order[0] for order in orders])
    p = request_distribution(prior, L)
    most = count(repairs, "repairs", 0)
    if not 0.0 < share_off <= 1.0:
        raise PlanError(f"share_off is {share_off!r}; give a share above 0 and up to 1")
    if not p[first].min() > 0:
        raise PlanError("a group that comes first in some sequence has prior 0, so the service never ends")
    trials = count(trials, "trials", 2)
    rng = np.random.default_rng(derive_seed(seed, "theory", "repaired life"))
    life = np.zeros(trials)
    running = np.arange(trials)  # the streams that still serve
    hit = np.zeros((trials, L), dtype=bool)
    left = np.full(trials, most)
    for request in range(1, MOST_REQUESTS + 1):
        hit[np.arange(len(running)), rng.choice(L, size=len(running), p=p)] = True
        off = hit[:, first].sum(axis=1)
        life[running[off == len(orders)]] = request
        kept = off < len(orders)
        running, hit, left, off = running[kept], hit[kept], left[kept], off[kept]
        if not len(running):
            break
        repaired = (off > 0) & (off >= share_off * len(orders)) & (left > 0)
        hit[repaired] = False
        left[repaired] -= 1
    else:
        raise PlanError(f"a simulated service did not end within {MOST_REQUESTS} requests; raise the prior")
    tail = 100 * (1.0 - confidence) / 2
    low, high = np.percentile(life, [tail, 100 - tail], method="inverted_cdf")
    return RepairedLife(estimate(life, confidence), float(life.std(ddof=1)), (float(low), float(high)))
