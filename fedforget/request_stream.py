"""A seeded stream of deletion requests, as the paper's experiment makes them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedforget.data.holdings import Holdings
from fedforget.deletions import deletion
from fedforget.plan_summary import hit_weights
from fedforget.seeds import derive_seed
from fedforget.sequences.ledger import Deletion
from fedforget.sequential_config import SequentialRunConfig
from fedforget.sequential_plan import SequentialPlan


def request_stream(
    config: SequentialRunConfig, plan: SequentialPlan, holdings: Holdings
) -> Iterator[Deletion]:
    """Yield requests until no record is left, each for some records of one slice.

    A request hits a group with the probability that the theory assumes (the prior, or the group's share
    of the slices), whether or not it was hit before, and there a slice with records left. It names
    ``requests.records`` of them, or all that are left where that is 0 or they are fewer.

    Parameters
    ----------
    config : SequentialRunConfig
        ``requests`` and ``seeds.requests``.
    plan : SequentialPlan
    holdings : dict
        What each client holds, by slice.
    """
    rng = np.random.default_rng(derive_seed(config.seeds.requests, "requests"))
    left = {
        (item.client_id, item.slice_id): list(holdings[item.client_id][item.slice_id])
        for group in plan.groups
        for item in group
    }
    weights = np.array(hit_weights(plan, config), dtype=np.float64)
    count = 0
    while True:
        open_slices = [[item[:2] for item in group if left[item[:2]]] for group in plan.groups]
        odds = weights * [bool(group) for group in open_slices]
        if not odds.sum() > 0:
            return
        group = open_slices[int(rng.choice(len(odds), p=odds / odds.sum()))]
        key = group[int(rng.integers(len(group)))]
        records = left[key]
        size = min(config.requests.records or len(records), len(records))
        chosen = sorted(records[i] for i in rng.choice(len(records), size=size, replace=False))
        left[key] = [record for record in records if record not in chosen]
        count += 1
        yield deletion(key[0], key[1], chosen, f"request-{count:03d}")
