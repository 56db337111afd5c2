"""From raw Fishers to FIRM's sensitivities: pool, then normalise, then sparsify (section 4.2.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedforget.merging import kernels
from fedforget.merging.compiled import BASE_BUFFERS, Addresses, compile_kernels
from fedforget.merging.inputs import Clients
from fedforget.merging.layout import Layout, Scratch
from fedforget.merging.selection import Stream, kept_count, select
from fedforget.merging.sources import Source
from fedforget.summaries import ClientSummary

# A coordinate whose weights sum to less than this many eps0 loses more than 1 % to the stabiliser.
_ATTENUATED = 99.0


@dataclass(frozen=True)
class Sensitivity:
    """The processed Fisher of one forget domain or one retain client for one weight, equation (3).

    Attributes
    ----------
    source : Source
        The pooled task vectors and raw Fishers.
    maximum, threshold : float
        Largest and last kept entry of the raw (pooled) Fisher.
    eps0 : float
        Numerical stabiliser.
    """

    source: Source
    maximum: float
    threshold: float
    eps0: float

    def weights(
        self, start: int, stop: int, out: Tensor | None = None, spare: Tensor | None = None
    ) -> Tensor:
        """Processed Fisher of coordinates ``start:stop``; buffers as for :meth:`Source.fisher`."""
        raw = self.source.fisher(start, stop, out, spare)
        return kernels.top_normalised_(raw, self.maximum, self.threshold, self.eps0)


@dataclass(frozen=True, eq=False)
class Reading:
    """The arguments of the base merge's kernel that are the same for all blocks of a weight.

    Attributes
    ----------
    addresses : ndarray
        int64, where each client's numbers begin, in the kernel's order.
    members : ndarray
        int64 ``[n, 2]``, see :class:`fedforget.merging.compiled.Kernels`.
    means : sequence of (int, callable)
        Which of the addresses are those of a mean, to be read first, and the function that reads it.
    thresholds, scales : ndarray
        fp32 ``[n]``, of equation (3).
    """

    addresses: Addresses
    members: NDArray[np.int64]
    means: Sequence[tuple[int, Callable[[int, int, Tensor, Tensor], Tensor]]]
    thresholds: NDArray[np.float32]
    scales: NDArray[np.float32]


@dataclass(frozen=True)
class Sensitivities:
    """Both roles' processed Fishers for one weight.

    Attributes
    ----------
    compiled : bool
        Whether blocks are computed by numba; the bits are the same.
    check : callable
        Looks at every value of the clients for this weight, and raises a SummaryError where one is not
        allowed. The task vectors of ``forget`` and ``retain`` have not been looked at: where one is not
        finite, the base merge is not either, so this is called then.
    """

    layout: Layout
    dtype: torch.dtype
    compiled: bool
    check: Callable[[], None]
    forget: list[Sensitivity]
    retain: list[Sensitivity]

    @property
    def sources(self) -> list[Source]:
        """What blocks are read from."""
        return [one.source for one in (*self.forget, *self.retain)]

    @cached_property
    def reading(self) -> Reading:
        """What the base merge's kernel reads."""
        addresses: list[int] = []
        members, means = [], []
        for source in self.sources:
            counts = []
            for first, read in (
                (source.fisher_addresses, source.fisher),
                (source.delta_addresses, source.delta),
            ):
                if first is None:  # it is given the mean of what it cannot read
                    means.append((len(addresses), read))
                addresses += [0] if first is None else first.tolist()
                counts.append(0 if first is None else len(first))
            members.append(counts)
        roles = (*self.forget, *self.retain)
        return Reading(
            np.array(addresses),
            np.array(members),
            means,
            np.array([one.threshold for one in roles], np.float32),
            np.array([one.maximum + one.eps0 for one in roles], np.float32),
        )

    def unread(self) -> Sensitivities:
        """Return the same sensitivities without the tensors that they have opened."""

        def fresh(role: list[Sensitivity]) -> list[Sensitivity]:
            return [replace(one, source=one.source.unread()) for one in role]

        return replace(self, forget=fresh(self.forget), retain=fresh(self.retain))


@dataclass(frozen=True)
class BaseBlock:
    """Some coordinates of the base merge, flat and in the working dtype.

    Attributes
    ----------
    update : Tensor
        ``gamma * raw``.
    support, attenuated : int
        Coordinates and roles with a positive sum of weights, and those of them that lose more than 1 % to
        eps0.
    retain_weights : list of Tensor
        Processed Fisher per retain client.
    """

    update: Tensor
    support: int
    attenuated: int
    retain_weights: list[Tensor]


