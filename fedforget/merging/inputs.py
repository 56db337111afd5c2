"""The clients of one merge: checked, in a fixed order, read one weight and one block at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property, partial

import torch

from fedforget.errors import SummaryError
from fedforget.merging.compiled import compile_kernels, use_numba
from fedforget.merging.layout import Layout
from fedforget.merging.sources import Part, Source
from fedforget.summaries import ClientSummary


class Clients:
    """The checked summaries of one merge, ordered by client id.

    Parameters
    ----------
    summaries : iterable of ClientSummary
        In any order.
    needs_fisher : bool
        Whether every client must have sent its Fisher diagonal.
    engine : {"auto", "torch", "numba"}
        What blocks are computed with, see :func:`fedforget.merging.merge`.

    Raises
    ------
    SummaryError
        No summary, no forget client, a repeated client id, a summary that is not valid, a
        missing Fisher, or clients whose tensors differ in name or shape. Names client and tensor.
        Values (finite, Fishers non-negative) are checked when a weight is first asked for.
    """

    def __init__(
        self, summaries: Iterable[ClientSummary], *, needs_fisher: bool, engine: str = "auto"
    ) -> None:
        self.all = sorted(summaries, key=lambda summary: summary.client_id)
        if not self.all:
            raise SummaryError("there is no client summary to merge; give at least one forget client's")
        self._check_ids()
        self.layouts: dict[str, Layout] = {}
        self._needs_fisher = needs_fisher
        self._dtypes: dict[str, torch.dtype] = {}
        self._working: dict[str, torch.dtype] = {}
        self._checked: set[tuple[str, bool]] = set()
        for summary in self.all:
            summary.check_names()
            if needs_fisher and not summary.fisher:
                raise SummaryError(
                    f"client {summary.client_id!r}: sent no Fisher diagonal, which this merge method needs; "
                    "use a method without Fishers or let the client compute it"
                )
            self._check_shapes(summary, {name: summary.check_kind(name) for name in summary.deltas})
            for name in self.layouts:
                self._note_dtypes(name, summary)
        self.compiled = use_numba(engine, sum(layout.size for layout in self.layouts.values()))
        if self.compiled:
            compile_kernels()  # before threads ask for them at once
        self.forget = [summary for summary in self.all if summary.role == "forget"]
        self.retain = [summary for summary in self.all if summary.role == "retain"]
        if not self.forget:
            raise SummaryError(
                f"none of the {len(self.all)} clients has the role 'forget'; a merge needs at least one"
            )

    @property
    def names(self) -> list[str]:
        """Tensor names, sorted."""
        return sorted(self.layouts)

    @cached_property
    def domains(self) -> dict[str, list[ClientSummary]]:
        """Forget clients by domain, sorted."""
        return {
            domain: [summary for summary in self.forget if summary.domain == domain]
            for domain in sorted({summary.domain for summary in self.forget})
        }

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of the merged tensor: the clients' own, promoted where they differ."""
        return self._dtypes[name]

    def working_dtype(self, name: str) -> torch.dtype:
        """Return what a weight is computed in: fp32, or fp64 where a client sent fp64."""
        return self._working[name]

    def source(self, name: str, members: Sequence[ClientSummary], *, trust: bool = False) -> Source:
        """Return the mean of some clients for one weight.

        Parameters
        ----------
        name : str
        members : sequence of ClientSummary
        trust : bool
            Leave the values of dense tensors to the caller, who reads them all anyway: it must call
            :meth:`check_tensors` where one may not be allowed.

        Raises
        ------
        SummaryError
            A client's task vector or Fisher for this weight holds a value that is not allowed.
        """
        self._check_values(name, trust)
        return self._source(name, members)

    def check_tensors(self, name: str) -> None:
        """Look at every value of every client for one weight; raises as :meth:`source`."""
        for summary in self.all:
            summary.check_tensor(name)

    def _source(self, name: str, members: Sequence[ClientSummary]) -> Source:
        working = self._working[name]
        return Source(members, name, self.layouts[name], working, self.compiled and working == torch.float32)

    def sources(self, name: str, members: Sequence[ClientSummary]) -> list[Source]:
        """Return one source per client for one weight."""
        return [self.source(name, [member]) for member in members]

    def _note_dtypes(self, name: str, summary: ClientSummary) -> None:
        dtype = summary.deltas[name].dtype
        self._dtypes[name] = torch.promote_types(self._dtypes.get(name, dtype), dtype)
        for one in (dtype, *([summary.fisher[name].dtype] if self._needs_fisher else [])):
            self._working[name] = torch.promote_types(self._working.get(name, torch.float32), one)

    def _check_values(self, name: str, trust: bool) -> None:
        """Check every client's values for one weight, the first time that it is asked for."""
        if (name, trust) in self._checked:
            return
        for summary in self.all:
            source = self._source(name, [summary])
            limits = [(part, -math.inf) for part in source.deltas]
            limits += [(part, 0.0) for part in (source.fishers if self._needs_fisher else ())]
            looked_at = [(part, least) for part, least in limits if part.plain is None or not trust]
            if looked_at and not all(self.layouts[name].map([source], partial(_allowed, looked_at))):
                summary.check_tensor(name)
        self._checked.add((name, trust))

    def _check_ids(self) -> None:
        for one, other in zip(self.all, self.all[1:], strict=False):
            if one.client_id == other.client_id:
                raise SummaryError(
                    f"client {one.client_id!r}: two summaries have this id; give each client once"
                )

    def _check_shapes(self, summary: ClientSummary, shapes: dict[str, tuple[int, ...]]) -> None:
        if not self.layouts:
            self.layouts = {name: Layout(shapes[name]) for name in sorted(shapes)}
            return
        who, first = f"client {summary.client_id!r}", self.all[0].client_id
        for name in sorted(set(shapes) ^ set(self.layouts)):
            where = (
                f"is not among client {first!r}'s"
                if name in shapes
                else f"is missing; client {first!r} has it"
            )
            raise SummaryError(f"{who}: tensor {name!r} {where}; all clients must adapt the same weights")
        for name, layout in self.layouts.items():
            if shapes[name] != layout.shape:
                raise SummaryError(
                    f"{who}: tensor {name!r} has shape {shapes[name]}, client {first!r} has {layout.shape}; "
                    "all clients must adapt the same backbone"
                )


def _allowed(looked_at: Sequence[tuple[Part, float]], start: int, stop: int) -> bool:
    """Tell whether a block of some parts is finite and not below what is least."""
    return all(part.within(start, stop, least) for part, least in looked_at)
