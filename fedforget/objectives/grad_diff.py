"""Gradient difference: ascend on forget data, hold on to retain data."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from fedforget.objectives.registry import Batch, Loss, register
from fedforget.objectives.terms import WithRetain, mean_nll
from fedforget.parameters import non_negative, positive


@register(
    "grad_diff",
    pretty="GradDiff",
    reference="Liu et al. 2022; Maini et al. 2024 (TOFU): gradient difference",
    summary="minus gamma NLL on forget data, plus alpha times NLL (or KL to the frozen model) on retain data",
)
@dataclass(frozen=True)
class GradDiff(WithRetain):
    """``L = -gamma * NLL_f + alpha * R``, with ``R = NLL_r`` or ``KL(p_ref || p)`` on retain data.

    Each term is a mean over its batch's target tokens.
    """

    alpha: float = non_negative(1.0, "weight of the term on retain data; 0: none, and none is needed")
    gamma: float = positive(1.0, "weight of the ascent on forget data")

    def prepare(self, model: nn.Module, seed: int, domain: str) -> Loss:
        """Return the loss of a forget and a retain batch; nothing is drawn."""

        def loss(batch: Batch, retain: Batch | None = None) -> Tensor:
            kept = self.retained(model, retain) if self.needs_retain else 0.0
            return kept - self.gamma * mean_nll(model, batch)

        return loss


@register(
    "kl_regularised",
    pretty="KL-regularised ascent",
    reference="Maini et al. 2024 (TOFU): KL minimisation",
    summary="minus gamma NLL on forget data, plus alpha KL(frozen model || model) on retain data",
)
@dataclass(frozen=True)
class KLRegularised:
    """``L = -gamma * NLL_f + alpha * KL(p_ref || p)``, the divergence on retain data.

    It is ``grad_diff`` with ``retain_loss=kl``, under the name that the literature gives it.
    """

    alpha: float = positive(1.0, "weight of the divergence on retain data")
    gamma: float = positive(1.0, "weight of the ascent on forget data")

    @property
    def needs_retain(self) -> bool:
        """Always: the divergence is taken on retain data."""
        return True

    def prepare(self, model: nn.Module, seed: int, domain: str) -> Loss:
        """Return the loss of a forget and a retain batch; nothing is drawn."""
        return GradDiff(alpha=self.alpha, gamma=self.gamma, retain_loss="kl").prepare(model, seed, domain)
