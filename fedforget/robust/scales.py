"""How large each client's task vectors and Fishers are: one streamed pass over the summaries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from fedforget.merging.layout import Layout, squares
from fedforget.merging.sources import Source
from fedforget.summaries import ClientSummary

ALL = "all tensors"
"""Stands for the concatenation of a client's tensors where the name of one is expected."""


@dataclass(frozen=True)
class Scale:
    """The size of one tensor of one client, or of all its tensors together.

    Attributes
    ----------
    delta : float
        l2 norm of the task vector.
    fisher : float
        l2 norm of what was sent of the raw Fisher; NaN where none was.
    peak : float
        The Fisher's largest entry as a share of its norm, in (0, 1]; 0 for a Fisher of zeros, NaN for none.
    """

    delta: float
    fisher: float
    peak: float


def measure(summaries: Iterable[ClientSummary]) -> dict[str, dict[str, Scale]]:
    """Measure every tensor of every client, in blocks, in fp64.

    Returns
    -------
    dict of str to dict of str to Scale
        Per client and tensor name; :data:`ALL` has the norm over all tensors, and the largest of the
        tensors' peaks.

    Raises
    ------
    SummaryError
        A value is not finite, or a Fisher negative; names client and tensor.
    """
    return {one.client_id: _of_client(one) for one in summaries}


def _of_client(summary: ClientSummary) -> dict[str, Scale]:
    found = {name: _of_tensor(summary, name) for name in sorted(summary.deltas)}
    tensors = list(found.values())
    peaks = [one.peak for one in tensors]
    found[ALL] = Scale(
        math.hypot(*(one.delta for one in tensors)),
        math.hypot(*(one.fisher for one in tensors)),
        math.nan if any(math.isnan(peak) for peak in peaks) else max(peaks),
    )
    return found


def source_of(summary: ClientSummary, name: str) -> Source:
    """Return one client's tensor, to be read in blocks of fp32, or fp64 where the client sent fp64."""
    shape = summary.check_kind(name)
    dtypes = [summary.deltas[name].dtype, *([summary.fisher[name].dtype] if summary.fisher else [])]
    return Source([summary], name, Layout(shape), working_dtype(dtypes))


def working_dtype(dtypes: Sequence[torch.dtype]) -> torch.dtype:
    """Return what tensors of some dtypes are computed in: fp32, or fp64 where one of them is."""
    result = torch.float32
    for one in dtypes:
        result = torch.promote_types(result, one)
    return result


def _of_tensor(summary: ClientSummary, name: str) -> Scale:
    source = source_of(summary, name)
    with_fisher = bool(summary.fisher)

    def block(start: int, stop: int) -> tuple[float, float, float, float]:
        delta = squares(source.delta(start, stop))
        if not with_fisher:
            return delta, 0.0, 0.0, 0.0
        fisher = source.fisher(start, stop)
        low, high = torch.aminmax(fisher)
        return delta, squares(fisher), float(high), float(low)

    seen = source.layout.map([source], block)
    delta, norm = (math.sqrt(sum((one[i] for one in seen), 0.0)) for i in (0, 1))
    # NaN propagates through the sums, and so into the norms.
    if not math.isfinite(delta) or not math.isfinite(norm) or any(one[3] < 0.0 for one in seen):
        summary.check_tensor(name)
    if not with_fisher:
        return Scale(delta, math.nan, math.nan)
    highest = max((one[2] for one in seen), default=0.0)
    return Scale(delta, norm, highest / norm if norm else 0.0)
