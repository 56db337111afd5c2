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
from fedforget.projection.delivery import SUMMATION, Delivered, deliver_as_is, deliver_exact
from fedforget.projection.increase_only import raise_multipliers
from fedforget.projection.problem import Problem, reduce_problem
from fedforget.projection.sparse import FisherSupport, damage, from_dense
from fedforget.projection.threads import one_blas_thread

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


def solved_budget(epsilon: float, dtype: torch.dtype) -> float:
    """Return the budget to solve for with Fishers that were normalised in a dtype narrower than fp64.

    Equation (3) rounds twice there, the maximum with its stabiliser and the quotient, each by at most half
    a machine epsilon: a damage from these Fishers and one from Fishers normalised in fp64 differ by at
    most one machine epsilon of the dtype, relatively. Twice that is left of the budget, so that
    ``b_k <= epsilon`` holds in fp64 arithmetic throughout.
    """
    return epsilon * (1.0 - 2.0 * torch.finfo(dtype).eps)


def project(
    base: Tensor,
    retain_fishers: Sequence[Tensor | FisherSupport],
    epsilon: float,
    solver: str = "exact",
    *,
    eps0: float = EPS0,
    compiled: bool = False,
) -> Projection:
    """Project one tensor's update onto the retain clients' budgets, equation (7).

    The update is ``base(j) / (1 + sum_k lambda_k F_k(j))``, equation (8). Only coordinates in the support of
    a retain Fisher can change; the others are returned bit for bit. The inputs are not changed.

    Parameters
    ----------
    base : Tensor
        Any shape and floating dtype, finite.
    retain_fishers : sequence of Tensor or FisherSupport
        One processed (normalised, sparsified) Fisher diagonal per retain client; shape of ``base``, any
        floating dtype, finite, non-negative. On its support alone, it costs a pass over the weight less.
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
    compiled : bool, default False
        Whether numba, which must be installed, does what it can; the bits are the same.

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
    _check_floating("base update", base)
    fishers = [_support(f"retain Fisher {k}", one, base) for k, one in enumerate(retain_fishers)]
    update = base.detach().clone(memory_format=torch.contiguous_format)
    flat = update.view(-1)
    host = flat.cpu()
    with one_blas_thread():
        found = _solve(host, fishers, epsilon, solver, eps0, compiled)
    if host.data_ptr() != flat.data_ptr():
        flat.copy_(host)
    return Projection(update, *found)


def _solve(
    flat: Tensor,
    fishers: Sequence[FisherSupport],
    epsilon: float,
    solver: str,
    eps0: float,
    compiled: bool,
) -> tuple[Tensor, Tensor, Certificate]:
    """Change a flat update in place; return multipliers, damages and the certificate."""
    multipliers = np.zeros(len(fishers))
    certificate = trivial(flat.dtype)
    if epsilon == 0.0:
        # The limit of equation (8) as the multipliers grow; no finite multiplier attains it.
        multipliers[[bool((flat[one.places] != 0).any()) for one in fishers]] = np.inf
        for one in fishers:
            flat[one.places] = 0.0
        return torch.from_numpy(multipliers), torch.zeros(len(fishers), dtype=torch.float64), certificate
    values = np.array([damage(flat, one, compiled=compiled) for one in fishers], dtype=np.float64)
    # A base that is feasible but for the order of a sum takes part, to hold its budget in any order.
    broken = ~(values <= (epsilon * (1.0 - SUMMATION) if solver == "exact" else epsilon))
    violated = np.flatnonzero(broken)
    if not len(violated):
        return torch.from_numpy(multipliers), torch.from_numpy(values), certificate
    problem = reduce_problem(flat, fishers, epsilon, violated, values[violated], compiled=compiled)
    delivered = _deliver(problem, flat.dtype, epsilon, solver, eps0)
    if delivered is None:
        flat[problem.places] = 0.0
        multipliers[violated], values[violated] = np.inf, 0.0
        certificate = zeroed(problem, flat.dtype)
    else:
        flat[problem.places] = delivered.values
        multipliers[violated] = problem.true_multipliers(delivered.multipliers)
        certificate, after = certify(
            problem, delivered.values, delivered.multipliers, delivered.before_rounding, flat.dtype
        )
        values[violated] = problem.true_damages(after)
    values[~broken] = [damage(flat, one) for one, over in zip(fishers, broken, strict=True) if not over]
    return torch.from_numpy(multipliers), torch.from_numpy(values), certificate


def _deliver(
    problem: Problem, dtype: torch.dtype, epsilon: float, solver: str, eps0: float
) -> Delivered | None:
    if not problem.in_range:
        return None
    if solver == "exact":
        return deliver_exact(problem, dtype)
    raised = problem.rescaled_multipliers(raise_multipliers(problem, epsilon))
    return deliver_as_is(problem, raised, dtype, eps0)


def _support(name: str, fisher: Tensor | FisherSupport, base: Tensor) -> FisherSupport:
    if isinstance(fisher, FisherSupport):
        fisher.check(name, base.numel())
        return fisher
    if fisher.shape != base.shape:
        raise SummaryError(f"{name} has shape {tuple(fisher.shape)}, the base update {tuple(base.shape)}")
    return from_dense(name, fisher)


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


def _check_floating(name: str, tensor: Tensor) -> None:
    if not tensor.is_floating_point() or tensor.dtype.itemsize < 2:
        raise SummaryError(f"{name} has dtype {tensor.dtype}; it must be a floating one of 16 bits or more")
    if tensor.numel():
        low, high = torch.aminmax(tensor.detach())
        if not bool(torch.isfinite(low) & torch.isfinite(high)):
            raise SummaryError(f"{name} holds NaN or infinite values; check the client that it comes from")
