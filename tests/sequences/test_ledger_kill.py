"""A ledger whose process is killed: nothing acknowledged is lost, nothing is half done."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from fedforget.sequences.ledger import Ledger

GROUPS = [[(f"c{client}", group, 1000) for client in range(3)] for group in range(4)]
SEQUENCES = [(0, 1, 2, 3), (3, 0, 1, 2), (2, 3, 0, 1), (1, 2, 3, 0)]


def in_child(work: Callable[[], None]) -> int:
    """Run ``work`` in a process of its own and return its process id."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return child


def delete(ledger: Ledger, number: int) -> str:
    return ledger.request_deletion(f"r{number}", f"c{number % 3}", number % 4, [f"rec{number}"]).request_id


def new_ledger(path: Path) -> None:
    with Ledger.create(path, GROUPS, SEQUENCES, seed=1) as ledger:
        for order in SEQUENCES:
            for length in range(1, 5):
                prefix = order[:length]
                ledger.record_module(
                    prefix,
                    data_key=ledger.data_key(prefix),
                    sha256="0" * 64,
                    path=f"modules/{'-'.join(map(str, prefix))}",
                    participants=["c0"],
                    examples=1,
                )


def assert_whole(path: Path, acknowledged: list[str]) -> list[str]:
    """Open the ledger, which replays all its events; return the requests on record."""
    with Ledger(path) as ledger:
        requests = ledger.requests()
        done = [request.outcome.request_id for request in requests]
        assert done[: len(acknowledged)] == acknowledged
        # At most one more: committed, and killed before it could say so.
        assert len(done) <= len(acknowledged) + 1
        deleted = {(r.client, r.slice_id, record) for r in requests for record in r.records or ()}
        recorded = {
            (client, slice_id, record)
            for group in GROUPS
            for client, slice_id, _ in group
            for record in ledger.deleted_records(client, slice_id) or ()
        }
        assert recorded == deleted
        groups = {int(request.slice_id or 0) for request in requests}  # the slice's number is its group's
        assert ledger.deleted_groups() == groups
        assert all(groups.isdisjoint(prefix) for prefix in ledger.live_modules())
        assert len(ledger.live_modules()) == sum(
            groups.isdisjoint(order[:length]) for order in SEQUENCES for length in range(1, 5)
        )
        return done


def test_killed_at_random_moments_it_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    new_ledger(path)
    moments = random.Random(11)
    acknowledged: list[str] = []
    for _ in range(15):
        reading, writing = os.pipe()

        def stream(writing: int = writing, first: int = len(acknowledged)) -> None:
            with Ledger(path) as ledger:
                for number in range(first, 100_000):
                    os.write(writing, delete(ledger, number).encode() + b"\n")

        child = in_child(stream)
        os.close(writing)
        with os.fdopen(reading) as answers:
            acknowledged.append(answers.readline().strip())
            time.sleep(moments.uniform(0.0, 0.03))
            os.kill(child, signal.SIGKILL)
            acknowledged += answers.read().split()
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL
        acknowledged = assert_whole(path, acknowledged)
    assert len(acknowledged) >= 15


def test_killed_before_every_statement_it_opens_whole(tmp_path: Path) -> None:
    # A child is killed before the n-th SQL statement of one deletion, for n = 1, 2, ... The last
    # statement is the commit: killed before it there is nothing, and past it the whole deletion.
    path = tmp_path / "ledger.sqlite"
    new_ledger(path)
    killed = 0
    while not assert_whole(path, []):
        status = _killed_before(path, killed + 1)
        killed += status != 0
        assert killed < 200
    assert killed > 8  # begin, reads, event, request, record, group, modules, commit


def _killed_before(path: Path, fatal: int) -> int:
    def work() -> None:
        ledger = Ledger(path, verify=False)
        seen = 0

        def count(_: str) -> None:
            nonlocal seen
            seen += 1
            if seen == fatal:
                os.kill(os.getpid(), signal.SIGKILL)

        ledger._db.set_trace_callback(count)
        delete(ledger, 0)

    _, status = os.waitpid(in_child(work), 0)
    assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL
    return status
