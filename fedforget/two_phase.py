"""Exact pooling from less: which entries of its members' Fishers a domain's top alpha depends on.

The pooled Fisher of a domain is the mean ``G = (F_1 + ... + F_n) / n``, and the server needs the
entries of G that are at least T, its k-th largest, ties included (FIRM, section 4.2.1, with
``k = kept_count(d, alpha)``). First each client i sends its own largest entries S_i with their
values, and ``u_i``, the largest value it did not send. That bounds every entry of G from both
sides: put 0, or u_i, where F_i was not sent,

    low(j)  = 1/n sum_i (F_i(j) if j in S_i else 0)    <=  G(j)
    high(j) = 1/n sum_i (F_i(j) if j in S_i else u_i)  >=  G(j).

Let B be the k-th largest of low. At least k entries of G are at least B, so T >= B, and an entry
with ``high(j) < B`` is below T. A place that nobody sent has ``high = mean(u)``. So where
``mean(u) < B`` the candidates ``C = {j in S_1 u ... u S_n : high(j) >= B}`` hold every entry that
is at least T; their number is at least k, so T is the k-th largest of G on C as well, and so is
every threshold of a smaller alpha, and the maximum. Then each client is asked for its values at
the places of C that it did not send, and the mean over C is the mean over everything, to the bit.
Where ``mean(u) >= B`` (few entries sent, or clients that agree on nothing) the bound decides
nothing, and the tensor is asked for whole.

Rounding: the bounds are taken in fp64, and B is lowered by more than the rounding of a sum of n
non-negative numbers in fp32, so the candidates suffice for a server that pools in either. Where B
is so small that rounding is no longer relative, the tensor is asked for whole.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedforget.errors import SummaryError
from fedforget.merging.selection import kept_count
from fedforget.sparse_fisher import SparseFisher, index_dtype

_SMALLEST = 2.0**-100


def candidates(members: Sequence[SparseFisher], alpha: float) -> Tensor | None:
    """Find the places that the pooled top alpha can be at.

    Parameters
    ----------
    members : sequence of SparseFisher
        Of one weight, one per client of the domain: its largest entries, ties included, and in
        ``rest`` the largest that it left out.
    alpha : float
        The share of the pooled Fisher that the server keeps, in (0, 1].

    Returns
    -------
    Tensor or None
        Ascending places, as :class:`SparseFisher` has them; None where the bound does not tell.
    """
    size, n = members[0].size, len(members)
    union = np.unique(np.concatenate([one.indices.numpy() for one in members]))
    low = np.zeros(union.size)
    high = np.zeros(union.size)
    for one in members:
        at = np.searchsorted(union, one.indices.numpy())
        values = one.values.to(torch.float64).numpy()
        low[at] += values
        missing = np.full(union.size, one.rest)
        missing[at] = values
        high += missing
    if any(one.rest > 0.0 for one in members):
        bound = _bound(low / n, kept_count(size, alpha), n)
        if bound < _SMALLEST or sum(one.rest for one in members) / n >= bound:
            return None
        union = union[high / n >= bound]
    return torch.from_numpy(union).to(index_dtype(size))


def _bound(low: NDArray[np.float64], k: int, n: int) -> float:
    if low.size < k:
        return 0.0
    return float(np.partition(low, low.size - k)[low.size - k]) * (1.0 - (n + 2) * 2.0**-23)


def missing(places: Tensor, sent: SparseFisher) -> Tensor:
    """Return the places that a client has not sent yet, ascending."""
    return places[~torch.isin(places, sent.indices, assume_unique=True)]


def check_answer(sent: SparseFisher, values: Tensor, whole: bool, what: str) -> None:
    """Refuse an answer that contradicts what a client sent first: the proof above rests on both.

    Parameters
    ----------
    sent : SparseFisher
        What the client sent first.
    values : Tensor
        One-dimensional: at :func:`missing`, or, where ``whole``, of the whole tensor.
    what : str
        Begins the message.

    Raises
    ------
    SummaryError
        A value is larger than what the client said it had left out at most, or another than it sent.
    """
    if whole:
        places = sent.indices.long()
        if not torch.equal(values[places], sent.values):
            raise SummaryError(f"{what}: the whole tensor holds other values than were sent first")
        values = values.index_fill(0, places, 0.0)
    if values.numel() and not float(values.max()) <= sent.rest:
        raise SummaryError(
            f"{what}: {float(values.max()):g} is among the values asked for, and at most {sent.rest:g} was "
            "said to be left out"
        )


def completed(places: Tensor, sent: SparseFisher, values: Tensor) -> SparseFisher:
    """Put what a client sent first and its further ``values`` together, on the candidate places.

    Parameters
    ----------
    places : Tensor
        From :func:`candidates`.
    sent : SparseFisher
        What the client sent first.
    values : Tensor
        Its values at :func:`missing`, in that order.
    """
    out = torch.empty(places.numel(), dtype=sent.dtype)
    first = torch.isin(places, sent.indices, assume_unique=True)
    out[first] = sent.values[torch.isin(sent.indices, places, assume_unique=True)]
    out[~first] = values
    return SparseFisher(sent.shape, places, out)
