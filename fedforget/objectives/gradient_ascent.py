"""Gradient ascent: the language-modelling loss with its sign turned."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from fedforget.objectives.registry import Batch, Loss, register
from fedforget.objectives.terms import mean_nll


@register(
    "gradient_ascent",
    pretty="Gradient ascent",
    reference="FIRM, section 5: the TOFU forget clients' loss",
    summary="minus the mean negative log-likelihood of the target tokens; unbounded below, so keep it short",
)
@dataclass(frozen=True)
class GradientAscent:
    """``L = -NLL``, averaged over the target tokens.

    It has no minimum: ``training.loss_limit`` stops a client whose loss runs away.
    """

    def prepare(self, model: nn.Module, seed: int, domain: str) -> Loss:
        """Return the loss of a batch; nothing is drawn."""

        def loss(batch: Batch, retain: Batch | None = None) -> Tensor:
            del retain
            return -mean_nll(model, batch)

        return loss
