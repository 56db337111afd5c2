"""A round's messages to the clients of a FedSGT run: what is sent, what came back, and at what cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from logging import INFO, WARNING

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore import log

from fedforget.errors import RunError
from fedforget.sequential import protocol as words
from strategies.dispatch import Task, dispatch, raise_failures, storing, take
from strategies.sequential_roles import request
from strategies.sequential_round import Outbox
from strategies.sequential_spool import Request, ResultSpool

_INCOMPLETE = "the round cannot be completed"


class Exchange:
    """Asks the clients for what is not in the spool yet, and keeps what they send.

    Parameters
    ----------
    spool : ResultSpool
    outbox : Outbox
    text : str
        The configuration that clients are sent; may be set anew between rounds.
    run_id : str
    poll : float
        Seconds between two rounds of asking for replies.
    own_data : callable
        Tells which clients declared data of their own.

    Attributes
    ----------
    clients : dict of str to int
        Node id by client id; set it before asking.
    asked : dict of str to list of Request
        What each client was asked for in this round.
    traffic : dict of str to float
        Rounds with any training, clients in them, messages, bytes in both directions, and the clients'
        seconds, of all rounds so far.
    """

    def __init__(
        self,
        spool: ResultSpool,
        outbox: Outbox,
        text: str,
        run_id: str,
        poll: float,
        own_data: Callable[[], Collection[str]],
    ) -> None:
        self.spool, self.outbox = spool, outbox
        self.clients: dict[str, int] = {}
        self.asked: dict[str, list[Request]] = {}
        self.traffic: dict[str, float] = {
            "rounds": 0, "participations": 0, "messages": 0,
            "bytes_sent": 0, "bytes_received": 0, "client_seconds": 0.0
        }  # fmt: skip
        self.text, self._run_id, self._poll = text, run_id, poll
        self._own_data, self._own = own_data, frozenset[str]()
        self._without: Mapping[str, words.Without] = {}
        self._keep = "[]"
        self._kind = words.SEQUENTIAL
        self._further: Mapping[str, Mapping[str, str]] = {}
        self._messages: dict[str, Message] = {}
        self._lacking: dict[str, list[str]] = {}

    def clear(self) -> None:
        """Forget the round before."""
        self.asked, self._messages = {}, {}

    def ask(
        self,
        requests: Iterable[Request],
        without: Mapping[str, words.Without],
        keep: str,
        kind: str = words.SEQUENTIAL,
        further: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """Prepare a round: one message per client with all the requests that the spool does not hold.

        Parameters
        ----------
        requests : iterable of Request
        without : mapping of client id to deleted records by slice
        keep : str
            JSON list of the hashes that clients may keep in their caches.
        kind : str
            The type of the messages.
        further : mapping of client id to (mapping of str to str), optional
            What a client's message says beyond that.
        """
        self.clear()
        self._kind, self._further = kind, further or {}
        self._without, self._keep, self._own = without, keep, frozenset(self._own_data())
        for one in requests:
            if not self.spool.holds(one):
                self.asked.setdefault(one.client_id, []).append(one)

    def messages(self) -> list[Message]:
        """Return the round's messages, ordered by client id."""
        self._messages = {name: self._message(name) for name in sorted(self.asked)}
        return list(self._messages.values())

    def collect(self, grid: Grid, timeout: float) -> None:
        """Send the round's messages and keep every result as it arrives.

        A client that lacks modules, having lost its cache, is sent them once more.

        Raises
        ------
        RunError
            A client failed, or sent what cannot be used; names each and why.
        """
        tasks = [Task(name, message) for name, message in self._messages.items()]
        sent: dict[str, set[str]] = {}
        self.traffic["rounds"] += bool(tasks)
        self.traffic["participations"] += len(tasks)
        while tasks:
            self._lacking = {}
            failed = dispatch(grid, tasks, self._receive, timeout=timeout, poll=self._poll)
            for name, lacking in self._lacking.items():
                again = sorted(set(lacking) & sent.get(name, set()))
                if again:
                    failed[name] = (
                        f"it says that it lacks module {again[0][:12]}..., which was sent to it twice"
                    )
                sent.setdefault(name, set()).update(lacking)
            raise_failures(failed, _INCOMPLETE)
            tasks = [
                Task(name, self._message(name, lacking)) for name, lacking in sorted(self._lacking.items())
            ]
        self.outbox.forget_bytes()

    def complete(self, replies: Iterable[Message], needed: Iterable[Request]) -> None:
        """Keep the replies that are given, and check that every result is there.

        Raises
        ------
        RunError
            A result is missing or not usable; names each client and why.
        """
        names = {message.metadata.message_id: name for name, message in self._messages.items()}
        failed = take(replies, names, self._receive)
        for one in needed:
            if one.client_id not in failed and not self.spool.holds(one):
                failed[one.client_id] = f"no result for module {list(one.work.prefix)}"
        raise_failures(failed, _INCOMPLETE)

    def run(
        self,
        grid: Grid,
        requests: list[Request],
        without: Mapping[str, words.Without],
        keep: str,
        timeout: float,
        kind: str = words.SEQUENTIAL,
        further: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """Go through a whole round: ask, send, keep every result, and check that none is missing.

        Raises
        ------
        RunError
            As :meth:`collect` and :meth:`complete`.
        """
        self.ask(requests, without, keep, kind, further)
        self.messages()
        self.collect(grid, timeout)
        self.complete([], requests)

    def release(self, grid: Grid, timeout: float) -> None:
        """Let the clients drop their caches; a client that does not answer keeps files, no more."""
        tasks = [
            Task(name, request(node, words.RELEASE, "release", self.text, name, self._run_id, {}, {}))
            for name, node in self.clients.items()
        ]
        log(INFO, "Asking %d clients to drop what they cached of this run", len(tasks))
        failed = dispatch(grid, tasks, lambda *_: None, timeout=timeout, poll=self._poll)
        for name, reason in failed.items():
            log(WARNING, "\t%s may still cache modules of this run: %s", name, reason)

    def _message(self, name: str, resend: Iterable[str] | None = None) -> Message:
        asked = self.asked[name]
        needed = dict.fromkeys(sha for one in asked for sha in one.work.needs)
        modules = self.outbox.unsent(name, needed) if resend is None else list(resend)
        without = self._without.get(name, {})
        slices = {i for one in asked for i in one.work.slices}
        message = request(
            self.clients[name],
            self._kind,
            "train",
            self.text,
            name,
            self._run_id,
            {i: gone for i, gone in without.items() if i in slices},
            {
                words.WORK: words.work_to_json(one.work for one in asked),
                words.MODULES: json.dumps(modules),
                words.KEEP: self._keep,
                words.OWN: name in self._own,
                **self._further.get(name, {}),
            },
        )
        self.traffic["messages"] += 1
        self.traffic["bytes_sent"] += self.outbox.attach(message, name, modules)
        return message

    def _receive(self, name: str, reply: Message) -> None:
        with storing(self.spool.folder):
            outcome = self.spool.receive(self.asked.get(name, []), reply)
        if "missing" in outcome:
            needed = {sha for one in self.asked[name] for sha in one.work.needs}
            unknown = sorted(set(outcome["missing"]) - needed)
            if unknown:
                raise RunError(f"it asks for module {unknown[0][:12]}..., which it does not need")
            self._lacking[name] = outcome["missing"]
            return
        self.traffic["bytes_received"] += outcome["bytes"]
        self.traffic["client_seconds"] += outcome["seconds"]
