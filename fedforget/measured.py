"""What an evaluation measured, as plain numbers by name: for comparisons and for means over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ROLES = ("forget", "retain", "held_out")


def measures(metrics: Mapping[str, Any], roles: Sequence[str] = ROLES) -> dict[str, float]:
    """Return the accuracy of each role, then of each domain of these roles, the perplexity, and ROUGE-L.

    Parameters
    ----------
    metrics : mapping
        What :meth:`fedforget.evaluation.Suite.evaluate` returned, or its JSON.
    roles : sequence of str
    """
    found = {role: float(metrics[role]["accuracy"]) for role in roles if role in metrics}
    domains = metrics.get("domains", {})
    found |= {name: float(one["accuracy"]) for name, one in domains.items() if one.get("role") in roles}
    if "perplexity" in metrics:
        found["perplexity"] = float(metrics["perplexity"]["perplexity"])
    return found | rouge(metrics, roles)


def no_accuracies(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Return what stands in accuracy's place, per domain that is measured by something else."""
    return {
        domain: one["measure"]
        for domain, one in metrics.get("domains", {}).items()
        if one.get("measure", "accuracy") != "accuracy"
    }


def rouge(metrics: Mapping[str, Any], roles: Sequence[str] = ROLES) -> dict[str, float]:
    """Return the ROUGE-L recall of each domain of some roles, as ``ROUGE-L <domain>``, where it was taken."""
    domains = metrics.get("rouge", {})
    return {f"ROUGE-L {name}": float(one["recall"]) for name, one in domains.items() if one["role"] in roles}
