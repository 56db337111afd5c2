"""The registry of objectives, and the two that are a language-modelling loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedforget.errors import ConfigError
from fedforget.models import Backbone
from fedforget.objectives import objective, objectives

IDS = torch.arange(3, 15).reshape(2, 6)
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
LABELS = torch.where(MASK == 1, IDS, -100)
LABELS[:, :2] = -100  # the prompt
BATCH = {"input_ids": IDS, "attention_mask": MASK, "labels": LABELS}


def nll(backbone: Backbone) -> np.ndarray:
    """Negative log-likelihood of every token but the first, by definition."""
    with torch.no_grad():
        logits = backbone.model(input_ids=IDS, attention_mask=MASK).logits.numpy().astype(np.float64)
    scores = np.log(np.exp(logits).sum(axis=-1, keepdims=True)) - logits
    return np.take_along_axis(scores[:, :-1], IDS.numpy()[:, 1:, None], axis=-1)[..., 0]


def test_every_objective_describes_itself() -> None:
    found = objectives()
    assert list(found) == [
        "causal_lm", "grad_diff", "gradient_ascent", "kl_regularised", "npo", "rmu", "simnpo",
    ]  # fmt: skip
    for description in found.values():
        assert description.pretty
        assert description.reference
        assert description.summary
        assert all(parameter.help for parameter in description.parameters)
    assert {p.name: p.default for p in found["rmu"].parameters} == {
        "layer": 7,
        "c": 6.5,
        "mask_padding": True,
        "alpha": 0.0,
    }


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown objective 'rmuu' \(did you mean 'rmu'\?\)"):
        objective("rmuu")
    with pytest.raises(ConfigError, match=r"unknown parameter 'layers' \(did you mean 'layer'\?\)"):
        objective("rmu", layers=3)
    with pytest.raises(ConfigError, match="c must be a positive finite number"):
        objective("rmu", c=-1.0)


def test_language_modelling_is_the_mean_over_target_tokens(tiny_backbone: Backbone) -> None:
    # Targets are columns 2 to 5 of the first row and 2 to 3 of the second: six tokens.
    scores = nll(tiny_backbone)
    expected = (scores[0, 1:].sum() + scores[1, 1:3].sum()) / 6
    found = objective("causal_lm").prepare(tiny_backbone.model, 0, "x")(BATCH)
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_gradient_ascent_turns_the_sign(tiny_backbone: Backbone) -> None:
    up = objective("gradient_ascent").prepare(tiny_backbone.model, 0, "x")(BATCH)
    down = objective("causal_lm").prepare(tiny_backbone.model, 0, "x")(BATCH)
    assert float(up) == -float(down)
    assert float(up) < 0.0


def test_the_prompt_may_weigh_something(tiny_backbone: Backbone) -> None:
    # Column 1 of both rows is the prompt's one predicted token: weight 0.1, the six targets 1.
    scores = nll(tiny_backbone)
    expected = (scores[0, 1:].sum() + scores[1, 1:3].sum() + 0.1 * scores[:, 0].sum()) / 6.2
    found = objective("causal_lm", prompt_weight=0.1).prepare(tiny_backbone.model, 0, "x")(BATCH)
    assert float(found) == pytest.approx(expected, rel=1e-5)
