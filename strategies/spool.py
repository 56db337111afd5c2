"""The summaries of a round on disk: each is checked when it arrives, written, and let go of."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.supercore import log
from torch.linalg import vector_norm

from fedforget import protocol
from fedforget.client_specs import ClientSpec
from fedforget.codecs import RAW, Bucket, Instruction, traffic, unpack
from fedforget.errors import SummaryError
from fedforget.files import write_json
from fedforget.sparse_fisher import WHOLE, Coverage
from fedforget.summaries import ClientSummary, LoraFactors


class Spool:
    """Client summaries, one directory each, by client id.

    Parameters
    ----------
    folder : Path
    shapes : mapping of str to tuple of int
        The backbone's adapted weights, which every summary must have.
    fingerprint : str
        Of the server's backbone.
    needs_fisher : bool
        Refuse a summary without a Fisher diagonal.
    largest : mapping of str to float, optional
        The norm that a weight's task vector may have; weights that are not named are not compared.

    Attributes
    ----------
    received : dict of str to dict
        Per client that sent its summary in this round: its node, the bytes received, its metrics.
    asked : dict of str to Instruction
        Per client, how its Fisher is to come; without one it must be whole.
    first : Path
        Where the first halves of summaries are that come in two phases.
    """

    def __init__(
        self,
        folder: Path,
        shapes: Mapping[str, tuple[int, ...]],
        fingerprint: str,
        needs_fisher: bool,
        largest: Mapping[str, float] | None = None,
    ) -> None:
        self.folder = folder
        self.first = folder.with_name("first")
        self.received: dict[str, dict[str, Any]] = {}
        self.asked: dict[str, Instruction] = {}
        self._shapes = shapes
        self._fingerprint = fingerprint
        self._needs_fisher = needs_fisher
        self._largest = dict(largest or {})

    def receive(self, spec: ClientSpec, reply: Message) -> None:
        """Check one client's reply and write its summary.

        Raises
        ------
        SummaryError
            The reply holds no summary, a damaged one, or one of another client or backbone.
        """
        who = f"client {spec.id!r}"
        if spec.id in self.received:
            log(WARNING, "Ignored a second summary of %s", who)
            return
        info = protocol.record_in(reply.content, protocol.INFO, ConfigRecord) or ConfigRecord()
        arrays = protocol.record_in(reply.content, protocol.ARRAYS, ArrayRecord)
        if arrays is None or not isinstance(info.get(protocol.MANIFEST), str):
            raise SummaryError(f"{who}: its reply holds no summary")
        fingerprint = str(info.get(protocol.FINGERPRINT))
        if fingerprint != self._fingerprint:
            raise SummaryError(
                f"{who} trained on the backbone {fingerprint}, the server has {self._fingerprint}"
            )
        buckets = buckets_of(who, arrays)
        manifest = str(info[protocol.MANIFEST])
        summary = unpack(buckets, manifest, client=spec.id, shapes=self._shapes)
        told = self.asked.get(spec.id, Instruction())
        self._check(spec, summary, (told.coverage,) if told.first else (WHOLE, told.coverage))
        metrics = protocol.record_in(reply.content, protocol.METRICS, MetricRecord) or MetricRecord()
        facts = {
            # The client's own figures first: they take the place of nothing that is measured here.
            **{key: value for key, value in metrics.items() if isinstance(value, int | float)},
            **traffic(manifest, spec.id),
            "node": reply.metadata.src_node_id,
            "bytes": sum(bucket.nbytes for bucket in buckets),
        }
        if told.first:
            facts[protocol.DIGEST] = str(info.get(protocol.DIGEST))
            write_json(self.first / f"{spec.id}.json", facts)
            summary.save(self.first / spec.id)
        else:
            summary.save(self.folder / spec.id)
        self.received[spec.id] = facts

    def finish(self, spec: ClientSpec, summary: ClientSummary, facts: Mapping[str, Any]) -> None:
        """Write the summary of a client that sent its Fisher in two phases.

        Raises
        ------
        SummaryError
            Put together, the two are no valid summary.
        """
        self._check(spec, summary, (self.asked[spec.id].completed,))
        summary.save(self.folder / spec.id)
        self.received[spec.id] = dict(facts)

    def delivered(self, as_received: Callable[[str], bool] = lambda client: True) -> list[ClientSpec]:
        """Return the clients whose summaries are there, as those say who they are.

        ``as_received`` as for :meth:`holds`; a summary that is not is left for that to see.
        """
        found = []
        for folder in sorted(self.folder.glob("[!.]*")):
            with contextlib.suppress(SummaryError):
                summary = ClientSummary.load(folder)
                if summary.client_id == folder.name and as_received(folder.name):
                    found.append(ClientSpec(summary.client_id, summary.role, summary.domain, 0, 1))
        return found

    def has(self, name: str) -> bool:
        """Tell whether a client's directory is there."""
        return (self.folder / name).is_dir()

    def has_first(self, name: str) -> bool:
        """Tell whether the first half of a summary in two phases is there."""
        return (self.first / name).is_dir()

    def holds(self, spec: ClientSpec, as_received: Callable[[str], bool] = lambda client: True) -> bool:
        """Tell whether a valid summary of the client is there; an invalid one is moved aside.

        ``as_received`` tells whether a client's files are the bytes that were received.
        """
        told = self.asked.get(spec.id, Instruction())
        final = (told.completed,) if told.first else (WHOLE, told.coverage)
        if self._usable(self.folder / spec.id, spec, final, as_received):
            return True
        return told.first and self._usable(self.first / spec.id, spec, (told.coverage,), lambda client: True)

    def _usable(
        self,
        folder: Path,
        spec: ClientSpec,
        coverages: Sequence[Coverage],
        as_received: Callable[[str], bool],
    ) -> bool:
        if not folder.exists():
            return False
        try:
            if not as_received(spec.id):
                raise SummaryError("its files are not those that were received")
            self._check(spec, ClientSummary.load(folder), coverages)
        except SummaryError as error:
            aside = folder.with_name(f".{folder.name}.invalid-{secrets.token_hex(4)}")
            folder.rename(aside)
            log(WARNING, "\t%s: %s; kept as %s, asking again", spec.id, error, aside.name)
            return False
        return True

    def load(self, names: Sequence[str]) -> list[ClientSummary]:
        """Open summaries; tensors stay on disk until they are asked for."""
        return [ClientSummary.load(self.folder / name) for name in sorted(names)]

    def _check(self, spec: ClientSpec, summary: ClientSummary, coverages: Sequence[Coverage]) -> None:
        who = f"client {spec.id!r}"
        for key, expected in (("client_id", spec.id), ("role", spec.role), ("domain", spec.domain)):
            given = getattr(summary, key)
            if given != expected:
                raise SummaryError(f"{who}: its summary says {key} {given!r}, expected {expected!r}")
        summary.check_against(self._shapes)
        summary.validate()
        for name, largest in self._largest.items():
            delta = summary.deltas[name]
            size = delta.norm() if isinstance(delta, LoraFactors) else float(vector_norm(delta.float()))
            if size > largest:
                raise SummaryError(
                    f"{who}: tensor {name!r} of its task vector has norm {size:.3g}, at most {largest:.3g} "
                    "is taken; lower its learning rate, or raise communication.norm_limit"
                )
        if summary.coverage not in coverages:
            raise SummaryError(
                f"{who}: its Fisher came as {summary.coverage.kind!r}, which it was not asked for; "
                f"expected {coverages[-1].kind!r}"
            )
        if self._needs_fisher and not summary.fisher:
            raise SummaryError(f"{who}: its summary holds no Fisher diagonal, which the merge method needs")


def buckets_of(who: str, arrays: ArrayRecord) -> list[Bucket]:
    """Return a reply's buckets; raises SummaryError where an array is something else."""
    return [_bucket(who, array) for array in arrays.values()]


def _bucket(who: str, array: Array) -> Bucket:
    if array.stype != RAW or array.dtype != "uint8" or tuple(array.shape) != (len(array.data),):
        raise SummaryError(f"{who}: an array of its reply is not a bucket of raw bytes")
    return np.frombuffer(array.data, np.uint8)
