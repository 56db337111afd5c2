"""Token scores against the model's own logits, and membership scores against their definitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from fedforget.data import Example
from fedforget.encoding import encode
from fedforget.errors import DataError
from fedforget.evaluation.accuracy import accuracy
from fedforget.evaluation.language_membership import membership_aucs, membership_scores
from fedforget.evaluation.likelihoods import TokenScores, finite, token_scores
from fedforget.models import Backbone


def test_token_scores_are_the_models_own(byte_backbone: Backbone) -> None:
    examples = [
        Example("a", "x", " a cat", "What is it?"),
        Example("b", "x", "A passage without a prompt."),
        Example("c", "x", "ox"),
    ]
    encoded = encode(byte_backbone.tokenizer, examples, 64)
    done: list[tuple[int, int]] = []
    found = token_scores(
        byte_backbone.model,
        encoded,
        batch_size=2,
        spread=True,
        progress=lambda n, of: done.append((n, of)),
    )
    assert done == [(2, 3), (3, 3)]
    for one, sequence in zip(found, encoded, strict=True):
        with torch.no_grad():
            logs = byte_backbone.model(sequence.input_ids[None]).logits[0, :-1].double().log_softmax(-1)
        wanted = sequence.labels[1:] != -100
        values = logs.gather(1, sequence.input_ids[1:, None])[wanted, 0]
        assert one.values == pytest.approx(values.numpy(), abs=1e-4)
        assert one.loss == pytest.approx(-float(values.mean()), abs=1e-4)
        mean = (logs.exp() * logs).sum(-1)[wanted]
        square = (logs.exp() * logs**2).sum(-1)[wanted]
        assert one.means == pytest.approx(mean.numpy(), abs=1e-4)
        assert one.deviations == pytest.approx((square - mean**2).sqrt().numpy(), abs=1e-3)
    # The answer's tokens and the end, none of the prompt's.
    assert len(found[0].values) == len(" a cat") + 1


def test_a_model_that_changes_its_logits_is_read_through_its_own_forward(byte_backbone: Backbone) -> None:
    model = byte_backbone.model
    encoded = encode(byte_backbone.tokenizer, [Example("a", "x", "A passage.")], 64)
    forward = model.forward

    def doubled(**inputs: Any) -> Any:
        found = forward(**inputs)
        found.logits = 2 * found.logits
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.config, "logit_scale", 2.0, raising=False)  # as such models name it
        patch.setattr(model, "forward", doubled)
        (found,) = token_scores(model, encoded)
    with torch.no_grad():
        logs = (2 * model(encoded[0].input_ids[None]).logits[0, :-1]).log_softmax(-1)
    assert found.values == pytest.approx(
        logs.gather(1, encoded[0].input_ids[1:, None])[:, 0].numpy(), abs=1e-4
    )


def test_membership_scores_by_hand() -> None:
    # Five tokens: the least likely 40 % are two, -4 and -3. Standardised by (mean, deviation) they are
    # (-1+2)/1 = 1, (-4+2)/2 = -1, (-2+3)/.5 = 2, (-3+1)/1 = -2 and 0 where there was no choice.
    scores = TokenScores(
        np.array([-1.0, -4.0, -2.0, -3.0, 0.0]),
        np.array([-2.0, -2.0, -3.0, -1.0, 0.0]),
        np.array([1.0, 2.0, 0.5, 1.0, 0.0]),
    )
    found = membership_scores(scores)
    assert found == {"loss": -2.0, "min_k": -3.5, "min_k_plus_plus": -1.5}
    assert membership_scores(scores, 0.1)["min_k"] == -4.0  # at least one token
    assert membership_scores(scores, 0.35)["min_k"] == -4.0  # 1.75 tokens are one
    with pytest.raises(DataError, match=r"outside \(0, 1\]"):
        membership_scores(scores, 0.0)


def test_aucs_are_sklearns() -> None:
    draw = np.random.default_rng(0)
    names = ("loss", "min_k", "min_k_plus_plus")
    members = [dict.fromkeys(names, float(v)) for v in draw.normal(0.5, 1, 30)]
    others = [dict.fromkeys(names, float(v)) for v in draw.normal(0, 1, 20)]
    found = membership_aucs(members, others)
    wanted = roc_auc_score([1] * 30 + [0] * 20, [one["loss"] for one in members + others])
    for name in names:
        assert found[name]["value"] == pytest.approx(wanted)
        assert found[name]["low"] < wanted < found[name]["high"]
        assert math.isfinite(found[name]["standard_error"])


def test_accuracy_through_evaluate_needs_no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert accuracy([0, 1, 2, 2], [0, 1, 1, 2]) == {"accuracy": 0.75, "count": 4}


def test_scores_of_a_ruined_model_are_refused() -> None:
    nothing = np.empty(0)
    fine = TokenScores(np.array([-1.0, -2.0]), nothing, nothing)
    assert finite([fine]) == [fine]
    for value in (math.nan, -math.inf):
        with pytest.raises(DataError, match="log-likelihoods are not numbers"):
            finite([fine, TokenScores(np.array([-1.0, value]), nothing, nothing)])
