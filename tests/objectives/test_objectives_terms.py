"""The objectives with a reference or a retain term, against the same losses written out in NumPy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from test_objectives_rmu import hidden

from fedforget.adapters import lora_attached
from fedforget.checks.run import contradictions
from fedforget.config import ClientGroup, LoraConfig, ObjectiveConfig, RoleConfig, RunConfig
from fedforget.errors import ModelError, TrainingError
from fedforget.models import Backbone
from fedforget.objectives import needs_retain, objective, terms


def batch(first: int) -> dict[str, torch.Tensor]:
    """Two sequences; targets are columns 2 to 5 of the first and 2 to 3 of the second."""
    ids = torch.arange(first, first + 12).reshape(2, 6)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    labels = torch.where(mask == 1, ids, -100)
    labels[:, :2] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


FORGET, RETAIN = batch(3), batch(20)


@pytest.fixture
def adapted(tiny_backbone: Backbone) -> Iterator[Any]:
    """A model whose adapter does something, so that it differs from its reference."""
    with lora_attached(tiny_backbone, LoraConfig(r=2, targets=["down_proj"]), seed=0) as model:
        draw = torch.Generator().manual_seed(1)
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.data.copy_(0.3 * torch.randn(weight.shape, generator=draw))
        yield model


def log_probabilities(model: Any, given: dict[str, torch.Tensor]) -> np.ndarray:
    with torch.no_grad():
        out = model(input_ids=given["input_ids"], attention_mask=given["attention_mask"])
    logits = out.logits.numpy().astype(np.float64)[:, :-1]
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def frozen(model: Any, given: dict[str, torch.Tensor]) -> np.ndarray:
    with model.disable_adapter():
        return log_probabilities(model, given)


def nll(scores: np.ndarray, given: dict[str, torch.Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """Summed NLL and number of targets of each sequence."""
    labels = given["labels"].numpy()[:, 1:]
    wanted = labels != -100
    each = -np.take_along_axis(scores, np.where(wanted, labels, 0)[..., None], axis=-1)[..., 0]
    return (each * wanted).sum(axis=1), wanted.sum(axis=1)


def kl(model: Any, given: dict[str, torch.Tensor]) -> float:
    before, now = frozen(model, given), log_probabilities(model, given)
    wanted = given["labels"].numpy()[:, 1:] != -100
    return float(((np.exp(before) * (before - now)).sum(axis=-1) * wanted).sum() / wanted.sum())


def mean(model: Any, given: dict[str, torch.Tensor]) -> float:
    total, count = nll(log_probabilities(model, given), given)
    return float(total.sum() / count.sum())


def value(model: Any, name: str, *given: Any, **parameters: Any) -> float:
    return float(objective(name, **parameters).prepare(model, 0, "x")(*given))


def softplus(x: np.ndarray) -> np.ndarray:
    """``-log sigmoid(-x)``."""
    return np.log1p(np.exp(x))


def test_npo_by_definition(adapted: Any) -> None:
    now, _ = nll(log_probabilities(adapted, FORGET), FORGET)
    before, _ = nll(frozen(adapted, FORGET), FORGET)
    assert np.abs(now - before).min() > 0.01
    expected = np.mean(2 / 0.1 * softplus(-0.1 * (now - before)))
    assert value(adapted, "npo", FORGET) == pytest.approx(expected, rel=1e-5)
    held = value(adapted, "npo", FORGET, RETAIN, alpha=0.5, beta=0.3)
    expected = np.mean(2 / 0.3 * softplus(-0.3 * (now - before))) + 0.5 * mean(adapted, RETAIN)
    assert held == pytest.approx(expected, rel=1e-5)


def test_npo_starts_at_two_over_beta_log_two(tiny_backbone: Backbone) -> None:
    # A fresh adapter adds nothing: NLL = NLL_ref, so the loss is -(2/beta) log(1/2).
    with lora_attached(tiny_backbone, LoraConfig(r=2), seed=0) as model:
        assert value(model, "npo", FORGET, beta=0.1) == pytest.approx(20 * np.log(2), rel=1e-6)
        assert value(model, "causal_lm", FORGET, kl=5.0) == pytest.approx(mean(model, FORGET), rel=1e-5)


def test_simnpo_by_definition(adapted: Any) -> None:
    total, count = nll(log_probabilities(adapted, FORGET), FORGET)
    assert count.tolist() == [4, 2]
    expected = np.mean(2 / 4.5 * softplus(-4.5 * total / count))
    assert value(adapted, "simnpo", FORGET) == pytest.approx(expected, rel=1e-4)
    expected = np.mean(2 / 0.5 * softplus(-0.5 * (total / count - 3.0)))
    assert value(adapted, "simnpo", FORGET, beta=0.5, delta=3.0) == pytest.approx(expected, rel=1e-5)


def test_the_gradient_difference_and_its_divergence(adapted: Any) -> None:
    ascent, kept, drift = mean(adapted, FORGET), mean(adapted, RETAIN), kl(adapted, RETAIN)
    assert drift > 1e-3
    found = value(adapted, "grad_diff", FORGET, RETAIN, gamma=0.5, alpha=2.0)
    assert found == pytest.approx(2.0 * kept - 0.5 * ascent, rel=1e-5)
    found = value(adapted, "grad_diff", FORGET, RETAIN, retain_loss="kl")
    assert found == pytest.approx(drift - ascent, rel=1e-5)
    assert value(adapted, "kl_regularised", FORGET, RETAIN) == found
    found = value(adapted, "causal_lm", RETAIN, kl=0.7)
    assert found == pytest.approx(kept + 0.7 * drift, rel=1e-5)


class Sharp:
    """Gives other logits with its adapter off, far enough apart for the two divergences to differ."""

    def __init__(self) -> None:
        self.now, self.before = (
            3.0 * torch.randn(2, 6, 9, generator=torch.Generator().manual_seed(s)) for s in (0, 1)
        )
        self.on = True

    def __call__(self, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(logits=self.now if self.on else self.before)

    @contextlib.contextmanager
    def disable_adapter(self) -> Iterator[None]:
        self.on = False
        yield
        self.on = True


def test_the_divergence_is_from_the_reference_to_the_model() -> None:
    model: Any = Sharp()
    assert float(terms.divergence(model, FORGET)) == pytest.approx(kl(model, FORGET), rel=1e-5)
    model.now, model.before = model.before, model.now
    assert float(terms.divergence(model, FORGET)) == pytest.approx(kl(model, FORGET), rel=1e-5)


def test_rmu_with_its_retain_term(adapted: Any) -> None:
    alone = value(adapted, "rmu", FORGET, layer=0, c=2)
    ids, mask = RETAIN["input_ids"], RETAIN["attention_mask"]
    with torch.no_grad():
        now = adapted(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states[1]
        with adapted.disable_adapter():
            before = adapted(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states[1]
    squares = ((now - before).double() ** 2).mean(dim=-1)[mask == 1]
    assert hidden(adapted, 0).shape == (2, 7, 32)
    expected = alone + 3.0 * float(squares.mean())
    assert value(adapted, "rmu", FORGET, RETAIN, layer=0, c=2, alpha=3.0) == pytest.approx(expected, rel=1e-5)
    assert expected > alone


@pytest.mark.parametrize("name", ["npo", "kl_regularised", "grad_diff", "simnpo"])
def test_gradients_reach_the_adapter_and_flags_are_left_alone(adapted: Any, name: str) -> None:
    flags = {n: p.requires_grad for n, p in adapted.named_parameters()}
    objective(name).prepare(adapted, 0, "x")(FORGET, RETAIN).backward()
    assert {n: p.requires_grad for n, p in adapted.named_parameters()} == flags
    weights = [p for n, p in adapted.named_parameters() if "lora_B" in n]
    assert all(p.grad is not None and float(p.grad.abs().max()) > 0 for p in weights)


def test_a_missing_adapter_or_retain_batch_is_told(tiny_backbone: Backbone) -> None:
    with pytest.raises(ModelError, match="needs an adapter"), terms.reference(tiny_backbone.model):
        pass
    with pytest.raises(TrainingError, match="name the group's retain_domain"):
        value(tiny_backbone.model, "grad_diff", FORGET)


def test_who_needs_retain_data() -> None:
    needing = {
        name for name in ("rmu", "grad_diff", "npo", "kl_regularised") if needs_retain(objective(name))
    }
    assert needing == {"grad_diff", "kl_regularised"}
    assert needs_retain(objective("rmu", alpha=1200))
    assert not needs_retain(objective("grad_diff", alpha=0))


@pytest.mark.parametrize(
    ("name", "alpha", "forget", "retain", "wanted"),
    [
        (
            "grad_diff",
            1.0,
            "",
            "",
            "clients[0].retain_domain: is empty, and forget.objective 'grad_diff' has",
        ),
        ("grad_diff", 1.0, "b", "", ""),
        ("grad_diff", 1.0, "a", "", "clients[0].retain_domain: 'a' is a domain to forget"),
        ("npo", 0.0, "b", "", "clients[0].retain_domain: forget.objective 'npo' does not read it"),
        ("grad_diff", 1.0, "b", "b", "clients[1].retain_domain: a retain client does not read it"),
    ],
)
def test_the_configuration_says_who_holds_retain_data(
    name: str, alpha: float, forget: str, retain: str, wanted: str
) -> None:
    config = RunConfig(
        clients=[
            ClientGroup("forget", "a", retain_domain=forget),
            ClientGroup("retain", "b", retain_domain=retain),
        ],
        forget=RoleConfig(ObjectiveConfig(name, {"alpha": alpha})),
    )
    found = [problem for problem in contradictions(config) if "retain_domain" in problem]
    assert [problem[: len(wanted)] for problem in found] == ([wanted] if wanted else [])
