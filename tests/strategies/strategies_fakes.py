"""A grid whose nodes answer as a test tells them to; no ClientApp, no model."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedforget import protocol
from fedforget.client_specs import ClientSpec
from fedforget.codecs import CODECS, RAW, pack
from fedforget.config import RunConfig
from fedforget.runs import RunDirectory
from fedforget.summaries import ClientSummary, LoraFactors
from strategies.firm import Firm

SHAPES = {"w.weight": (4, 3), "v.weight": (2, 5)}
PRINT = "a-fingerprint"
CLIENTS = ["forget-a-0", "forget-a-1", "forget-b-0", "retain-c-0"]  # of the fixture `config`


def summary_of(spec: ClientSpec) -> ClientSummary:
    """What an honest client sends: drawn from its id."""
    generator = torch.Generator().manual_seed(sum(spec.id.encode()))

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    return ClientSummary(
        client_id=spec.id,
        role=spec.role,  # type: ignore[arg-type]
        domain=spec.domain,
        num_examples=4,
        deltas={n: LoraFactors(draw(2, s[1]), draw(s[0], 2), 2.0) for n, s in SHAPES.items()},
        fisher={n: draw(*s).square().to(torch.bfloat16) for n, s in SHAPES.items()},
    )


def answer(message: Message, summary: ClientSummary, fingerprint: str = PRINT) -> Message:
    buckets, manifest = pack(summary)
    return wire(message, [b.tobytes() for b in buckets], manifest, fingerprint)


def wire(message: Message, buckets: Sequence[bytes], manifest: str, fingerprint: str = PRINT) -> Message:
    """A train reply with these bytes, as a client that checks nothing would send them."""
    arrays = {f"{i:05d}": Array("uint8", (len(b),), RAW, b) for i, b in enumerate(buckets)}
    content = RecordDict(
        {
            protocol.ARRAYS: ArrayRecord(arrays),
            protocol.METRICS: MetricRecord({"num-examples": 4}),
            protocol.INFO: ConfigRecord({protocol.MANIFEST: manifest, protocol.FINGERPRINT: fingerprint}),
        }
    )
    return Message(content, reply_to=message)


def failure(message: Message, code: int, reason: str) -> Message:
    return Message(Error(code=code, reason=reason), reply_to=message)


def spec_in(message: Message) -> ClientSpec:
    return protocol.spec_from_json(str(message.content[protocol.CONFIG][protocol.CLIENT]))


Train = Callable[[Message], list[Message]]


class FakeGrid:
    """Answers describe messages honestly and train messages as told.

    Parameters
    ----------
    nodes : dict
        Node id to what its description overrides.
    train : callable
        Maps a train message to the replies that a pull yields, none for a node that is silent.
    order : callable
        Which of the pending messages may be answered now; all by default.
    """

    def __init__(
        self,
        nodes: dict[int, dict[str, Any]] | None = None,
        train: Train | None = None,
        ready: Callable[[str, int], bool] = lambda key, polls: True,
    ) -> None:
        self.nodes = nodes if nodes is not None else {20: {"partition-id": 1}, 10: {"partition-id": 0}}
        self.train: Train = train or (lambda message: [answer(message, summary_of(spec_in(message)))])
        self.ready = ready
        self.pushed: list[Message] = []
        self.polls = 0
        self._pending: dict[str, Message] = {}
        self.mock = Mock(spec=Grid)
        self.mock.get_node_ids.side_effect = lambda: list(self.nodes)
        self.mock.push_messages.side_effect = self._push
        self.mock.pull_messages.side_effect = self._pull
        self.mock.send_and_receive.side_effect = lambda messages, timeout=None: self._pull(
            self._push(messages)
        )

    @property
    def trained(self) -> list[str]:
        return [spec_in(m).id for m in self.pushed if m.metadata.message_type == protocol.UNLEARN]

    def _push(self, messages: Sequence[Message]) -> list[str]:
        ids = []
        for message in messages:
            if message.metadata.dst_node_id not in self.nodes:
                continue
            name = f"m{len(self.pushed)}"
            message.metadata.__dict__["_message_id"] = name
            self.pushed.append(message)
            self._pending[name] = message
            ids.append(name)
        return ids

    def _pull(self, names: Sequence[str]) -> list[Message]:
        self.polls += 1
        replies = []
        for name in list(names):
            message = self._pending.get(name)
            if message is None:
                continue
            if message.metadata.message_type == protocol.DESCRIBE:
                replies.append(self._describe(message))
            elif self.ready(spec_in(message).id, self.polls):
                replies += self.train(message)
            else:
                continue
            del self._pending[name]
        return replies

    def _describe(self, message: Message) -> Message:
        node = self.nodes[message.metadata.dst_node_id]
        if "error" in node:
            return failure(message, 2, str(node["error"]))
        properties: dict[str, Any] = {
            protocol.FINGERPRINT: PRINT,
            "versions": json.dumps(protocol.installed()),
            protocol.CLIENTS: "[]",
            "partition-id": -1,
            "sizes": "{}",
            "client-id": "",
            "codecs": " ".join(CODECS),
            **node,
        }
        return Message(RecordDict({protocol.INFO: ConfigRecord(properties)}), reply_to=message)


def make_firm(config: RunConfig, path: Path, **options: Any) -> Firm:
    run = RunDirectory(path) if path.exists() else RunDirectory.create(path, config, "test")
    return Firm(config, run, SHAPES, PRINT, poll=0.0, **options)
