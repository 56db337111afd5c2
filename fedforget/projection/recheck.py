"""The certificate of an update and multipliers that somebody else claims to be a projection."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedforget.projection.certificate import Certificate, certify, trivial, zeroed
from fedforget.projection.delivery import SUMMATION
from fedforget.projection.problem import reduce_problem
from fedforget.projection.sparse import FisherSupport, Places, damage
from fedforget.projection.threads import one_blas_thread


def recheck(
    base: Tensor,
    update: Tensor,
    retain_fishers: Sequence[FisherSupport],
    epsilon: float,
    multipliers: Sequence[float],
) -> Certificate:
    """Compute the KKT residuals (16) to (19) and the duality gap of a claimed projection.

    Everything is computed from the arguments, but ``before_rounding``: what the solver knew before its
    cast leaves no trace in a delivered update, and is taken for 0. The duality gap bounds the distance
    to the optimum without it.

    Parameters
    ----------
    base, update : Tensor
        One-dimensional, on the CPU, of one dtype; what was projected, and the claimed result.
    retain_fishers : sequence of FisherSupport
        One per retain client.
    epsilon : float
        The finite budget that the multipliers are for.
    multipliers : sequence of float
        ``lambda_k >= 0``, one per client.

    Returns
    -------
    Certificate
        With an infinite stationarity where the update differs from its base at a coordinate that no
        multiplier acts on.
    """
    scales = np.array(multipliers, dtype=np.float64)
    with one_blas_thread():
        values = np.array([damage(base, one) for one in retain_fishers], dtype=np.float64)
        acting = (values > epsilon * (1.0 - SUMMATION)) | ((scales > 0.0) & (values > 0.0))
        clients = np.flatnonzero(acting)
        certificate = trivial(update.dtype)
        touched: Places = slice(0, 0)
        if epsilon == 0.0:
            touched = torch.cat([one.positions for one in retain_fishers])
            if bool(update[touched].any()):
                certificate = replace(certificate, primal=math.inf, certified=False)
        elif clients.size:
            problem = reduce_problem(base, retain_fishers, epsilon, clients, values[clients])
            touched = problem.places
            if problem.in_range and np.isfinite(scales).all():
                rescaled = problem.rescaled_multipliers(scales[clients])
                certificate, _ = certify(problem, update[touched], rescaled, 0.0, update.dtype)
            else:
                certificate = zeroed(problem, update.dtype)
        if epsilon > 0.0 and bool((scales[~acting] != 0.0).any()):
            certificate = replace(certificate, complementarity=1.0, certified=False)
    differs = update != base
    differs[touched] = False
    if bool(differs.any()):
        certificate = replace(certificate, stationarity=math.inf, duality_gap=math.inf, certified=False)
    return certificate
