"""Membership inference on texts: was a language model trained on them?

Three scores per text, high for a likely member: the loss (Yeom et al. 2018), Min-K (Shi et al. 2023) and
Min-K++ (Zhang et al. 2024). Over all thresholds a score's success is the AUC of
:func:`fedforget.evaluation.membership.membership_auc`, whose warnings hold here too: what a model that
never saw the texts gives need not be 0.5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from fedforget.errors import DataError
from fedforget.evaluation.likelihoods import Floats, TokenScores
from fedforget.evaluation.membership import membership_auc

SHARE = 0.4  # MUSE's Min-40%
ATTACKS = ("loss", "min_k", "min_k_plus_plus")


def membership_scores(scores: TokenScores, share: float = SHARE) -> dict[str, float]:
    """Return a text's score under every attack.

    ``loss`` is the mean log-likelihood of its tokens; ``min_k`` the mean over the ``share`` of them
    that is least likely (rounded down, at least one token); ``min_k_plus_plus`` the same after each
    log-likelihood is standardised by the mean and deviation of the model's own distribution there.

    Parameters
    ----------
    scores : TokenScores
        With means and deviations.
    share : float
        In (0, 1].

    Raises
    ------
    DataError
        The share is out of range.
    """
    if not 0.0 < share <= 1.0:
        raise DataError(f"membership: the share of tokens {share} is outside (0, 1]")
    values = scores.values
    # Where the model leaves no choice, the deviation is 0 and the token is as expected.
    certain = scores.deviations <= 0
    standard = np.where(certain, 0.0, (values - scores.means) / np.where(certain, 1.0, scores.deviations))
    return {
        "loss": float(values.mean()),
        "min_k": _lowest(values, share),
        "min_k_plus_plus": _lowest(standard, share),
    }


def _lowest(values: Floats, share: float) -> float:
    return float(np.sort(values)[: max(1, int(len(values) * share))].mean())


def membership_aucs(
    members: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the AUC with its interval per attack, from rows that hold the attacks' scores."""
    return {
        name: asdict(membership_auc([one[name] for one in members], [one[name] for one in others]))
        for name in ATTACKS
    }
