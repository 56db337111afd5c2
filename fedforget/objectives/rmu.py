"""Representation misdirection (RMU): push a block's output for forget data toward a random vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedforget.blocks import decoder_blocks
from fedforget.errors import ModelError
from fedforget.objectives.registry import Batch, Loss, register
from fedforget.objectives.terms import needed, reference
from fedforget.parameters import flag, integer, non_negative, positive
from fedforget.seeds import derive_seed


@register(
    "rmu",
    pretty="RMU",
    reference="Li et al. 2024 (WMDP), section 4; in FIRM, section 5, the forget term alone",
    summary="mean squared distance of a block's output from c u / |u|, u uniform and fixed for each domain; "
    "with alpha, its drift on retain data too",
)
@dataclass(frozen=True)
class RMU:
    """``L = mean_t |h_t - c u / |u||^2 / d + alpha * mean_t |h_t - h_frozen,t|^2 / d``.

    ``h_t`` is the output of one decoder block at token t, of width d: in the first mean over forget
    data, in the second over retain data, where ``h_frozen`` is the output with the adapter off.
    Clients that hold forget data alone, as in FIRM, have no second term.
    """

    layer: int = integer(7, "decoder block whose output is steered, counted from 0")
    c: float = positive(6.5, "norm of the control vector")
    mask_padding: bool = flag(True, "leave padding out of the mean; false is the published code's behaviour")
    alpha: float = non_negative(
        0.0, "weight of the retain term; 0: none. The published Zephyr recipe takes 1200"
    )

    @property
    def needs_retain(self) -> bool:
        """Whether a client with this objective must hold retain data as well."""
        return self.alpha > 0.0

    def control_vector(self, width: int, seed: int, domain: str) -> Tensor:
        """Return ``c * u / |u|`` with ``u ~ Uniform[0, 1)^width``, fp32 on the CPU.

        It depends on ``seed``, ``domain`` and ``width`` alone, so that all clients of a domain
        pull the same way.
        """
        generator = torch.Generator().manual_seed(derive_seed(seed, "rmu", "control", domain))
        u = torch.rand(width, generator=generator)
        return u.mul(self.c / float(torch.linalg.vector_norm(u)))

    def prepare(self, model: nn.Module, seed: int, domain: str) -> Loss:
        """Return the loss of a batch; the forward pass ends at the block that is read.

        Raises
        ------
        ModelError
            The model has no such block.
        """
        _, blocks = decoder_blocks(model)
        if not 0 <= self.layer < len(blocks):
            raise ModelError(
                f"objective 'rmu': layer {self.layer}; the model has blocks 0 to {len(blocks) - 1}"
            )
        config: Any = model.config
        target = self.control_vector(config.hidden_size, seed, domain)

        def loss(batch: Batch, retain: Batch | None = None) -> Tensor:
            block = blocks[self.layer]
            kept: Tensor | float = 0.0
            if self.needs_retain:
                with reference(model):
                    frozen = block_output(model, block, needed(retain)).float()
                now = block_output(model, block, needed(retain)).float()
                kept = self.alpha * self._mean_square(now - frozen, needed(retain))
            hidden = block_output(model, block, batch).float()
            return kept + self._mean_square(hidden - target.to(hidden.device), batch)

        return loss

    def _mean_square(self, distance: Tensor, batch: Batch) -> Tensor:
        squares = distance.square().mean(dim=-1)
        if not self.mask_padding:
            return squares.mean()
        mask = batch["attention_mask"].to(squares.dtype)
        return (squares * mask).sum() / mask.sum()


class _ReachedError(Exception):
    """Ends a forward pass where it has what it is for; never leaves this module."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.output = output


def block_output(model: nn.Module, block: nn.Module, batch: Batch) -> Tensor:
    """Run a model up to one block and return the block's output, shape ``[sequences, tokens, width]``.

    The blocks above it and the output layer are not run.
    """

    def stop(_module: nn.Module, _inputs: Any, output: Any) -> None:
        raise _ReachedError(output if isinstance(output, Tensor) else output[0])

    handle = block.register_forward_hook(stop)
    try:
        model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False)
    except _ReachedError as reached:
        return reached.output
    finally:
        handle.remove()
    raise ModelError(f"{type(model).__name__} does not run the block it was asked to stop at")
