"""Tensors of a summary that are computed as they are read, as robust pooling makes them."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class Streamed(ABC):
    """A task vector or Fisher that is not stored anywhere but computed when it is read.

    Attributes
    ----------
    shape : tuple of int
        Of the weight tensor.
    dtype : torch.dtype
        What the merged tensor is rounded to; blocks are read in the working dtype, unrounded.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype

    @abstractmethod
    def open(self) -> None:
        """Get ready to be read, by several threads."""

    @abstractmethod
    def read(self, start: int, stop: int, out: Tensor) -> None:
        """Write coordinates ``start:stop`` of the flattened tensor into ``out``."""

    @abstractmethod
    def release(self, start: int, stop: int) -> None:
        """Give the memory of some coordinates back."""
