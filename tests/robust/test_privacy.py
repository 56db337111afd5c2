"""The analytic Gaussian mechanism, and what clipping and noise do to a summary."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from robust_worlds import federation
from scipy import integrate, stats

from fedforget.checks.run import contradictions
from fedforget.config import ClientGroup, CommunicationConfig, RunConfig
from fedforget.defence_config import PrivacyConfig, RobustConfig
from fedforget.factors import LoraFactors
from fedforget.files import plain
from fedforget.privacy import account, gaussian_delta, gaussian_epsilon, private_fisher, private_task_vector
from fedforget.privacy.release import gaussian
from fedforget.reporting import defences
from fedforget.robust import Hardening


@pytest.mark.parametrize(("epsilon", "mu"), [(0.0, 1.0), (1.0, 1.0), (0.5, 2.0), (3.0, 0.7)])
def test_delta_is_the_hockey_stick_divergence(epsilon: float, mu: float) -> None:
    # By definition: delta = integral of max(0, p - e^epsilon q), p = N(mu, 1), q = N(0, 1).
    def over(x: float) -> float:
        return max(0.0, float(stats.norm.pdf(x, mu) - math.exp(epsilon) * stats.norm.pdf(x)))

    wanted, _ = integrate.quad(over, epsilon / mu + mu / 2, mu + 40.0, epsabs=1e-13)
    assert gaussian_delta(epsilon, mu) == pytest.approx(wanted, rel=1e-6)


def test_epsilon_of_known_releases() -> None:
    # Total variation of N(0, 1) and N(1, 1): 2 Phi(1/2) - 1.
    assert gaussian_delta(0.0, 1.0) == pytest.approx(2 * stats.norm.cdf(0.5) - 1)
    # sigma of the analytic mechanism for epsilon 1, delta 1e-5, sensitivity 1; the classical one is 4.845.
    assert gaussian_epsilon(1e-5, 1 / 3.730632) == pytest.approx(1.0, abs=1e-5)
    assert gaussian_epsilon(0.5, 1.0) == 0.0
    assert gaussian_epsilon(1e-5, 30.0) > 450  # exp does not overflow on the way
    # Two releases of 2C under noise zC: mu = 2 sqrt(2) / z.
    found = account(PrivacyConfig(1.0, 2.0, noise_multiplier=2 * math.sqrt(2) * 3.730632))
    assert found["epsilon"] == pytest.approx(1.0, abs=1e-5)
    assert found["reproducible"] is False


def test_noise_is_normal_and_comes_from_no_seed() -> None:
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    first = gaussian(20_000)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    assert not torch.equal(first, gaussian(20_000))
    # Fails once in 10^9 runs: six standard errors.
    assert abs(float(first.mean())) < 6 / math.sqrt(20_000)
    assert abs(float(first.var()) - 1) < 6 * math.sqrt(2 / 20_000)


def test_the_change_is_clipped_and_the_noise_has_the_stated_size() -> None:
    torch.manual_seed(0)
    start = {"w": LoraFactors(torch.randn(4, 50), torch.zeros(60, 4), 2.0)}
    end = {"w": LoraFactors(start["w"].A + 5.0, torch.ones(60, 4), 2.0)}
    # Without noise: a change of norm C in the trained direction.
    clipped = private_task_vector(end, start, clip=0.3, noise=0.0)["w"]
    moved = torch.cat([(clipped.A - start["w"].A).flatten(), clipped.B.flatten()])
    assert float(moved.norm()) == pytest.approx(0.3, rel=1e-4)
    assert float(moved[0] / moved[-1]) == pytest.approx(5.0, rel=1e-3)
    assert clipped.scale == 2.0
    noised = private_task_vector(end, start, clip=0.3, noise=2.0)["w"]
    spread = torch.cat([(noised.A - clipped.A).flatten(), (noised.B - clipped.B).flatten()])
    assert float(spread.std()) == pytest.approx(0.6, rel=6 / math.sqrt(2 * 440))


def test_a_private_fisher_is_clipped_noised_and_not_negative() -> None:
    fisher = {"w": torch.full((30, 40), 2.0, dtype=torch.bfloat16)}
    plain = private_fisher(fisher, clip=1.0, noise=0.0)["w"]
    assert float(plain.float().norm()) == pytest.approx(1.0, rel=1e-2)
    noised = private_fisher(fisher, clip=1.0, noise=1.0)["w"]
    assert noised.dtype == torch.bfloat16
    assert float(noised.min()) == 0.0
    # The noise, sigma 1, is far above the signal, 1 / sqrt(1200): half of the entries are cut off.
    assert 0.3 < float((noised > 0).float().mean()) < 0.7


def test_settings_without_a_guarantee_are_refused() -> None:
    groups = [ClientGroup("forget", "bio", 1)]

    def told(privacy: PrivacyConfig, fisher: str = "exact") -> list[str]:
        config = RunConfig(clients=groups, privacy=privacy, communication=CommunicationConfig(fisher))
        return contradictions(config)

    assert told(PrivacyConfig()) == []
    assert told(PrivacyConfig(1.0, 1.0, 2.0)) == []
    assert "privacy.noise_multiplier: is 0" in told(PrivacyConfig(1.0, 1.0))[0]
    assert "privacy.delta: 0.0 is outside" in told(PrivacyConfig(delta=0.0))[0]
    assert "releases its summary once" in told(PrivacyConfig(1.0, 1.0, 2.0), "two-phase")[0]


def test_the_report_says_what_was_guaranteed_and_what_could_not_be_judged() -> None:
    hardening = Hardening(federation(members=2, retain=1), RobustConfig(clip="median"))
    hardening.for_method("firm")
    record = {"robust": plain(hardening.report), "privacy": plain(account(PrivacyConfig(1.0, 1.0, 3.0)))}
    shown = {table.title: table for table in defences.tables_of(record)}
    assert ["releases", "one task vector and one Fisher per client, composed"] in shown["Privacy"].rows
    assert any("domain 'bio': 2 clients" in note for note in shown["Scale of the summaries"].notes)
    told = defences.warnings(record)
    assert "Not clipped, for want of a cohort of three: forget-bio-0, forget-bio-1, retain-general-0." in told
    assert any("cannot be reproduced" in one for one in told)
