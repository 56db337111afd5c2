"""FedCIO's clustering stage: some rounds of all clients together, and what each client's training changed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from logging import INFO

import numpy as np
import torch
from flwr.serverapp import Grid
from flwr.supercore import log
from numpy.typing import NDArray
from torch import Tensor

from fedforget.sequences import Slice
from fedforget.sequential import protocol as words
from fedforget.sequential.config import SequentialRunConfig
from fedforget.sequential.modules import PrefixModule
from fedforget.sequential.plan import Prefix, SequentialPlan
from strategies.sequential_exchange import Exchange
from strategies.sequential_record import average
from strategies.sequential_round import Snapshot, requests_of
from strategies.sequential_spool import Request

_WHOLE: Prefix = (0,)


def client_updates(
    grid: Grid,
    exchange: Exchange,
    config: SequentialRunConfig,
    slices: Iterable[Slice],
    without: Mapping[str, words.Without],
    initial: Mapping[str, Tensor],
    timeout: float,
) -> dict[str, NDArray[np.float64]]:
    """Train one module by FedAvg for ``clustering.rounds`` rounds, and return each client's updates.

    Parameters
    ----------
    grid : Grid
    exchange : Exchange
    config : SequentialRunConfig
    slices : iterable of Slice
        All slices that have records, at the size left.
    without : mapping of client id to deleted records by slice
    initial : mapping of str to Tensor
        What the module begins with.
    timeout : float
        Seconds for the replies of one round.

    Returns
    -------
    dict of client id to array, shape [rounds * d]
        The client's module less the one it was sent, flattened in the order of tensor names, of every
        round one after the other. In no text at hand is it said how the rounds are combined: laid side
        by side, squared distances add up over them.
    """
    listed = sorted(slices)
    plan = SequentialPlan.of([listed], [_WHOLE])
    left = {item[:2]: item.size for item in listed}
    snapshot = Snapshot({}, left, without)
    start: Mapping[str, Tensor] = initial
    current: dict[Prefix, PrefixModule] = {}
    parts: dict[str, list[NDArray[np.float64]]] = {}
    every: list[Request] = []
    for step in range(1, config.clustering.rounds + 1):
        requests = requests_of(plan, [_WHOLE], snapshot, current, step, config)
        every += requests
        log(INFO, "[CLUSTERING, ROUND %d/%d] %d clients", step, config.clustering.rounds, len(requests))
        exchange.run(grid, requests, without, json.dumps([m.sha256 for m in current.values()]), timeout)
        for one in requests:
            parts.setdefault(one.client_id, []).append(flat(exchange.spool.load(one).tensors, start))
        module, _ = average(exchange.spool, _WHOLE, requests)
        exchange.outbox.hold(module)
        current, start = {_WHOLE: module}, module.tensors
    exchange.outbox.drop_held()
    exchange.spool.remove(every)
    return {name: np.concatenate(found) for name, found in sorted(parts.items())}


def flat(tensors: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> NDArray[np.float64]:
    """Return the difference of two modules as one vector, in the order of tensor names."""
    parts = [(tensors[name].double() - start[name].double()).reshape(-1) for name in sorted(tensors)]
    vector: NDArray[np.float64] = torch.cat(parts).numpy()
    return vector
