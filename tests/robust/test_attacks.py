"""What the page on robustness claims of each option, on the federation that its tables are measured on."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def attacks() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "attacks.py"
    spec = importlib.util.spec_from_file_location("attacks", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["attacks"] = module
    spec.loader.exec_module(module)
    return module


def test_robust_pools_withstand_one_forget_client_of_five(attacks: ModuleType) -> None:
    honest = attacks.federation()
    for attack in (
        "forget task vector flipped",
        "forget task vector flipped, times 100",
        "forget Fisher times 1e6, task vector flipped",
        "one forget Fisher entry 1e15",
    ):
        plain = attacks.outcome(attack, "mean", honest).error
        for option in ("trimmed mean", "geometric median"):
            assert attacks.outcome(attack, option, honest).error < min(0.2, plain), (attack, option)


def test_clipping_bounds_an_inflated_norm_and_nothing_of_the_usual_norm(attacks: ModuleType) -> None:
    honest = attacks.federation()
    inflated = "forget task vector flipped, times 100"
    assert attacks.outcome(inflated, "mean", honest).error > 5.0
    assert attacks.outcome(inflated, "clip", honest).error < 0.5
    flipped = "forget task vector flipped"
    same = [attacks.outcome(flipped, option, honest).error for option in ("mean", "clip")]
    assert same[1] == pytest.approx(same[0], abs=0.05)


def test_max_normalisation_answers_a_scaled_retain_fisher_and_not_a_spike(attacks: ModuleType) -> None:
    honest = attacks.federation()
    assert attacks.outcome("retain Fisher times 1e6", "mean", honest).error < 1e-3
    spiked = attacks.outcome("one retain Fisher entry 1e15", "mean", honest)
    # The attacker's own constraint is lifted: honest protection of its data is lost, whatever the pooling.
    assert spiked.damage > 1.5
    assert attacks.outcome("one retain Fisher entry 1e15", "trimmed mean", honest).damage > 1.5


def test_a_copied_retain_client_is_harmless_until_it_disagrees(attacks: ModuleType) -> None:
    honest = attacks.federation()
    copied, flipped = "a retain client copied", "a retain client copied, task vector flipped"
    assert attacks.outcome(copied, "mean", honest).damage <= 1.0 + 1e-6
    assert attacks.outcome(flipped, "mean", honest).damage <= 1.0 + 1e-6
    assert attacks.told(flipped, honest) == []  # nothing is out of scale, so the check says nothing
    assert attacks.outcome(flipped, "mean", honest).error > attacks.outcome(copied, "mean", honest).error


def test_the_check_names_what_is_out_of_scale_and_nobody_else(attacks: ModuleType) -> None:
    honest = attacks.federation()
    assert attacks.told("none", honest) == []
    assert attacks.told("forget task vector flipped", honest) == []
    for attack in ("forget Fisher times 1e6", "one forget Fisher entry 1e15", "forget task vector times 100"):
        assert attacks.told(attack, honest) == [attacks.FORGET], attack
    for attack in ("retain Fisher times 1e6", "one retain Fisher entry 1e15", "retain task vector times 100"):
        assert attacks.told(attack, honest) == [attacks.RETAIN], attack
