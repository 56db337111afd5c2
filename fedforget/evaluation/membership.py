"""Membership inference on deleted records: can one tell, from the losses, that a model was trained on them?

The attack is the loss threshold (Yeom et al. 2018): a record with a lower loss is rather a member. Over all
thresholds at once its success is the AUC, the probability that a deleted record has a lower loss than one
that no model ever saw. What 0.5 means needs care: deleted records need not be drawn as the held-out ones
are (a client with rare labels asks more often), so a model that never saw them may be off 0.5 as well. The
measure of forgetting is therefore the difference to the AUC on a model that was retrained without them,
on the same records. With few records its interval is wide, and an interval that holds 0 says that this
attack does not tell the two apart, not that they are the same; bits can say that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from fedforget.errors import DataError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Auc:
    """An AUC or a difference of two, with an interval.

    Attributes
    ----------
    value : float
    standard_error : float
        By DeLong et al. (1988); infinite where there are too few records for it.
    low, high : float
        Interval by the normal approximation, not beyond what the value can be.
    members, others : int
        Records on either side.
    """

    value: float
    standard_error: float
    low: float
    high: float
    members: int
    others: int


def member_scores(probabilities: Floats, labels: NDArray[np.int64]) -> Floats:
    """Return each record's log-probability of its own label, minus its loss: high for a likely member.

    Parameters
    ----------
    probabilities : float64 array, shape [n, classes]
    labels : int64 array, shape [n]
    """
    own = probabilities[np.arange(len(labels)), labels]
    tiny = np.finfo(np.float64).tiny  # a probability that underflowed is the least likely member of all
    return np.asarray(np.log(np.maximum(own, tiny)), dtype=np.float64)


def membership_auc(members: Sequence[float], others: Sequence[float], confidence: float = 0.95) -> Auc:
    """Return the attack's AUC between deleted and held-out records; 0.5 is a coin's.

    Parameters
    ----------
    members, others : sequence of float
        :func:`member_scores` of the deleted and of the held-out records, by one model. Ties count half.
    confidence : float
        Of the interval.

    Raises
    ------
    DataError
        There is no record on one side, or a score is not finite.
    """
    (value,), covariance = _delong([members], [others])
    return _interval(value, float(covariance[0, 0]), len(members), len(others), confidence, 0.0)


def auc_difference(
    members: tuple[Sequence[float], Sequence[float]],
    others: tuple[Sequence[float], Sequence[float]],
    confidence: float = 0.95,
) -> Auc:
    """Return the AUC by a first model minus that by a second, on the same records.

    The interval is for paired AUCs: what makes a record easy or hard for both models cancels.

    Parameters
    ----------
    members, others : pair of sequences of float
        Scores by the first and by the second model, records in the same order.
    confidence : float
        Of the interval.

    Raises
    ------
    DataError
        As :func:`membership_auc`, or the two models were given different numbers of records.
    """
    values, covariance = _delong(members, others)
    variance = float(covariance[0, 0] + covariance[1, 1] - 2.0 * covariance[0, 1])
    return _interval(values[0] - values[1], variance, len(members[0]), len(others[0]), confidence, -1.0)


def pooled_auc(parts: Sequence[Auc], confidence: float = 0.95) -> Auc:
    """Return the mean over independent repetitions, with records as what was sampled in each.

    Parameters
    ----------
    parts : sequence of Auc
        One per seed; all AUCs, or all differences.
    confidence : float
        Of the interval.

    Raises
    ------
    DataError
        None given.
    """
    if not parts:
        raise DataError("no membership results to pool; give at least one")
    value = math.fsum(one.value for one in parts) / len(parts)
    variance = math.fsum(one.standard_error**2 for one in parts) / len(parts) ** 2
    least = -1.0 if any(one.low < 0 for one in parts) else 0.0
    return _interval(
        value,
        variance,
        sum(one.members for one in parts),
        sum(one.others for one in parts),
        confidence,
        least,
    )


def _delong(
    members: Sequence[Sequence[float]], others: Sequence[Sequence[float]]
) -> tuple[list[float], Floats]:
    """AUC of each model and their covariance ``[k, k]``, from the placements of single records."""
    x, y = _scores(members, "deleted"), _scores(others, "held-out")
    wins = (x[:, :, None] > y[:, None, :]) + 0.5 * (x[:, :, None] == y[:, None, :])
    values = wins.mean(axis=(1, 2))
    if min(x.shape[1], y.shape[1]) < 2:
        return values.tolist(), np.full((len(x), len(x)), math.inf)
    of_members, of_others = wins.mean(axis=2), wins.mean(axis=1)
    covariance = np.cov(of_members) / x.shape[1] + np.cov(of_others) / y.shape[1]
    return values.tolist(), np.atleast_2d(covariance)


def _scores(rows: Sequence[Sequence[float]], what: str) -> Floats:
    if len({len(row) for row in rows}) > 1:
        raise DataError(f"membership: the models were given different numbers of {what} records")
    found = np.asarray(rows, dtype=np.float64)
    if not found.size:
        raise DataError(f"membership: there is no {what} record; the attack needs both kinds")
    if not np.isfinite(found).all():
        raise DataError(f"membership: a {what} record's score is not finite")
    return found


def _interval(
    value: float, variance: float, members: int, others: int, confidence: float, least: float
) -> Auc:
    error = math.sqrt(max(variance, 0.0)) if math.isfinite(variance) else math.inf
    half = float(norm.ppf(0.5 + confidence / 2)) * error
    return Auc(value, error, max(least, value - half), min(1.0, value + half), members, others)
