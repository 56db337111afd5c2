"""Merging over a Ray cluster: a task per weight, each reading its own tensors from the clients' files."""

from __future__ import annotations

import re
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from torch import Tensor

from fedforget.errors import FedForgetError, RunError
from fedforget.merging.engine import Merge
from fedforget.summaries import ClientSummary

_HOST_AND_PORT = re.compile(r"(ray://)?(?P<host>[^/:\s]+):(?P<port>\d+)")

Merged = Iterator[tuple[str, Tensor, dict[str, Any]]]


def over_ray(address: str) -> Callable[..., Merged]:
    """Return :func:`fedforget.merging.merge_tensors` over the cluster at an address.

    What the method decides over all tensors (clusters, global thresholds) is decided here and travels
    with the tasks; clients that were read from disk travel as paths, so every node must see their files
    under the same path and have this version of fedforget. A weight takes one CPU. The bits are those
    of a merge in this process: each weight is merged by the same code in the same order.

    Parameters
    ----------
    address : str
        As ``ray.init`` takes it: ``host:port``, ``auto``, or ``ray://...``.
    """

    def merge_tensors(summaries: Iterable[ClientSummary], method: str = "firm", **parameters: Any) -> Merged:
        return _stream(Merge(summaries, method, parameters), address)

    return merge_tensors


def _stream(run: Merge, address: str) -> Merged:
    connected = ray.is_initialized()
    if not connected:
        _knock(address)
        try:
            ray.init(address=address, configure_logging=False, log_to_driver=False)
        except (ConnectionError, RayError, ValueError, RuntimeError) as error:
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise RunError(f"--ray-address {address}: no Ray cluster answers there ({first})") from error
    try:
        shared = ray.put(run)
        # As many weights ahead as the cluster has CPUs: no more of them wait in memory.
        ahead = max(1, int(ray.cluster_resources().get("CPU", 1)))  # type: ignore[no-untyped-call]
        waiting: deque[tuple[str, Any]] = deque()
        names = iter(run.names)
        for name in names:
            waiting.append((name, _merge_one.remote(shared, name)))
            if len(waiting) >= ahead:
                break
        while waiting:
            done, reference = waiting.popleft()
            delta, report = _result(done, reference)
            del reference
            for name in names:
                waiting.append((name, _merge_one.remote(shared, name)))
                break
            yield done, delta, report
            del delta
    finally:
        if not connected:
            ray.shutdown()


def _knock(address: str) -> None:
    """Refuse an address where nobody listens at once: Ray itself tries for minutes, and fills the screen."""
    named = _HOST_AND_PORT.fullmatch(address)
    if named is None:
        return
    try:
        socket.create_connection((named["host"], int(named["port"])), timeout=5.0).close()
    except (OSError, OverflowError) as error:
        raise RunError(f"--ray-address {address}: no Ray cluster answers there ({error})") from error


def _result(name: str, reference: Any) -> tuple[Tensor, dict[str, Any]]:
    try:
        delta, report = ray.get(reference)
    except RayTaskError as error:
        if isinstance(error.cause, FedForgetError):
            raise error.cause from None
        raise RunError(f"tensor {name!r}: its Ray task failed ({error.cause!r})") from error
    except RayError as error:
        raise RunError(f"tensor {name!r}: its Ray task was lost ({error})") from error
    # What comes out of the object store is read-only and shared.
    return delta.clone(), report


# A node may die: Ray gives what it was at, and what it alone held, to another one.
@ray.remote(num_cpus=1, max_retries=3)
def _merge_one(run: Merge, name: str) -> tuple[Tensor, dict[str, Any]]:
    return run.tensor(name)
