"""Preference objectives without a preferred answer: NPO, and SimNPO which needs no reference."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from fedforget.objectives.registry import Batch, Loss, register
from fedforget.objectives.terms import WithRetain, reference, sequence_nll
from fedforget.parameters import non_negative, positive


@register(
    "npo",
    pretty="NPO",
    reference="Zhang et al. 2024, Negative preference optimization",
    summary="-(2/beta) log sigmoid(beta (NLL - NLL_ref)), NLL summed over the answer; bounded below by 0",
)
@dataclass(frozen=True)
class NPO(WithRetain):
    """``L = mean_i -(2/beta) log sigmoid(beta (NLL_i - NLL_ref,i)) + alpha * R``.

    ``NLL_i`` is summed over the target tokens of sequence i; ``NLL_ref,i`` is the frozen model's.
    """

    beta: float = positive(0.1, "inverse temperature; towards 0 it becomes gradient ascent")

    def prepare(self, model: nn.Module, seed: int, domain: str) -> Loss:
        """Return the loss of a forget and, with ``alpha``, a retain batch; nothing is drawn."""

        def loss(batch: Batch, retain: Batch | None = None) -> Tensor:
            kept = self.retained(model, retain) if self.needs_retain else 0.0
            with reference(model):
                before, _ = sequence_nll(model, batch)
            now, _ = sequence_nll(model, batch)
            return kept + _preference(now - before, self.beta)

        return loss


@register(
    "simnpo",
    pretty="SimNPO",
    reference="Fan et al. 2024, Simplicity prevails: rethinking negative preference optimization",
    summary="-(2/beta) log sigmoid(beta (NLL / |y| - delta)): no reference model, normalised by length",
)
@dataclass(frozen=True)
class SimNPO(WithRetain):
    """``L = mean_i -(2/beta) log sigmoid(beta (NLL_i / |y_i| - delta)) + alpha * R``.

    ``|y_i|`` counts the target tokens of sequence i.
    """

    beta: float = positive(4.5, "inverse temperature")
    delta: float = non_negative(0.0, "margin in nats per token that the mean NLL is measured from")

    def prepare(self, model: nn.Module, seed: int, domain: str) -> Loss:
        """Return the loss of a forget and, with ``alpha``, a retain batch; nothing is drawn."""

        def loss(batch: Batch, retain: Batch | None = None) -> Tensor:
            kept = self.retained(model, retain) if self.needs_retain else 0.0
            nll, counts = sequence_nll(model, batch)
            return kept + _preference(nll / counts - self.delta, self.beta)

        return loss


def _preference(margin: Tensor, beta: float) -> Tensor:
    return -functional.logsigmoid(beta * margin).mean() * (2.0 / beta)
