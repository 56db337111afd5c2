"""From raw Fishers to FIRM's sensitivities: pool, then normalise, then sparsify (section 4.2.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedforget.merging import compiled, kernels
from fedforget.merging.inputs import Clients
from fedforget.merging.layout import Layout, Scratch
from fedforget.merging.selection import Stream, kept_count, select
from fedforget.merging.sources import Source


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


@dataclass(frozen=True)
class Sensitivities:
    """Both roles' processed Fishers for one weight.

    ``compiled`` says whether blocks are computed by numba where they can be; the bits are the same.
    """

    layout: Layout
    dtype: torch.dtype
    compiled: bool
    forget: list[Sensitivity]
    retain: list[Sensitivity]

    @property
    def sources(self) -> list[Source]:
        """What blocks are read from."""
        return [one.source for one in (*self.forget, *self.retain)]

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
    sums : list of Tensor
        Sum of the weights of each role that has clients, before eps0.
    retain_weights : list of Tensor
        Processed Fisher per retain client.
    """

    update: Tensor
    sums: list[Tensor]
    retain_weights: list[Tensor]


def process(clients: Clients, name: str, alpha: float, eps0: float) -> Sensitivities:
    """Process the Fishers of one weight: forget domains pooled, retain clients each for itself."""

    def one(source: Source) -> Sensitivity:
        keep = kept_count(source.layout.size, alpha)
        found = select([Stream(source, of_fisher=True)], keep)
        return Sensitivity(source, found.maximum, found.threshold, eps0)

    return Sensitivities(
        layout=clients.layouts[name],
        dtype=clients.working_dtype(name),
        compiled=clients.compiled and clients.working_dtype(name) == torch.float32,
        forget=[one(clients.source(name, members)) for members in clients.domains.values()],
        retain=[one(source) for source in clients.sources(name, clients.retain)],
    )


def base_block(
    s: Sensitivities, gamma: float, eps0: float, start: int, stop: int, scratch: Scratch
) -> BaseBlock:
    """Equations (4) and (5) for coordinates ``start:stop``; the blocks are buffers of ``scratch``.

    Per role, with products, sums and quotients rounded one by one to the working dtype:
    ``num = w_1 d_1``, then ``num += w_i d_i`` and ``sum += w_i`` in order; the term is
    ``num / (sum + eps0)``. The update is ``(forget term + retain term) gamma``.
    """
    size = stop - start
    eps0 = max(eps0, torch.finfo(s.dtype).tiny)
    delta, spare = scratch("delta", size), scratch("spare", size)
    terms, sums, retain_weights = [], [], []
    for role, members in (("forget", s.forget), ("retain", s.retain)):
        if not members:
            continue
        numerator, weight = scratch((role, "numerator"), size), scratch((role, "weight"), size)
        for i, one in enumerate(members):
            w = scratch((role, i) if role == "retain" else role, size)
            bits = compiled.bits_of(one.source) if s.compiled else None
            if bits is not None:
                arrays = numerator.numpy(), weight.numpy(), w.numpy()
                compiled.weigh()(*arrays, *bits, start, one.threshold, one.maximum + one.eps0, i == 0)
            else:
                one.weights(start, stop, w, spare)
                one.source.delta(start, stop, delta, spare)
                if i == 0:
                    torch.mul(delta, w, out=numerator)
                    weight.copy_(w)
                else:
                    numerator.add_(delta.mul_(w))
                    weight.add_(w)
            if role == "retain":
                retain_weights.append(w)
        terms.append(numerator.div_(torch.add(weight, eps0, out=spare)))
        sums.append(weight)
    update = terms[0] if len(terms) == 1 else terms[0].add_(terms[1])
    return BaseBlock(update.mul_(gamma), sums, retain_weights)
