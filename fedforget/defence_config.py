"""The sections of a configuration about clients that are not trusted, and a server that is not."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class RobustConfig:
    """Poisoned and careless clients; see docs/robustness.md."""

    # Tell (warn), or end the run (refuse), where the scale of a client's summary is out of its cohort's.
    check: str = "warn"  # off, warn or refuse
    threshold: float = 3.5  # the largest robust z-score that is not told
    # median: scale a task vector down to clip_factor times the median norm of its domain (of three or more).
    clip: str = "none"  # none or median
    clip_factor: float = 1.5
    # How the clients of one forget domain are pooled, task vectors and Fishers: mean, trimmed_mean (drops the
    # `trim` smallest and largest values at each coordinate) or geometric_median.
    pool: str = "mean"
    trim: int = 1


@dataclass
class PrivacyConfig:
    """Local differential privacy of each client's summary; off while everything is 0. See docs/privacy.md."""

    clip: float = 0.0  # norm of the LoRA factors' change from their initialisation, over all weights
    fisher_clip: float = 0.0  # norm of the Fisher, over all weights
    noise_multiplier: float = 0.0  # standard deviation of the noise over the clipping norm, for both
    delta: float = 1.0e-5
