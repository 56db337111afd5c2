"""project(): the closest update to a base merge that keeps every retain client's budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedforget.errors import ConfigError, SummaryError, nearest
from fedforget.projection.certificate import Certificate, certify, trivial, zeroed
from fedforget.projection.delivery import deliver_as_is, deliver_exact
from fedforget.projection.increase_only import raise_multipliers
from fedforget.projection.problem import damage, reduce_problem

SOLVERS = ("exact", "increase-only")
EPS0 = 1e-8


@dataclass(frozen=True, eq=False)
class Projection:
    """A projected update and what is known about it.

    Attributes
    ----------
    update : Tensor
        The delivered update; dtype, shape and device of the base, sharing no memory with it.
    multipliers : Tensor
        fp64 ``[m]``, ``lambda_k >= 0`` of equation (8), zero for a client whose budget the base keeps.
        Infinite where only zero keeps the budget: for ``epsilon = 0``, and, not certified, for a budget
        some 270 decades below the base's own damage, which fp64 multipliers cannot reach. Not unique
        when retain clients are duplicates; the update is.
    damage : Tensor
        fp64 ``[m]``, ``b_k(update)`` of equation (6), on the delivered values.
    certificate : Certificate
        The KKT residuals of the delivered update.
    """

    update: Tensor
    multipliers: Tensor
    damage: Tensor
    certificate: Certificate


def project(
    base: Tensor,
    retain_fishers: Sequence[Tensor],
    epsilon: float,
    solver: str = "exact",
    *,
    eps0: float = EPS0,
) -> Projection:
    """Project one tensor's update onto the retain clients' budgets, equation (7).

    The update is ``base(j) / (1 + sum_k lambda_k F_k(j))``, equation (8). Only coordinates in the support of
    a retain Fisher can change; the others are returned bit for bit. The inputs are not changed.

    Parameters
    ----------
    base : Tensor
        Any shape and floating dtype, finite.
    retain_fishers : sequence of Tensor
        One processed (normalised, sparsified) Fisher diagonal per retain client; shape of ``base``, any
        floating dtype, finite, non-negative.
    epsilon : float
        Budget on ``b_k``, equation (6), for this tensor and each client; ``inf`` for none, 0 to forbid any
        change where a retain Fisher is positive.
    solver : {"exact", "increase-only"}
        ``exact`` maximises the dual and delivers a tensor with ``b_k <= epsilon`` after its cast, without a
        tolerance. ``increase-only`` is the paper's routine: it may leave a slack constraint with
        a positive multiplier, may end above the budget by ``max(1e-4 epsilon, 1e-12)``, and its cast may add
        to that; the certificate says so.
    eps0 : float, default 1e-8
        Added to the denominator of equation (8) when ``increase-only`` recovers the update; ``exact``
        ignores it.

    Returns
    -------
    Projection

    Raises
    ------
    SummaryError
        A tensor of the wrong shape, non-floating, non-finite, or a negative Fisher; names which.
    ConfigError
        A negative or NaN budget, an unknown solver, or a finite budget with no retain client.
    """
    _check_settings(len(retain_fishers), epsilon, solver, eps0)
    _check_tensors(base, retain_fishers)
    update = base.detach().clone(memory_format=torch.contiguous_format)
    flat = update.view(-1)
    fishers = [fisher.detach().reshape(-1).to(base.device) for fisher in retain_fishers]
    m = len(fishers)
    multipliers = np.zeros(m)
    certificate = trivial(base.dtype)
    if epsilon == 0.0:
        # The limit of equation (8) as the multipliers grow; no finite multiplier attains it.
        acting = [(fisher > 0) & (flat != 0) for fisher in fishers]
        multipliers[[bool(act.any()) for act in acting]] = np.inf
        for act in acting:
            flat[act] = 0.0
    else:
        before = np.array([damage(flat, fisher) for fisher in fishers], dtype=np.float64)
        violated = np.flatnonzero(~(before <= epsilon))
        if len(violated):
            problem = reduce_problem(flat, fishers, epsilon, violated)
            if not problem.in_range:
                delivered = None
            elif solver == "exact":
                delivered = deliver_exact(problem, base.dtype)
            else:
                raised = np.ldexp(raise_multipliers(problem, epsilon), problem.exponents)
                delivered = deliver_as_is(problem, raised, base.dtype, eps0)
            if delivered is None:
                multipliers[violated] = np.inf
                flat[problem.index] = 0.0
                certificate = zeroed(problem, base.dtype)
            else:
                flat[problem.index] = delivered.values.to(base.device)
                with np.errstate(over="ignore", under="ignore"):
                    multipliers[violated] = np.ldexp(delivered.multipliers, -problem.exponents)
                values = delivered.values.to(torch.float64).numpy()
                certificate = certify(
                    problem, values, delivered.multipliers, delivered.before_rounding, base.dtype
                )
    after = torch.tensor([damage(flat, fisher) for fisher in fishers], dtype=torch.float64)
    return Projection(update, torch.from_numpy(multipliers), after, certificate)


def _check_settings(m: int, epsilon: float, solver: str, eps0: float) -> None:
    if solver not in SOLVERS:
        raise ConfigError(
            [f"solver: {solver!r} is not one of {', '.join(SOLVERS)}{nearest(str(solver), SOLVERS)}"]
        )
    if not epsilon >= 0.0:
        raise ConfigError([f"epsilon: {epsilon} is not a budget; give a number >= 0, or inf for none"])
    if not 0.0 <= eps0 < math.inf:
        raise ConfigError([f"eps0: {eps0} is not a finite number >= 0"])
    if m == 0 and epsilon < math.inf:
        raise ConfigError(
            [f"epsilon: the finite budget {epsilon} needs a retain Fisher; add a retain client or give inf"]
        )


def _check_tensors(base: Tensor, retain_fishers: Sequence[Tensor]) -> None:
    _check_floating("base update", base)
    for k, fisher in enumerate(retain_fishers):
        name = f"retain Fisher {k}"
        _check_floating(name, fisher)
        if fisher.shape != base.shape:
            raise SummaryError(f"{name} has shape {tuple(fisher.shape)}, the base update {tuple(base.shape)}")
        if fisher.numel() and not bool(fisher.min() >= 0):
            raise SummaryError(f"{name} holds negative values; a Fisher diagonal is a mean of squares")


def _check_floating(name: str, tensor: Tensor) -> None:
    if not tensor.is_floating_point():
        raise SummaryError(f"{name} has dtype {tensor.dtype}; it must be a floating one")
    if tensor.numel():
        low, high = torch.aminmax(tensor.detach())
        if not bool(torch.isfinite(low) & torch.isfinite(high)):
            raise SummaryError(f"{name} holds NaN or infinite values; check the client that it comes from")
