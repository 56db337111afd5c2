"""FIRM: the Fisher-weighted base merge and the retention projection (FIRM, section 4.2, algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedforget.errors import ConfigError
from fedforget.merging.coverage import require_fishers
from fedforget.merging.inputs import Clients, squared_norm
from fedforget.merging.registry import Plan, method
from fedforget.merging.sensitivities import Sensitivities, base_block, process
from fedforget.parameters import Scaled, choice, fraction, non_negative, parse, positive
from fedforget.projection import project
from fedforget.summaries import ClientSummary

# A coordinate whose weights sum to less than this many eps0 loses more than 1 % to the stabiliser.
_ATTENUATED = 99.0


@dataclass(frozen=True)
class FirmBaseParameters(Scaled):
    """Parameters of the base merge."""

    alpha: float = fraction(0.1, "share of each Fisher tensor's entries that is kept, largest first")
    eps0: float = positive(1.0e-8, "stabiliser added to a Fisher's maximum and to each sum of weights")


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
        base, report = _base(sensitivities, p, clients.dtype(name))
        if not constrained:
            return base, report
        projection = project(base, [one.dense() for one in sensitivities.retain], p.epsilon, p.solver)
        certificate = projection.certificate
        report |= {
            "multipliers": [float(value) for value in projection.multipliers],
            "damage": [float(value) for value in projection.damage],
            "certificate": {
                "stationarity": float(certificate.stationarity),
                "primal": float(certificate.primal),
                "dual": float(certificate.dual),
                "complementarity": float(certificate.complementarity),
                "certified": bool(certificate.certified),
            },
        }
        return projection.update, report

    return Plan(tensor)


def _base(s: Sensitivities, p: FirmParameters, dtype: torch.dtype) -> tuple[Tensor, dict[str, Any]]:
    """Build the base merge of one tensor, rounded once to ``dtype``, and report on it."""
    damage = [0.0] * len(s.retain)
    support, attenuated = 0, 0

    def block(start: int, stop: int) -> Tensor:
        nonlocal support, attenuated
        base = base_block(s, p.gamma, p.eps0, start, stop)
        rounded = base.update.to(dtype)
        for k, weights in enumerate(base.retain_weights):
            damage[k] += proxy_damage(weights, rounded)
        for weight in base.sums:
            support += int(torch.count_nonzero(weight))
            attenuated += int(torch.count_nonzero((weight > 0.0) & (weight < _ATTENUATED * p.eps0)))
        return rounded

    base = s.layout.assemble(dtype, block)
    report = {
        "base_norm": math.sqrt(squared_norm(base)),
        "base_damage": list(damage),
        "damage": list(damage),
        "multipliers": [0.0] * len(s.retain),
        "support": support,
        "attenuated_share": attenuated / support if support else 0.0,
        "certificate": None,
    }
    return base, report


def proxy_damage(weights: Tensor, update: Tensor) -> float:
    """Equation (6) on one block: ``1/2 sum_j F(j) x(j)^2``, in fp64."""
    x = update.to(torch.float64)
    return 0.5 * float(np.add.reduce((weights * x * x).numpy()))


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
        ``fraction`` times the mean of ``b_k(gamma * raw)`` over retain clients and tensors.

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
        damage += _total_damage(process(clients, name, p.alpha, p.eps0), p)
    return p.fraction * damage / (len(clients.retain) * len(clients.names))


def _total_damage(s: Sensitivities, p: FirmBaseParameters) -> float:
    """Sum over retain clients of the damage that one tensor's base merge does."""
    damage = 0.0
    for start, stop in s.layout.blocks:
        base = base_block(s, p.gamma, p.eps0, start, stop)
        damage += sum(proxy_damage(weights, base.update) for weights in base.retain_weights)
    return damage
