"""The task vector of one weight as LoRA factors: never merged separately, expanded block by block."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedforget.errors import SummaryError


@dataclass(frozen=True, eq=False)
class LoraFactors:
    """The task vector ``scale * B @ A`` of one weight tensor, in factors.

    Attributes
    ----------
    A : Tensor
        Shape ``[r, d_in]``.
    B : Tensor
        Shape ``[d_out, r]``.
    scale : float
        ``lora_alpha / r``, or ``lora_alpha / sqrt(r)`` for rank-stabilised LoRA.
    """

    A: Tensor
    B: Tensor
    scale: float

    def __post_init__(self) -> None:
        if self.A.ndim != 2 or self.B.ndim != 2 or self.A.shape[0] != self.B.shape[1]:
            raise SummaryError(
                f"LoRA factors do not multiply: B is {tuple(self.B.shape)} and A is {tuple(self.A.shape)}; "
                "expected [d_out, r] and [r, d_in]"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """Shape ``(d_out, d_in)`` of the weight tensor."""
        return self.B.shape[0], self.A.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """The factors' dtype, and that of :meth:`dense`."""
        return self.B.dtype

    def rows(self, start: int, stop: int) -> Tensor:
        """Expand rows ``start:stop`` in fp32 or better; shape ``[stop - start, d_in]``."""
        wide = torch.promote_types(self.dtype, torch.float32)
        return (self.B[start:stop].to(wide) @ self.A.to(wide)).mul_(self.scale)

    def dense(self) -> Tensor:
        """Return ``scale * B @ A``, shape ``[d_out, d_in]``, in the factors' dtype.

        The product is accumulated in fp32 or better and rounded once.
        """
        return self.rows(0, self.B.shape[0]).to(self.dtype)

    def norm(self) -> float:
        """Return the Frobenius norm of the product, from two matrices of the rank's size."""
        A, B = self.A.double(), self.B.double()
        squared = float(((B.T @ B) * (A @ A.T)).sum())
        return abs(self.scale) * math.sqrt(max(squared, 0.0))


Delta = Tensor | LoraFactors
