"""A grid whose nodes are FedSGT clients that train nothing: a module is drawn from its work."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedforget import protocol
from fedforget.codecs import RAW
from fedforget.runs import RunDirectory
from fedforget.seeds import derive_seed
from fedforget.sequences import Slice
from fedforget.sequences.ledger import Ledger
from fedforget.sequential import protocol as words
from fedforget.sequential.config import SequentialRunConfig
from fedforget.sequential.modules import PrefixModule, module_hash
from fedforget.sequential.protocol import Done, Work
from strategies.fedsgt import FedSGT

PRINT = "a-fingerprint"
SHAPES = {"block.lora_A": (2, 3), "classifier.bias": (4,)}
SIZE = 5  # records in each slice
NAMES = ["client-00", "client-01", "client-02"]  # of the fixture `sequential`


def hashes(path: Path) -> dict[tuple[int, ...], str]:
    with Ledger(path / "ledger.sqlite") as ledger:
        return {prefix: module.sha256 for prefix, module in ledger.live_modules().items()}


def tensors_of(client: str, work: Work, examples: int) -> dict[str, torch.Tensor]:
    """What a client trains: drawn from everything that may matter, and from nothing else."""
    seed = derive_seed(work.seed, client, work.frozen, work.current, work.init_seed, work.slices, examples)
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(*shape, generator=generator) for name, shape in SHAPES.items()}


def failure(message: Message, reason: str) -> Message:
    return Message(Error(code=2, reason=reason), reply_to=message)


Change = Callable[[str, list[Work], dict[str, Any]], dict[str, Any]]


class FakeClients:
    """Answers as honest clients with caches do, unless told otherwise.

    Parameters
    ----------
    names : sequence of str
        Clients; each has ``slices`` slices of :data:`SIZE` records.
    nodes : int or dict
        Number of simulated nodes, or node id to declared client id.
    before : callable
        Called with the client and its work before it is answered; may return a message's error text.
    """

    def __init__(
        self,
        names: Sequence[str],
        slices: int = 2,
        nodes: int | dict[int, str] = 2,
        before: Callable[[str, list[Work]], str | None] = lambda name, work: None,
    ) -> None:
        self.nodes = dict.fromkeys(range(10, 10 + nodes), "") if isinstance(nodes, int) else nodes
        self.names, self.slices, self.before = list(names), slices, before
        self.caches: dict[str, dict[str, PrefixModule]] = {name: {} for name in names}
        self.trained: list[tuple[str, tuple[int, ...]]] = []
        self.train_messages: list[tuple[str, str]] = []  # client, round
        self.received: Counter[tuple[str, str]] = Counter()  # client, module hash
        self.released: list[str] = []
        self.embeddings_asked = 0
        self.tamper: Callable[[str, dict[str, Any]], None] = lambda name, parts: None
        self.reverse = False
        self._pending: dict[str, Message] = {}
        self._count = 0
        self.mock = Mock(spec=Grid)
        self.mock.get_node_ids.side_effect = lambda: list(self.nodes)
        self.mock.push_messages.side_effect = self._push
        self.mock.pull_messages.side_effect = self._pull

    def _push(self, messages: Sequence[Message]) -> list[str]:
        ids = []
        for message in messages:
            self._count += 1
            name = f"m{self._count}"
            message.metadata.__dict__["_message_id"] = name
            self._pending[name] = message
            ids.append(name)
        return ids

    def _pull(self, ids: Sequence[str]) -> list[Message]:
        (name,) = ids
        if name not in self._pending:
            return []
        if self.reverse and name != max(self._pending, key=lambda one: int(one[1:])):
            return []
        return [self._answer(self._pending.pop(name))]

    def _answer(self, message: Message) -> Message:
        record = message.content[protocol.CONFIG]
        kind = message.metadata.message_type
        if kind == protocol.DESCRIBE:
            node = message.metadata.dst_node_id
            declared = self.nodes[node]
            properties = {
                protocol.FINGERPRINT: PRINT,
                "versions": json.dumps(protocol.installed()),
                protocol.CLIENTS: "[]",
                "partition-id": -1 if declared else node - 10,
                "sizes": "{}",
                "codecs": "",
                "client-id": declared,
            }
            return _info(message, properties)
        name = str(record[words.CLIENT_ID])
        without = words.without_from_json(str(record[words.WITHOUT]))
        if kind == words.SLICES:
            found = [Slice(name, i, SIZE) for i in range(self.slices)]
            info: dict[str, Any] = {words.DECLARED: words.slices_to_json(found)}
            if record[words.EMBEDDINGS]:
                self.embeddings_asked += 1
                offset = self.names.index(name)
                info[words.EMBEDDINGS] = json.dumps({str(s.slice_id): [offset, s.slice_id] for s in found})
            return _info(message, info)
        if kind == words.RELEASE:
            self.released.append(name)
            self.caches[name].clear()
            return _info(message, {})
        return self._train(message, name, without)

    def _train(self, message: Message, name: str, without: dict[int, Any]) -> Message:
        record = message.content[protocol.CONFIG]
        work = words.work_from_json(str(record[words.WORK]))
        if (problem := self.before(name, work)) is not None:
            return failure(message, problem)
        cache = self.caches[name]
        prefixes = {sha: one.prefix[: i + 1] for one in work for i, sha in enumerate(one.needs)}
        hashes = json.loads(str(record[words.MODULES]))
        for sha, array in zip(hashes, message.content[protocol.ARRAYS].values(), strict=True):
            cache[sha] = words.module_from_bytes(bytes(array.data), prefixes[sha], sha)
            self.received[name, sha] += 1
        missing = [sha for one in work for sha in one.needs if sha not in cache]
        if missing:
            return _info(message, {words.MISSING: " ".join(missing)})
        self.train_messages.append((name, str(work[0].prefix)))
        done, arrays = [], {}
        for i, one in enumerate(work):
            self.trained.append((name, one.prefix))
            examples = sum(SIZE - len(without.get(s, ()) or ()) for s in one.slices)
            tensors = tensors_of(name, one, examples)
            done.append(Done(one.prefix, examples, module_hash(tensors)).as_dict())
            raw = words.module_to_bytes(tensors)
            arrays[f"{i:05d}"] = Array("uint8", (len(raw),), RAW, raw)
        parts = {"done": done, "arrays": arrays}
        self.tamper(name, parts)
        content: dict[str, Any] = {
            protocol.ARRAYS: ArrayRecord(parts["arrays"]),
            protocol.METRICS: MetricRecord({"train-seconds": 0.5}),
            protocol.INFO: ConfigRecord({words.RESULTS: json.dumps(parts["done"])}),
        }
        return Message(RecordDict(content), reply_to=message)


def _info(message: Message, properties: dict[str, Any]) -> Message:
    return Message(RecordDict({protocol.INFO: ConfigRecord(properties)}), reply_to=message)


def make_fedsgt(config: SequentialRunConfig, path: Path, **options: Any) -> FedSGT:
    run = RunDirectory(path) if path.exists() else RunDirectory.create(path, config, "test")
    shapes = {name: (shape, torch.float32) for name, shape in SHAPES.items()}
    return FedSGT(config, run, shapes, PRINT, poll=0.0, **options)
