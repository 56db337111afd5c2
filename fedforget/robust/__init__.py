"""Poisoned and careless clients: checks on the scale of summaries, clipping, and robust pooling."""

from fedforget.robust.cohorts import Finding, Judgement, judge, robust_scores
from fedforget.robust.geometric import GeometricMedian, geometric_median, squared_distances
from fedforget.robust.hardening import Hardening
from fedforget.robust.scales import ALL, Scale, measure
from fedforget.robust.trimmed import trimmed_mean

__all__ = [
    "ALL",
    "Finding",
    "GeometricMedian",
    "Hardening",
    "Judgement",
    "Scale",
    "geometric_median",
    "judge",
    "measure",
    "robust_scores",
    "squared_distances",
    "trimmed_mean",
]
