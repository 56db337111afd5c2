"""What stored results say, in numbers: means over seeds with intervals, and differences paired by seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedforget.evaluation.membership import Auc, auc_difference, membership_auc, pooled_auc
from fedforget.pooling import interval
from simulations.experiment.cells import BASE
from simulations.experiment.course import RETRAINS_EACH

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Mean:
    """A mean over seeds, with the half width of its 95 % t-interval (infinite for one seed)."""

    value: float
    half_width: float
    values: tuple[float, ...]

    @property
    def count(self) -> int:
        """Seeds."""
        return len(self.values)

    def __str__(self) -> str:
        return self.text(3)

    def text(self, digits: int) -> str:
        """Format it; without an interval where there is one seed."""
        if not math.isfinite(self.half_width):
            return f"{self.value:.{digits}f}"
        # Rounding leaves a tiny width where every seed gave the same.
        return f"{self.value:.{digits}f} ± {max(round(self.half_width, 9), 0.0):.{digits}f}"


def mean(values: Iterable[float | None]) -> Mean | None:
    """Return the mean of what is there; None where nothing is."""
    found = [float(value) for value in values if value is not None]
    if not found:
        return None
    one = interval(found)
    return Mean(one["mean"], one["half_width"], tuple(found))


def settings(results: Sequence[Result]) -> list[str]:
    """Return the settings, in order."""
    return sorted({one["setting"] for one in results})


def of(results: Sequence[Result], setting: str, method: str = "", variant: str = BASE) -> list[Result]:
    """Return the results of one setting and variant, of one method if named, by seed."""
    return [
        one
        for one in results
        if one["setting"] == setting and one["variant"] == variant and method in ("", one["method"])
    ]


def methods(results: Sequence[Result]) -> list[str]:
    """Return the methods: exact ones first, FedSGT before the others."""
    exact = {one["method"]: bool(one["exact"]) for one in results}
    return sorted(exact, key=lambda name: (not exact[name], name != "FedSGT", name))


def accuracy_at(result: Result, request: int) -> float | None:
    """Return the accuracy after a request; None where nothing served or nothing was measured."""
    return next((row["accuracy"] for row in result["course"] if row["after"] == request), None)


def life(result: Result) -> int | None:
    """Return the service life: the number of the request after which nothing served without retraining.

    1 for exact methods that retrain after every request. None where service had not ended when the stream
    did, and for approximate methods, which serve what may depend on the deleted data.
    """
    if result["recovers"]:
        return 1 if result["exact"] else None
    return None if result["life"] is None else int(result["life"])


def paired(
    first: Sequence[Result], second: Sequence[Result], value: Callable[[Result, Result], float | None]
) -> Mean | None:
    """Return the mean over the seeds that both have of a value of the two."""
    other = {one["seed"]: one for one in second}
    return mean(value(one, other[one["seed"]]) for one in first if one["seed"] in other)


def life_difference(one: Result, other: Result) -> float | None:
    """Return how many requests longer the first served."""
    a, b = life(one), life(other)
    return None if a is None or b is None else float(a - b)


def start_difference(one: Result, other: Result) -> float | None:
    """Return how much higher the first's accuracy was before any request."""
    a, b = accuracy_at(one, 0), accuracy_at(other, 0)
    return None if a is None or b is None else a - b


def course_difference(one: Result, other: Result) -> float | None:
    """Return how much higher the first's accuracy was, on average over the requests while both serve."""
    theirs = {row["after"]: row["accuracy"] for row in other["course"]}
    found = [
        row["accuracy"] - theirs[row["after"]]
        for row in one["course"]
        if row["after"] > 0 and row["accuracy"] is not None and theirs.get(row["after"]) is not None
    ]
    return sum(found) / len(found) if found else None


@dataclass(frozen=True)
class Membership:
    """The attack on one method in one setting, over its seeds.

    Attributes
    ----------
    after : list of int
        Requests after which it was measured, per seed: the last point that the method and the retrained
        model have in common.
    before : Auc
        On the model that was trained on the records.
    now : Auc
        On what serves after the requests.
    retrained : Auc
        On the model that was retrained without the records.
    difference : Auc
        ``now`` minus ``retrained``, on the same records.
    """

    after: list[int]
    before: Auc
    now: Auc
    retrained: Auc
    difference: Auc


def membership(results: Sequence[Result], setting: str, method: str) -> Membership | None:
    """Compare a method with retraining by the attack; None where they have no point in common."""
    references = {one["seed"]: one for one in of(results, setting, RETRAINS_EACH)}
    found = []
    for one in of(results, setting, method):
        reference = references.get(one["seed"])
        if reference is None:
            continue
        theirs = {row["after"]: row for row in reference["membership"]}
        common = [row for row in one["membership"] if row["after"] in theirs]
        if common:
            found.append((common[-1], theirs[common[-1]["after"]]))
    if not found:
        return None
    return Membership(
        [ours["after"] for ours, _ in found],
        pooled_auc([membership_auc(ours["before"], ours["held_out_before"]) for ours, _ in found]),
        pooled_auc([membership_auc(ours["now"], ours["held_out_now"]) for ours, _ in found]),
        pooled_auc([membership_auc(theirs["now"], theirs["held_out_now"]) for _, theirs in found]),
        pooled_auc(
            [
                auc_difference((ours["now"], theirs["now"]), (ours["held_out_now"], theirs["held_out_now"]))
                for ours, theirs in found
            ]
        ),
    )


def cost_units(result: Result) -> float:
    """Return the measured training cost: passes of all data, times modules' worth of parameters trained."""
    modules = 1 if result["method"] == "FedSGT" else result["match"]["modules"]
    return float(result["training"]["examples"] * modules / result["records"]["federated"])


def passes(result: Result) -> float:
    """Return how often all data went through training, local epochs apart; measured."""
    return float(result["training"]["examples"] / result["records"]["federated"])


def times(results: Sequence[Result]) -> float | None:
    """Return the mean seconds of a recovery: the one after service ended, or those on the way."""
    spent = []
    for one in results:
        done = [row["recovery"] for row in one["course"] if row["recovery"]]
        done += [one["recovery"]] if one["recovery"] else []
        spent += [row["seconds"] for row in done if row["done"]]
    return sum(spent) / len(spent) if spent else None


def verified(results: Sequence[Result]) -> tuple[int, int] | None:
    """Return how many retrained modules had the same bits, and of how many."""
    found = [one["verified"] for one in results if one["verified"]]
    return (sum(one["same"] for one in found), sum(one["modules"] for one in found)) if found else None
