"""One method through one stream of requests: what is measured, and when."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedforget.data.holdings import Holdings
from fedforget.data.records import Corpus, Records
from fedforget.evaluation.membership import member_scores
from fedforget.sequences.ledger import Deletion, Ledger
from fedforget.sequential.plan import SequentialPlan
from fedforget.sequential.verify import verify_run
from simulations.experiment.predicted import exact_life
from simulations.federated_method import FederatedMethod
from simulations.methods import Cost, UnlearningMethod

RETRAINS_EACH = "FedRetrain"


@dataclass(frozen=True)
class Pace:
    """How far a stream goes, and when more is measured than accuracy.

    Attributes
    ----------
    every : int
        Membership is measured after so many requests, again and again. A method that has to recover after
        a request does so as often (the paper's FedRetrain: every five).
    horizon : int
        Requests after which a method that recovers stops: it would go on for ever.
    verify : bool
        Retrain, at the first of those points, the longest prefix that serves, and compare bits.
    recover : bool
        Let the method recover once service has ended, and measure it.
    """

    every: int = 5
    horizon: int = 20
    verify: bool = True
    recover: bool = True


class Course:
    """Train a method, send it requests until service ends, let it recover, and measure on the way.

    Parameters
    ----------
    method : UnlearningMethod
    requests : sequence of Deletion
    corpus : Corpus
        Accuracy is measured on its test records, which are also those that no model ever saw.
    held : dict
        What each client holds.
    pace : Pace
    say : callable
        Told of each request.
    """

    def __init__(
        self,
        method: UnlearningMethod,
        requests: Sequence[Deletion],
        corpus: Corpus,
        held: Holdings,
        pace: Pace,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._method, self._requests, self._pace, self._say = method, requests, pace, say
        self._corpus, self._held = corpus, held
        self._asked: list[str] = []
        self._rows: list[dict[str, Any]] = []
        self._membership: list[dict[str, Any]] = []
        self._verified: dict[str, Any] | None = None
        # Methods that keep nothing in service, or that only approximate, recover again and again.
        self._recovers = method.name == RETRAINS_EACH or not method.exact

    def run(self) -> dict[str, Any]:
        """Return what was measured, as plain values."""
        method, pace = self._method, self._pace
        method.train()
        training, formed = method.cost(), life_as_formed(method)
        before = self._scores(self._corpus.federated)
        held_out = self._scores(self._corpus.test)
        self._row(0, 0.0)
        life, recovery = None, None
        for number, request in enumerate(self._requests, start=1):
            if self._recovers and number > pace.horizon:
                break
            started = time.perf_counter()
            alive = method.forget(request)
            seconds = time.perf_counter() - started
            self._note(request)
            point = number % pace.every == 0
            if self._recovers:
                # Until it has recovered, an approximate method serves what it had: that is no answer.
                if point:
                    self._row(number, seconds, self._recover())
                    self._member(number, before, held_out)
                continue
            self._row(number, seconds)
            if not alive:
                life = number
                if pace.recover:
                    recovery = self._recover()
                    recovery["accuracy"] = self._accuracy()
                break
            if point:
                self._member(number, before, held_out)
        return {
            "exact": method.exact,
            "recovers": self._recovers,
            "training": dataclasses.asdict(training),
            "expected_as_formed": formed,
            "course": self._rows,
            "life": life,
            "requests": self._rows[-1]["after"],
            "recovery": recovery,
            "membership": self._membership,
            "verified": self._verified,
            "total": dataclasses.asdict(method.cost()),
        }

    def _recover(self) -> dict[str, Any]:
        before = self._method.cost()
        done = self._method.recover()
        after = self._method.cost()
        spent = {
            field.name: getattr(after, field.name) - getattr(before, field.name)
            for field in dataclasses.fields(Cost)
            if field.name != "storage_bytes"
        }
        return {"done": done, **spent}

    def _row(self, number: int, seconds: float, recovery: dict[str, Any] | None = None) -> None:
        accuracy = self._accuracy()
        row = {"after": number, "accuracy": accuracy, "forget_seconds": seconds, "recovery": recovery}
        self._rows.append({**row, **in_service(self._method, len(self._corpus.federated))})
        shown = "service has ended" if accuracy is None else f"accuracy {accuracy:.3f}"
        self._say(f"[{number:3d}] {self._method.name}: {shown}")

    def _accuracy(self) -> float | None:
        found = self._method.probabilities(self._corpus.test)
        return None if found is None else float((found.argmax(axis=1) == self._corpus.test.labels).mean())

    def _note(self, request: Deletion) -> None:
        slices = self._held[request.client]
        chosen = list(slices) if request.slice_id is None else [request.slice_id]
        for number in chosen:
            records = slices[number] if request.records is None else request.records
            self._asked += [str(name) for name in records if str(name) not in self._asked]

    def _member(self, number: int, before: dict[str, float], held_out: dict[str, float]) -> None:
        """Store the scores of the records deleted so far and of the held-out ones, before and now."""
        deleted = self._corpus.federated.subset(self._asked)
        now = self._scores(deleted)
        if not now:  # out of service
            return
        self._membership.append(
            {
                "after": number,
                "records": list(deleted.ids),
                "before": [before[name] for name in deleted.ids],
                "now": [now[name] for name in deleted.ids],
                "held_out_before": list(held_out.values()),
                "held_out_now": list(self._scores(self._corpus.test).values()),
            }
        )
        if self._pace.verify and self._verified is None and self._method.exact:
            self._verified = verified(self._method, number)

    def _scores(self, records: Records) -> dict[str, float]:
        found: NDArray[np.float64] | None = self._method.probabilities(records)
        if found is None:
            return {}
        return dict(zip(records.ids, member_scores(found, records.labels).tolist(), strict=True))


def in_service(method: UnlearningMethod, records: int) -> dict[str, Any]:
    """Return what serves: live ``modules``, and the share of records in the ``longest`` prefix and in any.

    Shares are of all ``records``, and count what a group held when it was formed. Empty for a method
    without a ledger.
    """
    if not isinstance(method, FederatedMethod):
        return {}
    with Ledger(method.run.ledger, read_only=True, verify=False) as ledger:
        plan = SequentialPlan.of(ledger.groups(), ledger.sequences())
        served = [prefix for prefix in ledger.served_prefixes() if prefix]
        modules = len(ledger.live_modules())
    sizes = [sum(item.size for item in group) for group in plan.groups]
    longest = max((sum(sizes[group] for group in prefix) for prefix in served), default=0)
    union = sum(sizes[group] for group in {group for prefix in served for group in prefix})
    return {"modules": modules, "longest": longest / records, "union": union / records}


def life_as_formed(method: UnlearningMethod) -> float | None:
    """Return the expected service life of the groups that formed, hit as often as they have slices."""
    if not isinstance(method, FederatedMethod):
        return None
    with Ledger(method.run.ledger, read_only=True, verify=False) as ledger:
        plan = SequentialPlan.of(ledger.groups(), ledger.sequences())
    life = exact_life(plan.sequences, [float(len(group)) for group in plan.groups])
    return life.mean if life else None


def verified(method: UnlearningMethod, number: int) -> dict[str, Any] | None:
    """Retrain the longest prefix that serves without what was deleted, and count modules of the same bits."""
    if not isinstance(method, FederatedMethod):
        return None
    with Ledger(method.run.ledger, read_only=True, verify=False) as ledger:
        served = [prefix for prefix in ledger.served_prefixes() if prefix]
    longest = max(served, key=len)
    results = verify_run(method.run.path, [longest])
    return {
        "after": number,
        "prefix": list(longest),
        "modules": len(results),
        "same": sum(one.ok for one in results),
    }
