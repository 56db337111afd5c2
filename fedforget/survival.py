"""How much of an update survives the rounding when it is added to a backbone's weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedforget.errors import ModelError
from fedforget.summaries import Delta, LoraFactors

# Coordinates per step: 2 MiB in fp64. Steps depend on the shape alone, and so does the order of the sums.
_BLOCK = 1 << 18


@dataclass(frozen=True)
class Survival:
    """What is left of an update, or of several, in the weights it was added to.

    Attributes
    ----------
    squared_error, squared_norm : float
        Squared l2 norms of ``(new - old) - update`` and of ``update``, in fp64.
    unchanged : int
        Coordinates where the update is not zero and the weight stayed what it was.
    changing : int
        Coordinates where the update is not zero.
    """

    squared_error: float = 0.0
    squared_norm: float = 0.0
    unchanged: int = 0
    changing: int = 0

    @property
    def relative_error(self) -> float:
        """``||(new - old) - update|| / ||update||``: 0 is all of the update, 1 none of it."""
        return math.sqrt(self.squared_error / self.squared_norm) if self.squared_norm > 0.0 else 0.0

    @property
    def unchanged_share(self) -> float:
        """Share of the update's non-zero coordinates that rounding undid."""
        return self.unchanged / self.changing if self.changing else 0.0

    def as_dict(self) -> dict[str, float]:
        """Return both shares by name, for a report."""
        return {"relative_error": self.relative_error, "unchanged_share": self.unchanged_share}


def apply_delta(weight: Tensor, delta: Delta, dtype: torch.dtype | None = None) -> tuple[Tensor, Survival]:
    """Add an update to a weight and measure what the rounding left of it.

    The sum is formed in fp32 or better and rounded once.

    Parameters
    ----------
    weight : Tensor
        The backbone's weight, floating; not changed.
    delta : Tensor or LoraFactors
        Of the weight's shape; on any device.
    dtype : torch.dtype, optional
        Of the result; by default the weight's own.

    Returns
    -------
    tuple of Tensor and Survival
        ``weight + delta``, on the weight's device, and what it kept of ``delta`` as compared with
        ``weight`` in its own dtype.

    Raises
    ------
    ModelError
        A weight that is not floating, or an update of another shape.
    """
    if not weight.is_floating_point():
        raise ModelError(f"a weight of dtype {weight.dtype} cannot take an update; dequantise it first")
    if tuple(weight.shape) != tuple(delta.shape):
        raise ModelError(f"the update has shape {tuple(delta.shape)}, the weight {tuple(weight.shape)}")
    dtype = dtype or weight.dtype
    wide = torch.promote_types(torch.promote_types(weight.dtype, dtype), torch.float32)
    result = torch.empty(weight.shape, dtype=dtype, device=weight.device)
    old, new = _matrix(weight.detach()), _matrix(result)
    error, norm, unchanged, changing = 0.0, 0.0, 0, 0
    for rows, block in _blocks(delta):
        update = block.to(weight.device)
        before = old[rows].to(wide)
        after = (before + update.to(wide)).to(dtype)
        new[rows] = after
        exact = update.to(torch.float64)
        lost = after.to(torch.float64).sub_(before).sub_(exact)
        error += float(torch.linalg.vector_norm(lost)) ** 2
        norm += float(torch.linalg.vector_norm(exact)) ** 2
        moving = update != 0
        changing += int(torch.count_nonzero(moving))
        unchanged += int(torch.count_nonzero(moving & (after == before)))
    return result, Survival(error, norm, unchanged, changing)


def overall(survivals: Iterable[Survival]) -> Survival:
    """Return the survival of several tensors taken as one."""
    total = Survival()
    for one in survivals:
        total = Survival(
            total.squared_error + one.squared_error,
            total.squared_norm + one.squared_norm,
            total.unchanged + one.unchanged,
            total.changing + one.changing,
        )
    return total


def _blocks(delta: Delta) -> Iterator[tuple[slice, Tensor]]:
    matrix = delta if isinstance(delta, LoraFactors) else _matrix(delta.detach())
    count, width = matrix.shape
    step = max(1, _BLOCK // max(width, 1))
    for start in range(0, count, step):
        stop = min(start + step, count)
        yield (
            slice(start, stop),
            matrix.rows(start, stop) if isinstance(matrix, LoraFactors) else matrix[start:stop],
        )


def _matrix(tensor: Tensor) -> Tensor:
    rows = tensor.shape[0] if tensor.ndim else 1
    return tensor.reshape(rows, math.prod(tensor.shape[1:]))
