"""Language modelling: what retain clients minimise."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from fedforget.objectives.registry import Batch, Loss, register
from fedforget.objectives.terms import divergence, mean_nll
from fedforget.parameters import between, non_negative


@register(
    "causal_lm",
    pretty="Language modelling",
    reference="FIRM, section 5: the retain clients' loss",
    summary="mean negative log-likelihood of the target tokens, with kl held near the frozen model",
)
@dataclass(frozen=True)
class CausalLM:
    """``L = NLL + kl * KL(p_ref || p)``, both averaged over the target tokens."""

    prompt_weight: float = between(
        0.0, 0.0, 1.0, "weight of the prompt's tokens in the mean; targets weigh 1"
    )
    kl: float = non_negative(0.0, "weight of the divergence from the frozen model on the same tokens")

    def prepare(self, model: nn.Module, seed: int, domain: str) -> Loss:
        """Return the loss of a batch; nothing is drawn."""

        def loss(batch: Batch, retain: Batch | None = None) -> Tensor:
            del retain
            # The reference goes first, see fedforget.objectives.terms.reference.
            drift = self.kl * divergence(model, batch) if self.kl else 0.0
            return mean_nll(model, batch, self.prompt_weight) + drift

        return loss