def process(clients: Clients, name: str, alpha: float, eps0: float) -> Sensitivities:
    """Process the Fishers of one weight: forget domains pooled, retain clients each for itself.

    Raises
    ------
    SummaryError
        A client's Fisher holds a value that is not allowed.
    """
    check = partial(clients.check_tensors, name)

    def one(members: list[ClientSummary]) -> Sensitivity:
        source = clients.source(name, members, trust=True)
        keep = kept_count(source.layout.size, alpha)
        found = select([Stream(source, of_fisher=True, refuse=check)], keep)
        return Sensitivity(source, found.maximum, found.threshold, eps0)

    return Sensitivities(
        layout=clients.layouts[name],
        dtype=clients.working_dtype(name),
        compiled=clients.compiled and clients.working_dtype(name) == torch.float32,
        check=check,
        forget=[one(members) for members in clients.domains.values()],
        retain=[one([member]) for member in clients.retain],
    )


def base_block(
    s: Sensitivities, gamma: float, eps0: float, start: int, stop: int, scratch: Scratch
) -> BaseBlock:
    """Equations (4) and (5) for coordinates ``start:stop``; the blocks are buffers of ``scratch``.

    Per role, with products, sums and quotients rounded one by one to the working dtype:
    ``num = w_1 d_1``, then ``num += w_i d_i`` and ``sum += w_i`` in order; the term is
    ``num / (sum + eps0)``. The update is ``(forget term + retain term) gamma``.
    """
    if s.compiled:
        return _compiled_block(s, gamma, eps0, start, stop, scratch)
    size = stop - start
    delta, spare = scratch("delta", size), scratch("spare", size)
    terms, retain_weights, support, attenuated = [], [], 0, 0
    for role, members in (("forget", s.forget), ("retain", s.retain)):
        if not members:
            continue
        numerator, total = scratch((role, "numerator"), size), scratch((role, "total"), size)
        for i, one in enumerate(members):
            weights = one.weights(start, stop, scratch((role, i) if role == "retain" else role, size), spare)
            one.source.delta(start, stop, delta, spare)
            if i == 0:
                torch.mul(delta, weights, out=numerator)
                total.copy_(weights)
            else:
                numerator.add_(delta.mul_(weights))
                total.add_(weights)
            if role == "retain":
                retain_weights.append(weights)
        numerator.div_(torch.add(total, _stabiliser(eps0, s.dtype), out=spare))
        counts = _counts(total, _ATTENUATED * eps0)
        terms.append(numerator)
        support, attenuated = support + counts[0], attenuated + counts[1]
    update = terms[0] if len(terms) == 1 else terms[0].add_(terms[1])
    return BaseBlock(update.mul_(gamma), support, attenuated, retain_weights)


def _compiled_block(
    s: Sensitivities, gamma: float, eps0: float, start: int, stop: int, scratch: Scratch
) -> BaseBlock:
    """Do the same in one pass; only for fp32."""
    size, plan = stop - start, s.reading
    update, spare = scratch("update", size), scratch("spare", size)
    addresses = plan.addresses + 2 * start
    for place, read in plan.means:
        addresses[place] = read(start, stop, scratch(place, size), spare).data_ptr()
    weights = scratch("weights", len(s.retain) * size).view(len(s.retain), size)
    buffers = scratch("buffers", BASE_BUFFERS[0] * BASE_BUFFERS[1]).view(BASE_BUFFERS)
    numbers = np.array([_stabiliser(eps0, s.dtype), _ATTENUATED * eps0, gamma], np.float32)
    positive, attenuated = compile_kernels().base(
        update.numpy(), weights.numpy(), addresses, plan.members, len(s.forget),
        plan.thresholds, plan.scales, numbers, buffers.numpy(),
    )  # fmt: skip
    return BaseBlock(update, positive, attenuated, list(weights))


def _stabiliser(eps0: float, dtype: torch.dtype) -> float:
    return max(eps0, torch.finfo(dtype).tiny)


def _counts(total: Tensor, least: float) -> tuple[int, int]:
    """How many sums are positive, and how many of these are below ``least``."""
    sums = total.numpy()
    positive = int(np.count_nonzero(sums > 0.0))
    return positive, positive - int(np.count_nonzero(sums >= least))
