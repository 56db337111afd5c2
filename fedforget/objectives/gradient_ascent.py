"""Gradient ascent: the language-modelling loss with its sign turned."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from fedforget.objectives.causal_lm import mean_nll
from fedforget.objectives.registry import Batch, Loss, register


@register(
    "gradient_ascent",
    pretty="Gradient ascent",
    reference="FIRM, section 5: the TOFU forget clients' loss",
    summary="minus the mean negative log-likelihood of the target tokens; unbounded below",
)
@dataclass(frozen=True)
class GradientAscent:
    """Minus the mean negative log-likelihood of the target tokens."""

    def prepare(self, model: nn.Module, seed: int, domain: str) -> Loss:
        """Return the loss of a batch; nothing is drawn."""

        def loss(batch: Batch) -> Tensor:
            return -mean_nll(model, batch)

        return loss
