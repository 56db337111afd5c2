"""Activations that are computed again on the way back instead of being kept."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from fedforget.blocks import decoder_blocks


@contextlib.contextmanager
def blocks_recomputed(model: nn.Module) -> Iterator[None]:
    """Let every decoder block keep its input alone, for the length of a block of code.

    A backward pass runs each of them forward once more: the same kernels on the same numbers, so the
    gradients have the same bits. transformers' own way asks for training mode, in which dropout would act.

    Raises
    ------
    ModelError
        The model has no list of decoder blocks.
    """
    _, blocks = decoder_blocks(model)

    def again(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*inputs: Any, **options: Any) -> Any:
            return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=False, **options)

        return run

    wrapped: list[Any] = list(blocks)
    try:
        for block in wrapped:
            block.forward = again(block.forward)
        yield
    finally:
        for block in wrapped:
            vars(block).pop("forward", None)
