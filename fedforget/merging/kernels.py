"""The arithmetic of the merges on one block: functions on lists of flat tensors of the working dtype.

Every function takes blocks of equal shape ``[n]``, one per client or domain, in a fixed order,
and changes none of them. Each product, sum and quotient is rounded by itself, in the order written
here: no fused multiply-add, so that another engine can give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


def total(blocks: Sequence[Tensor]) -> Tensor:
    """Sum of the blocks, in their order."""
    result = blocks[0].clone()
    for block in blocks[1:]:
        result.add_(block)
    return result


def mean(blocks: Sequence[Tensor]) -> Tensor:
    """Plain mean of the blocks."""
    return total(blocks).div_(len(blocks))


def top_normalised_(G: Tensor, maximum: float, threshold: float, eps0: float) -> Tensor:
    """Equation (3), in place: ``G / (maximum + eps0)`` where ``G >= threshold``, 0 elsewhere.

    The threshold is compared with the raw G: division can round two values onto one, and would then
    keep entries that are below the threshold.
    """
    return keep_from_(G, threshold).div_(maximum + eps0)


def keep_from_(values: Tensor, threshold: float) -> Tensor:
    """Zero, in place, what is smaller than the threshold; values are non-negative."""
    if threshold <= 0.0:
        return values
    return functional.threshold(values, _before(threshold, values.dtype), 0.0, inplace=True)


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
        numerator.add_(one * delta)
        weight.add_(one)
    return numerator.div_(weight + eps0), weight


def trim(vector: Tensor, threshold: float) -> Tensor:
    """Zero what is smaller in magnitude than the threshold (TIES, step 1)."""
    if threshold <= 0.0:
        return vector + 0.0  # without the sign of a zero
    return functional.hardshrink(vector, _before(threshold, vector.dtype))


def elect_and_average(trimmed: Sequence[Tensor]) -> Tensor:
    """TIES, steps 2 and 3: elect a sign by summed mass, average the entries that agree.

    A sum of zero elects +. The mean is over the non-zero entries of the elected sign; where
    there is none, the result is 0. One vector alone is its own result.
    """
    if len(trimmed) == 1:
        return trimmed[0].clone()
    negative = (total(trimmed) < 0.0).numpy()
    positive = _mean_of_sign([vector.clamp(min=0.0) for vector in trimmed])
    np.copyto(positive.numpy(), _mean_of_sign([v.clamp(max=0.0) for v in trimmed]).numpy(), where=negative)
    return positive


def _mean_of_sign(parts: Sequence[Tensor]) -> Tensor:
    """Mean over the non-zero entries; 0 where there is none."""
    count = np.zeros(parts[0].shape, dtype=np.int16)
    for part in parts:
        count += part.numpy() != 0.0
    np.maximum(count, 1, out=count)
    return total(parts).div_(torch.from_numpy(count).to(parts[0].dtype))


def _before(threshold: float, dtype: torch.dtype) -> float:
    """Return the largest number below a positive threshold: ``x > before`` is ``x >= threshold``."""
    wide = np.float64 if dtype == torch.float64 else np.float32
    nearest = wide(threshold)
    return float(nearest if float(nearest) < threshold else np.nextafter(nearest, wide(0.0)))
