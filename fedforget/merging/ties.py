"""TIES-merging: trim, elect a sign, average what agrees (Yadav et al.)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedforget.merging import kernels
from fedforget.merging.compiled import ELECTION_BUFFERS, compile_kernels
from fedforget.merging.inputs import Clients
from fedforget.merging.layout import Scratch
from fedforget.merging.registry import Plan, method
from fedforget.merging.selection import Stream, kept_count, select
from fedforget.merging.sources import Source
from fedforget.parameters import Scaled, choice, fraction
from fedforget.summaries import ClientSummary

SCOPES = ("tensor", "global")
_SCOPE_HELP = "trim each tensor by itself, or each client's whole vector at once"


@dataclass(frozen=True)
class TiesParameters(Scaled):
    """Parameters of TIES."""

    density: float = fraction(0.2, "share of each task vector's entries that trimming keeps, largest first")
    scope: str = choice("tensor", SCOPES, _SCOPE_HELP)


@method(
    "ties",
    pretty="TIES",
    reference="Yadav et al., TIES-Merging, NeurIPS 2023, algorithm 1; FIRM, section 5.1, baselines",
    summary="gamma times the TIES merge of the forget task vectors; retain clients do not enter",
    parameters=TiesParameters,
)
def ties(clients: Clients, p: TiesParameters) -> Plan:
    """Plan TIES on the forget vectors.

    Public versions differ. Here trimming keeps exactly :func:`kept_count` entries and whatever ties with
    the last of them; the elected sign is that of the summed trimmed values, + for a sum of zero; the
    mean is over the non-zero entries of that sign.
    """
    trimming = Trimming(clients, clients.forget, p.density, p.scope)

    def tensor(name: str) -> tuple[Tensor, dict[str, Any]]:
        trimmed = trimming.sources(name)
        merged = clients.layouts[name].assemble(
            clients.dtype(name),
            [one.source for one in trimmed],
            lambda start, stop: elect(trimmed, start, stop).mul_(p.gamma),
        )
        return merged, {}

    return Plan(tensor)


@dataclass(frozen=True)
class Trimmed:
    """One client's task vector for one weight, its small entries zeroed as it is read."""

    source: Source
    threshold: float

    def block(self, start: int, stop: int) -> Tensor:
        """Coordinates ``start:stop``."""
        return kernels.trim(self.source.delta(start, stop), self.threshold)


def elect(trimmed: Sequence[Trimmed], start: int, stop: int) -> Tensor:
    """TIES of some clients' trimmed vectors, for coordinates ``start:stop``."""
    addresses = [one.source.delta_addresses for one in trimmed]
    if any(first is None or len(first) > 1 for first in addresses):
        return kernels.elect_and_average([one.block(start, stop) for one in trimmed])
    out = torch.empty(stop - start)
    buffers = _scratch("buffers", ELECTION_BUFFERS[0] * ELECTION_BUFFERS[1]).view(ELECTION_BUFFERS)
    compile_kernels().elect(
        out.numpy(),
        np.concatenate([first for first in addresses if first is not None]) + 2 * start,
        np.array([one.threshold for one in trimmed], np.float32),
        buffers.numpy(),
    )
    return out


_scratch = Scratch(torch.float32)


class Trimming:
    """The magnitude below which each client's entries are dropped.

    With ``scope="global"`` the thresholds are found at once, by streaming each client's tensors through
    :func:`select`; only one number per client is kept.
    """

    def __init__(
        self, clients: Clients, members: Sequence[ClientSummary], density: float, scope: str
    ) -> None:
        self._clients = clients
        self._members = members
        self._density = density
        self._global: dict[str, float] = {}
        if scope == "global":
            size = sum(layout.size for layout in clients.layouts.values())
            keep = kept_count(size, density)
            for member in members:
                streams = [Stream(clients.source(name, [member]), of_fisher=False) for name in clients.names]
                self._global[member.client_id] = select(streams, keep).threshold

    def sources(self, name: str) -> list[Trimmed]:
        """Return the members' trimmed vectors for one weight, in their order."""
        size = self._clients.layouts[name].size
        keep = kept_count(size, self._density)
        trimmed = []
        for member, source in zip(self._members, self._clients.sources(name, self._members), strict=True):
            if self._global:
                threshold = self._global[member.client_id]
            else:
                threshold = select([Stream(source, of_fisher=False)], keep).threshold
            trimmed.append(Trimmed(source, threshold))
        return trimmed
