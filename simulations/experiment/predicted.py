"""What the theory says of a method before anything is run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedforget.errors import PlanError
from fedforget.sequences.theory import (
    EXACT_GROUPS,
    ServiceLife,
    expected_remaining_curve,
    fedcio_remaining_data,
    service_life,
)
from fedforget.sequential.config import SequentialRunConfig
from fedforget.sequential.plan_summary import hit_weights, local_plan
from simulations.experiment.matching import FEDSGT

FEDCIO = "FedCIO"
STEPS = 60  # requests that the curves go on for


def predicted(method: str, config: SequentialRunConfig) -> dict[str, Any] | None:
    """Return the expected service life, and curves over 0 to 60 requests; None where there is no theory.

    FedSGT's are exact for the plan. FedCIO's are the paper's, for c clusters of equal size, whatever
    clusters form. Both hold for independent uniform requests alone.

    Parameters
    ----------
    method : str
    config : SequentialRunConfig
        The method's.

    Returns
    -------
    dict or None
        ``life``: its mean; ``survival``: the probability that service goes on after each number of
        requests; ``remaining``: the expected share of the data that serves (FedSGT: that of the longest
        prefix), None for more groups than its exact computation can take.
    """
    requests = config.requests
    remaining: list[float] | None = None
    if requests.kind != "uniform" or requests.file:
        return None
    if method == FEDSGT:
        plan = local_plan(config)[0]
        L, weights = len(plan.groups), hit_weights(plan, config)
        life = exact_life(plan.sequences, weights)
        if L <= EXACT_GROUPS:
            curve = expected_remaining_curve(plan.sequences, STEPS, prior=weights, num_groups=L)
            remaining = [groups / L for groups in curve]
    elif method == FEDCIO:
        c = config.clustering.clusters
        life = exact_life([(cluster,) for cluster in range(c)], [1.0] * c)
        remaining = [fedcio_remaining_data(c, r) for r in range(STEPS + 1)]
    else:
        return None
    if life is None:
        return None
    return {
        "life": life.mean,
        "survival": [life.survival(r) for r in range(STEPS + 1)],
        "remaining": remaining,
    }


def exact_life(sequences: Sequence[Sequence[int]], weights: Sequence[float]) -> ServiceLife | None:
    """Return the distribution of the service life; None for groups too many and too unlike for it.

    Parameters
    ----------
    sequences : sequence of sequences of int
    weights : sequence of float
        Of every group, in the distribution of requests.
    """
    try:
        return service_life(sequences, prior=weights, num_groups=len(weights))
    except PlanError:  # of what was planned, nothing else can be wrong
        return None
