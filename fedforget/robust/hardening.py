"""What ``config.robust`` does to a round's summaries before they are merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from fedforget.defence_config import RobustConfig
from fedforget.errors import SummaryError
from fedforget.merging.registry import methods
from fedforget.robust import geometric, trimmed
from fedforget.robust.cohorts import SMALLEST_COHORT, judge, to_plain
from fedforget.robust.scales import ALL, Scale, measure
from fedforget.robust.streams import Derived, Scaled
from fedforget.sparse_fisher import SparseFisher
from fedforget.summaries import ClientSummary

OFF = RobustConfig(check="off")
TRIMMED, GEOMETRIC = "trimmed_mean", "geometric_median"


class Hardening:
    """The summaries of a round as a merge method is to see them: checked, clipped, pooled robustly.

    Nothing is copied: what changes is computed block by block when the merge reads it. The order is check,
    then clip, then pool. With check off, clip none and pool mean the summaries pass through as they are,
    unread.

    Parameters
    ----------
    summaries : sequence of ClientSummary
    config : RobustConfig

    Attributes
    ----------
    report : dict
        What was found and done, in plain values; grows as things are done.

    Raises
    ------
    SummaryError
        With ``check: refuse``, a client is out of scale: names each, with the tensor. Or a value is not
        finite.
    """

    def __init__(self, summaries: Sequence[ClientSummary], config: RobustConfig) -> None:
        self._config = config
        self._summaries = sorted(summaries, key=lambda one: one.client_id)
        self.report: dict[str, Any] = {"check": config.check, "clip": config.clip, "pool": config.pool}
        if config.check != "off":
            self._check()

    def for_method(self, method: str) -> list[ClientSummary]:
        """Return what a method is to merge.

        A method that does not pool by domain gets the clipped summaries of every client.

        Raises
        ------
        SummaryError
            A domain has too few clients for the pooling, or one did not send its whole Fisher.
        """
        if self._config.pool == "mean":
            return self._clipped
        if method not in methods() or not methods()[method].pools:
            self.report["pool_effect"] = f"none: method {method!r} does not pool by domain"
            return self._clipped
        summaries, effect = self._pooled
        self.report["pool_effect"] = effect
        return summaries

    @cached_property
    def _scales(self) -> dict[str, dict[str, Scale]]:
        return measure(self._summaries)

    def _check(self) -> None:
        judgement = judge(self._summaries, self._scales, self._config.threshold)
        self.report["scale"] = to_plain(judgement, self._config.threshold)
        if self._config.check == "refuse" and judgement.findings:
            lines = "; ".join(one.sentence() for one in judgement.findings)
            raise SummaryError(
                f"robust.check refuses the round: {lines}; look at these clients, and leave them out or set "
                "robust.check to warn"
            )

    @cached_property
    def _clipped(self) -> list[ClientSummary]:
        if self._config.clip == "none":
            return self._summaries
        effect: dict[str, Any] = {}
        found = []
        for members in _groups(self._summaries).values():
            norms = [self._scales[one.client_id][ALL].delta for one in members]
            limit = self._config.clip_factor * float(np.median(norms))
            for one, norm in zip(members, norms, strict=True):
                if len(members) < SMALLEST_COHORT:
                    effect[one.client_id] = {
                        "norm": norm,
                        "clipped_share": 0.0,
                        "why_not": f"{len(members)} in its domain",
                    }
                    found.append(one)
                    continue
                factor = min(1.0, limit / norm) if norm else 1.0
                effect[one.client_id] = {"norm": norm, "limit": limit, "clipped_share": 1.0 - factor}
                found.append(
                    one if factor == 1.0 else replace(one, deltas=Scaled(one, of_fisher=False, factor=factor))
                )
        self.report["clip_effect"] = {"factor": self._config.clip_factor, "clients": effect}
        return sorted(found, key=lambda one: one.client_id)

    @cached_property
    def _pooled(self) -> tuple[list[ClientSummary], dict[str, Any]]:
        found, effect = [], {}
        for (role, domain), members in _groups(self._clipped).items():
            if role != "forget":
                found += members
            elif len(members) == 1:
                found += members
                effect[domain] = {"members": 1, "note": "one client, nothing to pool"}
            else:
                self._require(domain, members)
                pool = _trimmed if self._config.pool == TRIMMED else _geometric
                summaries, effect[domain] = pool(members, self._config.trim)
                found += summaries
        return sorted(found, key=lambda one: one.client_id), effect

    def _require(self, domain: str, members: Sequence[ClientSummary]) -> None:
        least = fewest(self._config)
        if len(members) < least:
            raise SummaryError(
                f"domain {domain!r}: {len(members)} clients, and robust.pool {self._config.pool!r} needs at "
                f"least {least}; add clients, or set robust.pool to mean"
            )
        for one in members:
            partly = one.coverage.kind in ("top", "pooled-top")
            if partly or any(isinstance(value, SparseFisher) for value in one.fisher.values()):
                raise SummaryError(
                    f"client {one.client_id!r}: sent a part of its Fisher, which tells the domain's mean at "
                    f"best, not {self._config.pool!r}; run again with communication.fisher=lossless"
                )


def fewest(config: RobustConfig) -> int:
    """Return how many clients of one domain the pooling needs."""
    return max(SMALLEST_COHORT, 2 * config.trim + 1) if config.pool == TRIMMED else SMALLEST_COHORT


def _groups(summaries: Sequence[ClientSummary]) -> dict[tuple[str, str], list[ClientSummary]]:
    found: dict[tuple[str, str], list[ClientSummary]] = {}
    for one in summaries:
        found.setdefault((one.role, one.domain), []).append(one)
    return dict(sorted(found.items()))


def _trimmed(members: list[ClientSummary], trim: int) -> tuple[list[ClientSummary], dict[str, Any]]:
    """Return one summary that stands for the domain: a trimmed mean is no mean of its members."""
    reduce = partial(trimmed.trimmed_mean, trim=trim)
    first = members[0]
    pooled = replace(
        first,
        client_id=f"{first.client_id[:120]}.pooled",
        num_examples=sum(one.num_examples for one in members),
        deltas=Derived(members, of_fisher=False, reduce=reduce),
        fisher=Derived(members, of_fisher=True, reduce=reduce) if first.fisher else {},
    )
    effect: dict[str, Any] = {
        "members": len(members),
        "dropped_at_each_end": trim,
        "delta_distance_from_mean": trimmed.distance_from_mean(members, trim, of_fisher=False),
    }
    if first.fisher:
        effect["fisher_distance_from_mean"] = trimmed.distance_from_mean(members, trim, of_fisher=True)
    return [pooled], effect


def _geometric(members: list[ClientSummary], trim: int) -> tuple[list[ClientSummary], dict[str, Any]]:
    """Return the members scaled so that their mean is the geometric median; Fishers by their own."""
    del trim
    n = len(members)
    effect: dict[str, Any] = {"members": n}
    weights: dict[bool, Sequence[float]] = {}
    for of_fisher in (False, True) if members[0].fisher else (False,):
        squared, norms = geometric.squared_distances(members, of_fisher)
        median = geometric.geometric_median(squared)
        weights[of_fisher] = median.weights
        what = "fisher" if of_fisher else "delta"
        effect |= {
            f"{what}_weights": {
                one.client_id: weight for one, weight in zip(members, median.weights, strict=True)
            },
            f"{what}_steps": median.steps,
            f"{what}_converged": median.converged,
            f"{what}_distance_from_mean": geometric.distance_from_mean(squared, norms, median.weights),
        }
    scaled = []
    for i, one in enumerate(members):
        changes: Mapping[str, Any] = {
            "fisher" if of_fisher else "deltas": Scaled(one, of_fisher, n * found[i])
            for of_fisher, found in weights.items()
        }
        scaled.append(replace(one, **changes))
    return scaled, effect
