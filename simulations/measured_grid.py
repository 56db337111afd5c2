"""An in-process grid that counts what goes over it."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.serde import recorddict_to_proto

from fedforget import protocol
from fedforget.sequential import protocol as words
from simulations.inline import InlineGrid


class MeasuredGrid(InlineGrid):
    """Counts the bytes of every message's content, both ways, and the replies that hold training.

    Attributes
    ----------
    bytes_sent, bytes_received : int
    participations : int
        Replies with trained modules.
    visits, examples : int
        Trained modules in those replies, and the records that each was trained on, added up.
    """

    bytes_sent = 0
    bytes_received = 0
    participations = 0
    visits = 0
    examples = 0

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Accept messages; return their ids."""
        listed = list(messages)
        self.bytes_sent += sum(content_bytes(message.content) for message in listed)
        ids = super().push_messages(listed)
        self.sent.clear()  # they hold the modules that were sent
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Handle the messages that were asked for, and return the replies."""
        replies = super().pull_messages(message_ids)
        for reply in replies:
            if reply.has_error():
                continue
            self.bytes_received += content_bytes(reply.content)
            info = protocol.record_in(reply.content, protocol.INFO, ConfigRecord)
            if info and info.get(words.RESULTS):
                done = words.done_from_json(str(info[words.RESULTS]))
                self.participations += 1
                self.visits += len(done)
                self.examples += sum(one.num_examples for one in done)
        return replies


def content_bytes(content: RecordDict) -> int:
    """Return the size of a message's content as Flower puts it on the wire."""
    return int(recorddict_to_proto(content).ByteSize())
