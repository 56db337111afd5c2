"""What Gaussian noise on a clipped summary guarantees: the analytic Gaussian mechanism.

A vector of l2 sensitivity S released with noise N(0, sigma^2 I) is (epsilon, delta)-differentially private
exactly where, with ``mu = S / sigma`` (Balle and Wang, ICML 2018, theorem 8),

    delta >= Phi(mu / 2 - epsilon / mu) - exp(epsilon) Phi(-mu / 2 - epsilon / mu).

The two releases of one client, task vector and Fisher, are together one Gaussian release of the two
vectors side by side, each divided by its own sigma: ``mu = sqrt(mu_1^2 + mu_2^2)``, with nothing lost.
"""

from __future__ import annotations

import math
from typing import Any

from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from fedforget.defence_config import PrivacyConfig


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Return the least delta at which a Gaussian release is (epsilon, delta)-private.

    Parameters
    ----------
    epsilon : float
        At least 0.
    mu : float
        Sensitivity over the noise's standard deviation, positive.
    """
    first = float(ndtr(mu / 2 - epsilon / mu))
    return max(0.0, first - math.exp(epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))))


def gaussian_epsilon(delta: float, mu: float) -> float:
    """Return the least epsilon at which a Gaussian release is (epsilon, delta)-private."""
    if gaussian_delta(0.0, mu) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(high, mu) > delta:
        high *= 2.0
    return float(brentq(lambda one: gaussian_delta(one, mu) - delta, 0.0, high, xtol=1e-10))


def account(privacy: PrivacyConfig) -> dict[str, Any]:
    """Return what a run with these settings guarantees each client, in plain values.

    Any two summaries of norm at most C are within 2C of each other: replacing *everything* that a
    client holds moves each clipped vector by at most that, so ``mu = 2 / noise_multiplier`` for each
    of the two releases.
    """
    mu = math.sqrt(2.0) * 2.0 / privacy.noise_multiplier
    return {
        "mechanism": "Gaussian noise on clipped vectors, analytic accounting",
        "epsilon": gaussian_epsilon(privacy.delta, mu),
        "delta": privacy.delta,
        "mu": mu,
        "clip": privacy.clip,
        "fisher_clip": privacy.fisher_clip,
        "noise_multiplier": privacy.noise_multiplier,
        "releases": "one task vector and one Fisher per client, composed",
        "adjacency": "all of one client's data replaced by anything else (local, per client)",
        "not_protected": "client id, role, domain, number of examples, timing, and whether it failed",
        "reproducible": False,
    }


def enabled(privacy: PrivacyConfig) -> bool:
    """Tell whether summaries are released with noise."""
    return privacy.noise_multiplier > 0.0
