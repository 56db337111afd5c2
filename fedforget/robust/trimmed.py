"""The coordinate-wise trimmed mean of a forget domain (Yin et al., ICML 2018, definition 2)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedforget.merging import kernels
from fedforget.merging.layout import squares
from fedforget.merging.sources import Source
from fedforget.robust.scales import source_of
from fedforget.summaries import ClientSummary


def trimmed_mean(blocks: Tensor, trim: int) -> Tensor:
    """Mean of what is left when the ``trim`` smallest and the ``trim`` largest values are dropped.

    Exactly ``n - 2 trim`` values are left at each coordinate; of equal values any may be dropped, which
    changes nothing. They are added in ascending order, so the order of the members does not matter. The
    result lies within the range of any ``n - trim`` of the members: ``trim`` poisoned ones cannot
    take a coordinate beyond what the honest ones sent there.

    Parameters
    ----------
    blocks : Tensor
        ``[n, b]``, n > 2 trim.
    trim : int

    Returns
    -------
    Tensor
        ``[b]``
    """
    n = blocks.shape[0]
    kept = blocks.sort(dim=0).values[trim : n - trim]
    return kernels.mean(list(kept))


def distance_from_mean(members: Sequence[ClientSummary], trim: int, of_fisher: bool) -> float:
    """Return ``|trimmed mean - mean| / |mean|`` over all tensors, streamed; 0 where the mean is 0."""
    apart, size = 0.0, 0.0
    for name in sorted(members[0].fisher if of_fisher else members[0].deltas):
        sources = [source_of(one, name) for one in members]

        def block(start: int, stop: int, sources: list[Source] = sources) -> tuple[float, float]:
            blocks = [s.fisher(start, stop) if of_fisher else s.delta(start, stop) for s in sources]
            mean = kernels.mean(blocks)
            return squares(trimmed_mean(torch.stack(blocks), trim) - mean), squares(mean)

        for one in sources[0].layout.map(sources, block):
            apart += one[0]
            size += one[1]
    return math.sqrt(apart / size) if size else 0.0
