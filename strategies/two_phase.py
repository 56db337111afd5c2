"""The second round trip of exact pooling: asking the clients of a domain for the entries that are missing.

What is asked for, and why it is enough, is in :mod:`fedforget.two_phase`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from logging import INFO
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.supercore import log

from fedforget import protocol
from fedforget.codecs import RAW
from fedforget.codecs.exchange import PlacesRequest, unpack_values
from fedforget.errors import SummaryError
from fedforget.files import read_json
from fedforget.sparse_fisher import Coverage, Fisher, SparseFisher
from fedforget.summaries import ClientSummary
from fedforget.two_phase import candidates, check_answer, completed, missing
from strategies.dispatch import Task, dispatch, raise_failures, storing
from strategies.roles import Assignment
from strategies.spool import Spool, buckets_of

Make = Callable[[Assignment, str, ConfigRecord, str], Message]


def second_phase(
    grid: Grid,
    spool: Spool,
    assignments: Sequence[Assignment],
    make: Make,
    stored: Callable[[str], None],
    *,
    timeout: float,
    poll: float,
) -> None:
    """Complete the summaries of which the first half is in the spool; does nothing where there is none.

    Parameters
    ----------
    grid : Grid
    spool : Spool
    assignments : sequence of Assignment
    make : callable
        Makes a message for an assignment, of a type, with further keys, in a group.
    stored : callable
        Told the id of each client whose summary is complete on disk.
    timeout, poll : float
        As for :func:`strategies.dispatch.dispatch`.

    Raises
    ------
    RunError
        A client did not answer, or sent something unusable; names each and why.
    """
    split = [a for a in assignments if spool.asked[a.spec.id].first]
    tasks: list[Task] = []
    open_: dict[str, _Half] = {}
    for members in sorted({spool.asked[a.spec.id].members for a in split}):
        waiting = [a for a in split if a.spec.id in members and not spool.has(a.spec.id)]
        if not waiting:
            continue
        halves = _ask(spool, members, [a.spec.id for a in waiting])
        for assignment in waiting:
            half = halves[assignment.spec.id]
            open_[assignment.spec.id] = half
            tasks.append(Task(assignment.spec.id, half.message(make, assignment)))
    if not tasks:
        return
    log(INFO, "Two-phase pooling: a second round trip, %d clients are asked for missing entries", len(tasks))
    specs = {a.spec.id: a.spec for a in split}

    def receive(name: str, reply: Message) -> None:
        summary, facts = open_[name].complete(reply)
        with storing(spool.folder):
            spool.finish(specs[name], summary, facts)
            stored(name)

    failed = dispatch(grid, tasks, receive, timeout=timeout, poll=poll)
    raise_failures(failed, "the second phase of pooling cannot be completed")
    # Kept until here: where one client fails, the others' halves are needed to ask it again.
    shutil.rmtree(spool.first)


def _ask(spool: Spool, members: Sequence[str], waiting: Sequence[str]) -> dict[str, _Half]:
    """Work out, tensor by tensor, what each waiting client of one domain is to be asked for."""
    firsts = {name: ClientSummary.load(spool.first / name) for name in members}
    wanted = PlacesRequest()  # of the whole domain
    halves = {
        name: _Half(
            firsts[name],
            dict(read_json(spool.first / f"{name}.json")),
            wanted,
            spool.asked[name].completed,
        )
        for name in waiting
    }
    for weight in sorted(firsts[members[0]].fisher):
        sent = {name: _sparse(firsts[name], weight) for name in members}
        places = candidates([sent[name] for name in members], spool.asked[members[0]].alpha)
        wanted.add(weight, places)
        for name, half in halves.items():
            half.request.add(weight, None if places is None else missing(places, sent[name]))
    return halves


def _sparse(summary: ClientSummary, weight: str) -> SparseFisher:
    fisher = summary.fisher[weight]
    if not isinstance(fisher, SparseFisher):
        raise SummaryError(
            f"client {summary.client_id!r}: Fisher {weight!r} came whole where its largest entries were asked"
        )
    return fisher


class _Half:
    """The first half of one client's summary, and the request for the second."""

    def __init__(
        self, first: ClientSummary, facts: dict[str, Any], wanted: PlacesRequest, coverage: Coverage
    ) -> None:
        self.first = first
        self.request = PlacesRequest()
        self._facts = facts
        self._wanted = wanted
        self._coverage = coverage
        self._sent = 0

    def message(self, make: Make, assignment: Assignment) -> Message:
        buckets, manifest = self.request.pack()
        self._sent = sum(bucket.nbytes for bucket in buckets)
        keys = {protocol.MANIFEST: manifest, protocol.DIGEST: str(self._facts.get(protocol.DIGEST))}
        message = make(assignment, protocol.VALUES, ConfigRecord(dict(keys)), "2")
        message.content[protocol.ARRAYS] = ArrayRecord(
            {f"{i:05d}": Array("uint8", b.shape, RAW, b.tobytes()) for i, b in enumerate(buckets)}
        )
        return message

    def complete(self, reply: Message) -> tuple[ClientSummary, dict[str, Any]]:
        who = f"client {self.first.client_id!r}"
        info = protocol.record_in(reply.content, protocol.INFO, ConfigRecord) or ConfigRecord()
        arrays = protocol.record_in(reply.content, protocol.ARRAYS, ArrayRecord) or ArrayRecord()
        buckets = buckets_of(who, arrays)
        sent = {weight: _sparse(self.first, weight) for weight in self.first.fisher}
        counts = {weight: self.request.count(weight) for weight in sent}
        expected = {
            weight: (one.size if (n := counts[weight]) is None else n, one.dtype)
            for weight, one in sent.items()
        }
        values = unpack_values(buckets, str(info.get(protocol.MANIFEST)), expected, who)
        fisher: dict[str, Fisher] = {}
        for weight, one in sent.items():
            places = self._wanted.places(weight, one.size)
            check_answer(one, values[weight], places is None, f"{who}: Fisher {weight!r}")
            fisher[weight] = (
                values[weight].reshape(one.shape)
                if places is None
                else completed(places, one, values[weight])
            )
        received = sum(bucket.nbytes for bucket in buckets)
        facts = {
            **self._facts,
            "bytes": int(self._facts["bytes"]) + received,
            "fisher_bytes": int(self._facts["fisher_bytes"]) + received,
            "request_bytes": self._sent,
            "whole_tensors": sum(n is None for n in counts.values()),
        }
        return (
            ClientSummary(
                client_id=self.first.client_id,
                role=self.first.role,
                domain=self.first.domain,
                num_examples=self.first.num_examples,
                deltas=self.first.deltas,
                fisher=fisher,
                coverage=self._coverage,
            ),
            facts,
        )
