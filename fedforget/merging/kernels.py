"""The arithmetic of the merges on one block: pure functions on lists of flat fp64 tensors.

Every function takes blocks of equal shape ``[n]``, one per client or domain, in a fixed order,
and changes none of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def total(blocks: Sequence[Tensor]) -> Tensor:
    """Sum of the blocks, in their order."""
    result = blocks[0].clone()
    for block in blocks[1:]:
        result += block
    return result


def mean(blocks: Sequence[Tensor]) -> Tensor:
    """Plain mean of the blocks."""
    return total(blocks).div_(len(blocks))


def top_normalised(G: Tensor, maximum: float, threshold: float, eps0: float) -> Tensor:
    """Equation (3): ``G / (maximum + eps0)`` where ``G >= threshold``, 0 elsewhere.

    The threshold is compared with the raw G: division can round two values onto one, and would then
    keep entries that are below the threshold.
    """
    return (G / (maximum + eps0)).masked_fill_(G.lt(threshold), 0.0)


def weighted_mean(deltas: Sequence[Tensor], weights: Sequence[Tensor], eps0: float) -> tuple[Tensor, Tensor]:
    """One role's term of equation (4).

    Returns
    -------
    tuple of Tensor
        ``sum_i w_i delta_i / (sum_i w_i + eps0)``, which is 0 where no weight survives, and
        the denominator's ``sum_i w_i``.
    """
    numerator = weights[0] * deltas[0]
    weight = weights[0].clone()
    for one, delta in zip(weights[1:], deltas[1:], strict=True):
        numerator.addcmul_(one, delta)
        weight += one
    return numerator.div_(weight + eps0), weight


def trim(vector: Tensor, threshold: float) -> Tensor:
    """Zero what is smaller in magnitude than the threshold (TIES, step 1)."""
    return vector.masked_fill(vector.abs() < threshold, 0.0)


def elect_and_average(trimmed: Sequence[Tensor]) -> Tensor:
    """TIES, steps 2 and 3: elect a sign by summed mass, average the entries that agree.

    A sum of zero elects +. The mean is over the non-zero entries of the elected sign; where
    there is none, the result is 0.
    """
    negative = total(trimmed) < 0.0
    kept = torch.zeros_like(trimmed[0])
    count = torch.zeros_like(trimmed[0])
    for vector in trimmed:
        agrees = torch.where(negative, vector < 0.0, vector > 0.0)
        kept += vector.masked_fill(~agrees, 0.0)
        count += agrees
    return kept.div_(count.clamp_(min=1.0))
