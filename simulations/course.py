"""A course of deletion requests sent to a FedSGT run: measured, verified on the way, repaired or not."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from fedforget.errors import RunError
from fedforget.runs import RunDirectory
from fedforget.sequences.ledger import DELETED
from fedforget.sequences.theory import due_for_repair
from fedforget.sequential.config import SequentialRunConfig
from fedforget.sequential.deletions import forget, held
from fedforget.sequential.plan import SequentialPlan
from fedforget.sequential.served import measure
from fedforget.sequential.verify import require, verify_run
from simulations.requests import request_stream

Repair = Callable[[RunDirectory], list[int]]
"""Repairs a run, and returns the groups that were put back in service."""


@dataclass
class Course:
    """Requests until service ends, with what was measured after each.

    Parameters
    ----------
    run : RunDirectory
    config : SequentialRunConfig
        ``requests`` says what is asked and, with ``repair``, when and how often it is called.
    plan : SequentialPlan
        The run's.
    say : callable
        Tells what is going on.
    verified_after : collection of int
        Numbers of requests after which the longest served prefix is verified, beside every repair and
        the last module before service ends.
    repair : callable, optional
        Called after a request that leaves ``requests.repair_at`` of the sequences off.

    Attributes
    ----------
    rows, verified, repairs : list of dict
        What was measured, verified and repaired.
    ended : bool
        No module is left.
    """

    run: RunDirectory
    config: SequentialRunConfig
    plan: SequentialPlan
    say: Callable[[str], None]
    verified_after: Collection[int] = ()
    repair: Repair | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    verified: list[dict[str, Any]] = field(default_factory=list)
    repairs: list[dict[str, Any]] = field(default_factory=list)
    ended: bool = False

    def follow(self) -> None:
        """Send the requests.

        Raises
        ------
        FedForgetError
            A request was not carried out, a repair failed, or a module that serves is not what the
            remaining data give.
        """
        found = self._measure(0, "after training", "-")
        if 0 in self.verified_after:
            self._verify(0, found)
        stream = request_stream(self.config, self.plan, held(self.run))
        for number, request in enumerate(stream, start=1):
            if len(found["prefixes"]) == 1 and len(found["prefixes"][0]) == 1:
                self._verify(number - 1, found)  # what may be the last module
            outcome = forget(self.run, [request])[0]
            if outcome.status != DELETED:
                raise RunError(f"{outcome.request_id} was not carried out: {outcome.message}")
            groups = ", ".join(map(str, outcome.groups)) or "hit before"
            whom = request.client if request.slice_id is None else f"{request.client}/{request.slice_id}"
            found = self._measure(number, whom, groups)
            if not found["modules"]:
                self.ended = True
                return
            if number in self.verified_after:
                self._verify(number, found)
            if self.repair is not None and self._due(found):
                found = self._repair(number, found)

    @property
    def requests(self) -> int:
        """Requests that were sent."""
        return int(self.rows[-1]["number"])

    def _due(self, found: dict[str, Any]) -> bool:
        wanted = self.config.requests
        return len(self.repairs) < wanted.repairs and due_for_repair(
            found["serving"], len(self.plan.sequences), wanted.repair_at
        )

    def _repair(self, number: int, before: dict[str, Any]) -> dict[str, Any]:
        assert self.repair is not None
        started = time.monotonic()
        groups = self.repair(self.run)
        if not groups:
            return before  # nothing is left of the deleted groups
        attempt = self.run.record["trainings"][-1]
        found = self._measure(number, "repair", ", ".join(map(str, groups)))
        self.repairs.append(
            {
                "after": number,
                "groups": groups,
                "modules": attempt["modules"],
                "visits": attempt["messages"],
                "bytes": attempt["bytes_sent"] + attempt["bytes_received"],
                "client_seconds": attempt["client_seconds"],
                "seconds": round(time.monotonic() - started, 1),
                "before": before["modules"],
            }
        )
        self._verify(number, found)
        return found

    def _measure(self, number: int, what: str, groups: str) -> dict[str, Any]:
        found = measure(self.run)
        longest = max((len(prefix) for prefix in found["prefixes"]), default=0)
        self.rows.append({"number": number, "request": what, "group": groups, "longest": longest, **found})
        accuracy = found["accuracy"]
        serving = "  ".join(",".join(map(str, prefix)) for prefix in found["prefixes"])
        told = "service has ended"
        if accuracy is not None:
            told = f"accuracy {accuracy:.3f}, modules that serve {found['modules']}, prefixes {serving}"
        whom = what if groups == "-" else f"{what}, group{'s' * (',' in groups)} {groups}"
        self.say(f"[{number:3d}] {whom}: {told}")
        return found

    def _verify(self, number: int, found: dict[str, Any]) -> None:
        """Retrain the longest prefix that serves without what was deleted, and compare."""
        longest = max((tuple(prefix) for prefix in found["prefixes"]), key=len)
        state = {"prefix": list(longest), "repairs": len(self.repairs)}
        last = self.verified[-1] if self.verified else {}
        if state.items() <= last.items() and (last["after"] == number or number not in self.verified_after):
            return  # the same modules
        results = verify_run(self.run.path, [longest])
        same = sum(one.ok for one in results)
        self.verified.append({"after": number, **state, "modules": len(results), "same": same})
        said = f"{same} of {len(results)} modules have the same bits"
        self.say(f"      retrained prefix {','.join(map(str, longest))} without what was deleted: {said}")
        require(results)
