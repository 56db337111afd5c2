"""The merge itself: check, plan, then one tensor at a time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedforget.errors import SummaryError
from fedforget.merging.coverage import require_fishers
from fedforget.merging.inputs import Clients
from fedforget.merging.layout import squared_norm
from fedforget.merging.registry import Plan, find
from fedforget.summaries import ClientSummary


@dataclass(frozen=True, eq=False)
class MergeResult:
    """A merged update.

    Attributes
    ----------
    deltas : dict of str to Tensor
        The update of each weight, in the clients' dtype, by sorted name.
    report : dict
        ``clients`` (ids per role), ``norm`` of the whole update, ``tensors`` (per tensor: ``norm``, and
        for FIRM the projection's multipliers, damage and certificate), and what the method decided over
        all tensors. Plain Python values.
    method : str
        Name of the method.
    parameters : dict
        Every parameter of the method, defaults included.
    """

    deltas: dict[str, Tensor]
    report: dict[str, Any]
    method: str
    parameters: dict[str, Any]


def merge(
    summaries: Iterable[ClientSummary], method: str = "firm", *, engine: str = "auto", **parameters: Any
) -> MergeResult:
    """Merge client summaries into one update.

    Every product, sum and quotient is rounded to fp32 (to fp64 where a client sent fp64), in a fixed
    order: clients by id, then domains by name. The result is rounded once to the clients' dtype (promoted
    where they differ). Norms, damages and similarities are summed in fp64, over blocks in order. So the
    output depends neither on the order of the clients nor on the number of threads, which is
    ``torch.get_num_threads()``. The inputs are not changed, and are read one weight at a time.

    Parameters
    ----------
    summaries : iterable of ClientSummary
        In any order; at least one forget client.
    method : str
        A name in :func:`methods`.
    engine : {"auto", "torch", "numba"}
        What blocks are computed with; the bits are the same. ``auto`` takes numba where it is installed
        and the clients are large.
    **parameters
        The method's own, see :func:`methods`.

    Returns
    -------
    MergeResult

    Raises
    ------
    ConfigError
        An unknown method or parameter, or a value out of range.
    SummaryError
        Summaries that are not valid or do not fit together, or an update that overflows their dtype.
    """
    run = Merge(summaries, method, parameters, engine)
    deltas: dict[str, Tensor] = {}
    tensors: dict[str, dict[str, Any]] = {}
    for name, delta, report in run.tensors():
        deltas[name], tensors[name] = delta, report
    summary: dict[str, Any] = {
        "clients": {
            "forget": [one.client_id for one in run.clients.forget],
            "retain": [one.client_id for one in run.clients.retain],
        },
        "norm": math.sqrt(sum(report["norm"] ** 2 for report in tensors.values())),
        **run.plan.report,
        "tensors": tensors,
    }
    return MergeResult(deltas, summary, method, dataclasses.asdict(run.parameters))


def merge_tensors(
    summaries: Iterable[ClientSummary], method: str = "firm", *, engine: str = "auto", **parameters: Any
) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
    """Merge as :func:`merge` does, handing over each tensor as it is ready.

    The arguments are checked at once, before the first tensor is asked for.

    Returns
    -------
    iterator of (str, Tensor, dict)
        Name, update and report of each weight, by sorted name.
    """
    return Merge(summaries, method, parameters, engine).tensors()


class Merge:
    """One merge after its checks and after what must be known before the first tensor.

    It can be pickled (with cloudpickle), so that tensors can be merged in other processes; clients that
    were read from disk travel as paths.

    Attributes
    ----------
    clients : Clients
    parameters : dataclass
        The method's own.
    plan : Plan
    """

    def __init__(
        self,
        summaries: Iterable[ClientSummary],
        method: str,
        parameters: dict[str, Any],
        engine: str = "auto",
    ) -> None:
        chosen = find(method)
        self.parameters = chosen.parse(parameters)
        self.clients = Clients(summaries, needs_fisher=chosen.needs_fisher, engine=engine)
        if chosen.needs_fisher:
            require_fishers(self.clients.all, method, self.parameters)
        self.plan: Plan = chosen.prepare(self.clients, self.parameters)
        self._method = method

    @property
    def names(self) -> list[str]:
        """Tensor names, sorted."""
        return self.clients.names

    def tensor(self, name: str) -> tuple[Tensor, dict[str, Any]]:
        """Merge one tensor and return the update and its report.

        Raises
        ------
        SummaryError
            A client's values are not valid, or the update overflows its dtype.
        """
        delta, report = self.plan.tensor(name)
        norm = math.sqrt(squared_norm(delta))
        if not math.isfinite(norm) and not bool(torch.isfinite(delta).all()):
            raise SummaryError(
                f"tensor {name!r}: the merge by {self._method!r} overflows {delta.dtype}; "
                "use a smaller gamma or send wider task vectors"
            )
        return delta, {"norm": norm, **report}

    def tensors(self) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
        """Merge one tensor after the other, holding none that was handed over."""
        for name in self.names:
            yield (name, *self.tensor(name))
