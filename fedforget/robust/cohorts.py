"""Which clients are out of scale beside their cohort: robust z-scores of logarithms.

For values x of a cohort of at least three, ``z = (log x - m) / max(1.4826 MAD, floor)`` with the median m
and the median absolute deviation MAD of the logarithms; 1.4826 makes MAD the standard deviation of a
normal sample (Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993, with their threshold 3.5).
The floor keeps cohorts that agree closely from accusing whoever differs a little. It is 0.2 inside a domain:
at the threshold 3.5 nobody within a factor of 2 of the median is told. Across domains it is 0.66, a factor
of 10: there honest scales differ, and one domain of many that agree would make outliers of the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedforget.robust.scales import Scale
from fedforget.summaries import ClientSummary

SMALLEST_COHORT = 3
DOMAIN_FLOOR, WIDE_FLOOR = 0.2, 0.66
_NORMAL = 1.4826
# Stands for zero, whose logarithm is not finite.
_TINY = 1e-300
QUANTITIES = {
    "delta": "norm of the task vector",
    "fisher": "norm of the Fisher",
    "peak": "largest entry of the Fisher, as a share of its norm,",
}


def robust_scores(values: Sequence[float], floor: float = DOMAIN_FLOOR) -> list[float]:
    """Return the robust z-score of each value's logarithm; see the module's text.

    Parameters
    ----------
    values : sequence of float
        Non-negative, at least :data:`SMALLEST_COHORT`.
    floor : float
        Least spread of the logarithms.
    """
    logs = np.log(np.maximum(np.asarray(values, dtype=np.float64), _TINY))
    deviations = logs - np.median(logs)
    spread = max(_NORMAL * float(np.median(np.abs(deviations))), floor)
    return [float(one) for one in deviations / spread]


@dataclass(frozen=True)
class Finding:
    """One quantity of one client that is out of scale, at the tensor where it is most so.

    Attributes
    ----------
    client, tensor, quantity : str
        ``quantity`` is a key of :data:`QUANTITIES`.
    cohort : str
        Who it was compared with.
    score : float
        The robust z-score.
    ratio : float
        The value over the cohort's median.
    tensors : int
        Names at which the quantity is beyond the threshold, the sum over all tensors counted as one.
    """

    client: str
    tensor: str
    quantity: str
    cohort: str
    score: float
    ratio: float
    tensors: int

    def sentence(self) -> str:
        """Say it, naming client and tensor."""
        return (
            f"client {self.client!r}: {QUANTITIES[self.quantity]} at {self.tensor!r} is {self.ratio:.3g} "
            f"times the median of {self.cohort} (robust z {self.score:.3g}; {self.tensors} names beyond the "
            "threshold)"
        )


@dataclass(frozen=True)
class Judgement:
    """What the check found.

    Attributes
    ----------
    findings : list of Finding
        By client, then quantity, then cohort.
    unjudgeable : list of str
        Cohorts with too few members to tell, a sentence each.
    scores : dict
        Per client, quantity and cohort the score farthest from zero.
    """

    findings: list[Finding]
    unjudgeable: list[str]
    scores: dict[str, dict[str, float]]


@dataclass(frozen=True)
class _Cohort:
    label: str
    members: list[str]
    quantities: tuple[str, ...]
    floor: float = WIDE_FLOOR


def judge(
    summaries: Sequence[ClientSummary], scales: Mapping[str, Mapping[str, Scale]], threshold: float
) -> Judgement:
    """Compare each client with its domain, and with all clients.

    Task vectors are compared with those of the same role alone: another role has another objective, and
    so another scale. Fishers are all of one loss at one reference and are compared with everybody's.

    Parameters
    ----------
    summaries : sequence of ClientSummary
    scales : mapping
        From :func:`fedforget.robust.measure`.
    threshold : float
        Largest absolute score that is not told.
    """
    findings: dict[tuple[str, str, str], Finding] = {}
    unjudgeable: list[str] = []
    scores: dict[str, dict[str, float]] = {one.client_id: {} for one in summaries}
    for cohort in _cohorts(summaries):
        n = len(cohort.members)
        if n < SMALLEST_COHORT:
            unjudgeable.append(
                f"{cohort.label}: {n} client{'s' if n > 1 else ''}, too few to judge the scale of one by the "
                f"others ({', '.join(cohort.members)})"
            )
            continue
        for quantity in cohort.quantities:
            for name in _common(scales, cohort.members):
                values = [getattr(scales[member][name], quantity) for member in cohort.members]
                if any(math.isnan(value) for value in values):
                    continue
                middle = float(np.median(values))
                scored = robust_scores(values, cohort.floor)
                for member, value, z in zip(cohort.members, values, scored, strict=True):
                    label = f"{quantity}, {cohort.label}"
                    if abs(z) > abs(scores[member].get(label, 0.0)):
                        scores[member][label] = z
                    if abs(z) <= threshold:
                        continue
                    key = (member, quantity, cohort.label)
                    ratio = value / middle if middle else math.inf
                    worst = findings.get(key)
                    count = 1 + (worst.tensors if worst else 0)
                    if worst is None or abs(z) > abs(worst.score):
                        findings[key] = Finding(member, name, quantity, cohort.label, z, ratio, count)
                    else:
                        findings[key] = Finding(**{**vars(worst), "tensors": count})
    return Judgement([findings[key] for key in sorted(findings)], unjudgeable, scores)


def _common(scales: Mapping[str, Mapping[str, Scale]], members: Sequence[str]) -> list[str]:
    """Return the names that all have; where one lacks some, the merge says so."""
    return [name for name in scales[members[0]] if all(name in scales[one] for one in members)]


def _cohorts(summaries: Sequence[ClientSummary]) -> list[_Cohort]:
    groups: dict[tuple[str, str], list[str]] = {}
    roles: dict[str, list[str]] = {}
    for one in summaries:
        groups.setdefault((one.role, one.domain), []).append(one.client_id)
        roles.setdefault(one.role, []).append(one.client_id)
    found = [
        _Cohort(f"{role} domain {domain!r}", sorted(members), tuple(QUANTITIES), DOMAIN_FLOOR)
        for (role, domain), members in sorted(groups.items())
    ]
    found += [
        _Cohort(f"all {role} clients", sorted(members), ("delta",)) for role, members in sorted(roles.items())
    ]
    everyone = sorted(one.client_id for one in summaries)
    return [*found, _Cohort("all clients", everyone, ("fisher", "peak"))]


def to_plain(judgement: Judgement, threshold: float) -> dict[str, Any]:
    """Return a judgement as ``run.json`` holds it."""
    return {
        "threshold": threshold,
        "findings": [{**vars(one), "sentence": one.sentence()} for one in judgement.findings],
        "unjudgeable": judgement.unjudgeable,
        "scores": judgement.scores,
    }
