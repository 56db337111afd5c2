"""Sending tasks to nodes and taking their replies one at a time, so that one payload is in memory."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from logging import INFO, WARNING
from pathlib import Path

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore import log

from fedforget.errors import FedForgetError, RunError, StorageError

# How Flower wraps a client's error: simulated, and deployed.
_REASONS = (
    re.compile(r"occurred\. Message: (.*?)'?>?$", re.DOTALL),
    re.compile(r"^<class '[^']*'>:<'(.*)'>$", re.DOTALL),
)


@dataclass(frozen=True)
class Task:
    """One message, and the name its reply is known by."""

    key: str
    message: Message


def dispatch(
    grid: Grid,
    tasks: Sequence[Task],
    on_reply: Callable[[str, Message], None],
    *,
    timeout: float,
    poll: float = 0.2,
    total: int | None = None,
) -> dict[str, str]:
    """Send every task, and hand each good reply over as it arrives.

    Replies are pulled by message id, one at a time, and dropped after ``on_reply``: the memory
    taken does not grow with the number of clients. Nothing depends on the order they arrive in.
    An error reply can come from another node than the one asked (a SuperLink answers for a node
    that is gone), so replies are matched by the message they answer.

    Parameters
    ----------
    grid : Grid
    tasks : sequence of Task
        Keys are distinct.
    on_reply : callable
        Takes the key and the reply. A :class:`FedForgetError` that it raises marks the task as
        failed; the other tasks go on. A :class:`StorageError` is raised: no further reply could be kept.
    timeout : float
        Seconds for all replies together.
    poll : float
        Seconds between two rounds of asking.
    total : int, optional
        What to count progress against in the log; the number of tasks by default.

    Returns
    -------
    dict of str to str
        Why each failed task failed, by key; empty when all went well.
    """
    failed: dict[str, str] = {}
    pending: dict[str, Task] = {}
    deadline = time.monotonic() + timeout
    for task in tasks:
        # One by one: Flower drops a message to an unknown node without a word.
        ids = list(grid.push_messages([task.message]))
        if len(ids) == 1 and ids[0]:
            pending[ids[0]] = task
        else:
            failed[task.key] = f"node {task.message.metadata.dst_node_id} did not accept the message"
    done = (len(tasks) if total is None else total) - len(tasks)
    while pending and time.monotonic() < deadline:
        progress = False
        for message_id in list(pending):
            if time.monotonic() >= deadline:
                break
            reply = _pull(grid, message_id)
            if reply is None:
                continue
            progress = True
            task = pending.pop(message_id)
            problem = _accept(task, reply, on_reply)
            del reply
            done += 1
            if problem is None:
                log(
                    INFO,
                    "\t%s: received (%d of %d)",
                    task.key,
                    done,
                    done + len(pending),
                    extra={"client": task.key},
                )
            else:
                failed[task.key] = problem
                # Why is said once, by the error that ends the run.
                log(
                    WARNING,
                    "\t%s: failed (%d of %d)",
                    task.key,
                    done,
                    done + len(pending),
                    extra={"client": task.key},
                )
        if pending and not progress:
            time.sleep(min(poll, max(0.0, deadline - time.monotonic())))
    for task in pending.values():
        failed[task.key] = f"no reply within {timeout:g} s"
    return failed


def _pull(grid: Grid, message_id: str) -> Message | None:
    """Pull the reply to one message; anything else that comes with it is refused."""
    found = None
    for reply in grid.pull_messages([message_id]):
        if reply.metadata.reply_to_message_id != message_id:
            log(WARNING, "Ignored a reply to message %s, which was not asked for", message_id)
        elif found is not None:
            log(WARNING, "Ignored a second reply to message %s", message_id)
        else:
            found = reply
    return found


def _accept(task: Task, reply: Message, on_reply: Callable[[str, Message], None]) -> str | None:
    if reply.has_error():
        return error_reason(reply)
    asked, answered = task.message.metadata.dst_node_id, reply.metadata.src_node_id
    if asked != answered:
        return f"node {answered} answered a message that was sent to node {asked}"
    try:
        on_reply(task.key, reply)
    except StorageError:
        raise
    except FedForgetError as error:
        return str(error)
    return None


@contextlib.contextmanager
def storing(folder: Path) -> Iterator[None]:
    """Tell a disk that is full or fails, while a reply is kept, in one sentence.

    Raises
    ------
    StorageError
        The operating system refused to write.
    """
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{folder}: a reply cannot be stored ({error.strerror or error}); free some disk space, and "
            "start the run again with the same --out: what is stored is not asked for again"
        ) from error


def take(
    replies: Iterable[Message], keys: Mapping[str, str], on_reply: Callable[[str, Message], None]
) -> dict[str, str]:
    """Hand over replies that have come already, each under the key of the message it answers.

    Parameters
    ----------
    replies : iterable of Message
    keys : mapping of str to str
        Key by message id; a reply to another message is ignored with a warning.
    on_reply : callable
        As for :func:`dispatch`.

    Returns
    -------
    dict of str to str
        Why each failed one failed, by key.
    """
    failed: dict[str, str] = {}
    for reply in replies:
        key = keys.get(reply.metadata.reply_to_message_id)
        if key is None:
            log(WARNING, "Ignored a reply that answers no message of this round")
        elif reply.has_error():
            failed[key] = error_reason(reply)
        else:
            try:
                on_reply(key, reply)
            except StorageError:
                raise
            except FedForgetError as error:
                failed[key] = str(error)
    return failed


def error_reason(reply: Message) -> str:
    """Return why a client failed, without Flower's wrapping."""
    reason = reply.error.reason or "no reason given"
    match = next(filter(None, (one.search(reason) for one in _REASONS)), None)
    return f"{match.group(1).strip() if match else reason.strip()} (Flower error code {reply.error.code})"


def raise_failures(failed: dict[str, str], what: str) -> None:
    """Raise one :class:`RunError` that names every failed client and why; nothing if none failed."""
    if not failed:
        return
    if len(failed) == 1:
        ((key, reason),) = failed.items()
        raise RunError(f"{what}: client {key!r} failed: {reason}")
    lines = "\n".join(f"  - {key}: {reason}" for key, reason in sorted(failed.items()))
    raise RunError(f"{what}: {len(failed)} clients failed\n{lines}")
