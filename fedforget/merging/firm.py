"""FIRM: the Fisher-weighted base merge and the retention projection (FIRM, section 4.2, algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedforget.errors import ConfigError
from fedforget.merging.base import FirmBaseParameters, merge_base, project_onto_budgets
from fedforget.merging.coverage import require_fishers
from fedforget.merging.inputs import Clients
from fedforget.merging.registry import Plan, method
from fedforget.merging.sensitivities import process
from fedforget.parameters import choice, non_negative, parse, positive
from fedforget.summaries import ClientSummary


@dataclass(frozen=True)
class FirmParameters(FirmBaseParameters):
    """Parameters of FIRM."""

    epsilon: float = non_negative(
        math.inf,
        "damage budget per tensor and retain client; inf is FIRM-base, without projection",
        infinite=True,
    )
    solver: str = choice(
        "exact",
        ("exact", "increase-only"),
        "exact: the closest feasible update, with a certificate; increase-only: the paper's own routine",
    )


@method(
    "firm",
    pretty="FIRM",
    reference="FIRM, section 4.2, equations (2) to (8), algorithm 1",
    summary="Fisher-weighted forget mean + Fisher-weighted retain mean, scaled, projected onto the budgets",
    parameters=FirmParameters,
    needs_fisher=True,
    pools=True,
)
def firm(clients: Clients, p: FirmParameters) -> Plan:
    """Plan FIRM: the base merge per tensor, and its projection where epsilon is finite."""
    constrained = math.isfinite(p.epsilon)
    if constrained and not clients.retain:
        raise ConfigError(
            [
                f"epsilon={p.epsilon:g} is a budget per retain client, and none of the "
                f"{len(clients.all)} clients is one; add a retain client, or set epsilon=inf for FIRM-base"
            ],
            "merge method 'firm'",
        )

    def tensor(name: str) -> tuple[Tensor, dict[str, Any]]:
        sensitivities = process(clients, name, p.alpha, p.eps0)
        base, support, report = merge_base(sensitivities, p, clients.dtype(name), collect=constrained)
        if not constrained or not (math.isfinite(report["base_norm"]) or bool(torch.isfinite(base).all())):
            return base, report  # the merge itself tells of an overflow
        compiled = sensitivities.compiled
        return base, report | project_onto_budgets(base, support, p.epsilon, p.solver, compiled=compiled)

    return Plan(tensor)


@dataclass(frozen=True)
class _CalibrationParameters(FirmBaseParameters):
    fraction: float = positive(0.3, "share of the mean damage that the budget allows")


def calibrate_epsilon(
    summaries: Iterable[ClientSummary],
    fraction: float,
    gamma: float,
    alpha: float = 0.1,
    eps0: float = 1.0e-8,
) -> float:
    """Derive a damage budget from what FIRM does without projection (table 8 of the paper: 0.3).

    Parameters
    ----------
    summaries : iterable of ClientSummary
    fraction : float
        Share of the mean damage to allow.
    gamma, alpha, eps0 : float
        As in method ``firm``.

    Returns
    -------
    float
        ``fraction`` times the mean over retain clients and tensors of ``b_k`` of FIRM's update without
        projection, in the dtype that it is delivered in.

    Raises
    ------
    ConfigError
        A value out of range, or no retain client.
    SummaryError
        Summaries that cannot be merged.
    """
    given = {"fraction": fraction, "gamma": gamma, "alpha": alpha, "eps0": eps0}
    p = parse(_CalibrationParameters, given, "calibrate_epsilon")
    clients = Clients(summaries, needs_fisher=True)
    if not clients.retain:
        raise ConfigError(
            ["there is no retain client to calibrate epsilon on; add one, or give epsilon itself"],
            "calibrate_epsilon",
        )
    require_fishers(clients.all, "firm", p)
    damage = 0.0
    for name in clients.names:
        _, _, report = merge_base(process(clients, name, p.alpha, p.eps0), p, clients.dtype(name))
        damage += sum(report["base_damage"])
    return p.fraction * damage / (len(clients.retain) * len(clients.names))
