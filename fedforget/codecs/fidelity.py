"""What an approximate codec did to a client's own Fisher, as the client measures it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedforget.codecs.top import sparsify


class Fidelity:
    """Compares Fishers with what they decode to, over all tensors of a summary.

    Parameters
    ----------
    alpha : float
        The share of the largest entries whose places are compared.
    """

    def __init__(self, alpha: float) -> None:
        self._alpha = alpha
        self._squares = self._error = 0.0
        self._either = self._both = 0

    def add(self, fisher: Tensor, decoded: Tensor) -> None:
        """Take one tensor in; equal shapes."""
        wide, other = fisher.to(torch.float64), decoded.to(torch.float64)
        self._squares += float((wide * wide).sum())
        self._error += float((wide - other).square().sum())
        kept, others = (sparsify(one, self._alpha).indices for one in (fisher, decoded))
        both = int(torch.isin(kept, others).sum())
        self._both += both
        self._either += kept.numel() + others.numel() - both

    def result(self) -> dict[str, float]:
        """Return the relative l2 error, and the overlap of the largest entries' places (of their union)."""
        return {
            "relative_error": math.sqrt(self._error / self._squares) if self._squares else 0.0,
            "overlap": self._both / self._either if self._either else 1.0,
        }
