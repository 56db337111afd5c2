"""The built-in scorer against lm-eval: the same questions, to the item."""

from __future__ import annotations

from pathlib import Path

import benchmark_files
import pytest

from fedforget.data import load_data
from fedforget.data_config import DataConfig
from fedforget.errors import ConfigError
from fedforget.evaluation.choice_suites import choice_measures, choice_summary
from fedforget.evaluation.measures import Subject
from fedforget.models import Backbone


@pytest.mark.parametrize("family", ["wmdp", "mmlu"])
def test_the_built_in_scorer_agrees_with_lm_eval_to_the_item(
    family: str, tmp_path: Path, byte_backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    path = getattr(benchmark_files, family)(tmp_path / family)
    data = load_data(DataConfig(family=family, path=str(path)), seed=0)
    domains = {"bio": "forget"} if family == "wmdp" else {"mmlu": "held_out"}
    subject = Subject(byte_backbone.model, byte_backbone.tokenizer, batch_size=4)
    split = "all" if family == "wmdp" else "report"
    (ours,) = choice_measures(data, domains, split=split)  # type: ignore[arg-type]
    (theirs,) = choice_measures(data, domains, split=split, scorer="lm-eval")  # type: ignore[arg-type]
    a, b = ours.compute(subject), theirs.compute(subject)
    assert len(a) == (12 if family == "wmdp" else 20)
    assert [row["prediction"] for row in a] == [row["prediction"] for row in b]
    for one, other in zip(a, b, strict=True):
        assert one["log_likelihoods"] == pytest.approx(other["log_likelihoods"], abs=1e-4)
    assert choice_summary({"x": a})["domains"] == choice_summary({"x": b})["domains"]
    # Were all predictions alike, agreement would say little.
    assert len({row["prediction"] for row in a}) > 1


def test_without_lm_eval_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedforget.evaluation import lm_harness

    monkeypatch.setattr(lm_harness.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'fedforget\[eval\]'"):
        lm_harness.harness_scores(None, None, [])
