"""The round with mocked nodes: what is merged and recorded, who is needed, and that order is nothing."""

from __future__ import annotations

import dataclasses
import errno
import functools
import gc
import json
import math
import re
import weakref
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from strategies_fakes import (
    CLIENTS,
    PRINT,
    SHAPES,
    FakeGrid,
    answer,
    failure,
    make_firm,
    spec_in,
    summary_of,
    wire,
)

from fedforget import protocol
from fedforget.client_specs import ClientSpec, expand_clients
from fedforget.codecs import pack
from fedforget.config import RunConfig
from fedforget.errors import ConfigError, RunError, StorageError
from fedforget.merging import merge
from fedforget.reporting.html import warnings
from fedforget.reporting.tables import certificate_table
from fedforget.summaries import ClientSummary
from fedforget.updates import load_update
from strategies.dispatch import dispatch
from strategies.firm import Firm
from strategies.spool import Spool


def test_a_round_merges_what_the_clients_sent(firm: Firm, config: RunConfig) -> None:
    grid = FakeGrid()
    result = firm.start(grid.mock)
    summaries = [summary_of(spec) for spec in expand_clients(config.clients)]
    expected = merge(summaries, "firm", gamma=1.0, alpha=0.1, epsilon=math.inf)
    update = load_update(firm.run.merged)
    assert set(update) == set(SHAPES) == set(result.arrays)
    for name, tensor in expected.deltas.items():
        assert torch.equal(update[name], tensor)
    assert sorted(path.name for path in firm.run.summaries.iterdir()) == CLIENTS
    record = firm.run.record
    assert sorted(record["clients"]) == CLIENTS
    assert record["bytes"]["received"] == sum(facts["bytes"] for facts in record["clients"].values()) > 0
    assert set(record["timings"]) == {"clients", "merge"}
    assert json.loads((firm.run.merged / "merge.json").read_text())["parameters"]["epsilon"] == "inf"
    assert result.train_metrics_clientapp[1]["clients"] == 4


def test_clients_go_round_the_nodes_by_partition(firm: Firm) -> None:
    grid = FakeGrid()
    firm.start(grid.mock)
    placed = {a.spec.id: a.node_id for a in firm.assignments}
    assert placed == {"forget-a-0": 10, "forget-a-1": 20, "forget-b-0": 10, "retain-c-0": 20}


@pytest.mark.parametrize("method", ["avg", "sum", "ties", "fulm"])
def test_baselines_are_the_same_round(config: RunConfig, tmp_path: Path, method: str) -> None:
    config.merge.method = method
    firm = make_firm(config, tmp_path / "run")
    firm.start(FakeGrid().mock)
    expected = merge([summary_of(s) for s in expand_clients(config.clients)], method)
    for name, tensor in load_update(firm.run.path).items():
        assert torch.equal(tensor, expected.deltas[name])


def test_a_relative_budget_is_certified(config: RunConfig, tmp_path: Path) -> None:
    config.merge.epsilon_fraction = 0.1
    firm = make_firm(config, tmp_path / "run")
    result = firm.start(FakeGrid().mock)
    record = json.loads((firm.run.merged / "merge.json").read_text())
    assert all(report["certificate"]["certified"] for report in record["tensors"].values())
    assert result.train_metrics_clientapp[1]["uncertified-tensors"] == 0
    epsilon = record["parameters"]["epsilon"]
    assert all(damage <= epsilon for report in record["tensors"].values() for damage in report["damage"])


def test_the_order_of_arrival_changes_no_bit(config: RunConfig, tmp_path: Path) -> None:
    updates = []
    for order in (CLIENTS, CLIENTS[::-1], CLIENTS[2:] + CLIENTS[:2]):
        # A client is ready only when all before it in this order have been answered.
        answered: list[str] = []

        def ready(key: str, _: int, order: list[str] = order, answered: list[str] = answered) -> bool:
            if order[len(answered)] != key:
                return False
            answered.append(key)
            return True

        firm = make_firm(config, tmp_path / "-".join(order))
        firm.start(FakeGrid(ready=ready).mock)
        assert answered == order
        updates.append((firm.run.merged / "update.safetensors").read_bytes())
    assert updates[0] == updates[1] == updates[2]


def test_the_base_class_protocol_works_too(firm: Firm) -> None:
    grid = FakeGrid()
    messages = firm.configure_train(1, ArrayRecord(), ConfigRecord(), grid.mock)
    assert isinstance(messages, list)
    assert {m.metadata.message_type for m in messages} == {protocol.UNLEARN}
    replies = grid.mock.send_and_receive(messages)
    arrays, metrics = firm.aggregate_train(1, replies)
    assert arrays is not None
    assert metrics is not None
    assert metrics["clients"] == 4


def test_a_second_round_is_refused(firm: Firm) -> None:
    with pytest.raises(RunError, match="one round"):
        firm.start(FakeGrid().mock, ArrayRecord(), num_rounds=2)


def test_an_unknown_method_is_refused_before_anything_is_sent(config: RunConfig, tmp_path: Path) -> None:
    config.merge.method = "frim"
    with pytest.raises(ConfigError, match="did you mean 'firm'"):
        make_firm(config, tmp_path / "run")


def collect(firm: Firm, specs: dict[str, ClientSpec], name: str, reply: Message) -> None:
    firm._receive(specs[name], reply)


def peak() -> int:
    """Return the most memory that this process held, in bytes (Linux)."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.findall(r"VmHWM:\s+(\d+)", status)[0])


def forget_peak() -> int:
    """Count anew from what the process holds at this moment, and return that."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def test_a_run_is_carried_on_with(config: RunConfig, tmp_path: Path) -> None:
    """Clients whose summaries are in the spool are not asked again; a damaged one is, and is kept aside."""

    def train(message: Message) -> list[Message]:
        spec = spec_in(message)
        return [failure(message, 2, "boom") if spec.id == "retain-c-0" else answer(message, summary_of(spec))]

    first = make_firm(config, tmp_path / "run")
    with pytest.raises(RunError, match="boom"):
        first.start(FakeGrid(train=train).mock)
    stored = first.run.summaries / "forget-b-0" / "summary.json"
    stored.write_text(stored.read_text().replace('"num_examples": ', '"num_examples": 1'))
    grid = FakeGrid()
    second = make_firm(config, tmp_path / "run")
    second.start(grid.mock)
    assert sorted(grid.trained) == ["forget-b-0", "retain-c-0"]
    assert len(list(first.run.summaries.glob(".forget-b-0.invalid-*"))) == 1
    whole = make_firm(config, tmp_path / "whole")
    whole.start(FakeGrid().mock)
    name = "update.safetensors"
    assert (second.run.merged / name).read_bytes() == (whole.run.merged / name).read_bytes()
    # What came in the attempt before counts as well.
    assert second.run.record["bytes"] == whole.run.record["bytes"]
    assert second.run.record["clients"].keys() == whole.run.record["clients"].keys()
    assert all(facts["bytes"] > 0 for facts in second.run.record["clients"].values())


def test_a_quorum_goes_on_without_a_client_and_says_so(config: RunConfig, tmp_path: Path) -> None:
    def train(message: Message) -> list[Message]:
        spec = spec_in(message)
        return [failure(message, 2, "boom") if spec.id == "forget-a-0" else answer(message, summary_of(spec))]

    config.quorum.forget = "1"
    config.merge.epsilon_fraction = 0.1
    firm = make_firm(config, tmp_path / "run")
    firm.start(FakeGrid(train=train).mock)
    specs = [spec for spec in expand_clients(config.clients) if spec.id != "forget-a-0"]
    record = firm.run.record
    assert record["left_out"] == {"forget-a-0": "boom (Flower error code 2)"}
    assert sorted(record["clients"]) == [spec.id for spec in specs]
    report = json.loads((firm.run.merged / "merge.json").read_text())
    expected = merge([summary_of(spec) for spec in specs], "firm", **report["parameters"])
    assert report["retain_clients"] == ["retain-c-0"]
    for name, tensor in load_update(firm.run.merged).items():
        assert torch.equal(tensor, expected.deltas[name])
    assert "forget-a-0 was left out, as the quorum allows: boom" in " ".join(warnings(record, {}, {}))
    assert "covers the retain clients retain-c-0" in " ".join(certificate_table(report).notes)


def test_a_quorum_that_is_not_reached_fails_the_run(config: RunConfig, tmp_path: Path) -> None:
    def train(message: Message) -> list[Message]:
        spec = spec_in(message)
        return [failure(message, 2, "boom") if spec.domain in "ac" else answer(message, summary_of(spec))]

    config.quorum.forget = "1"
    firm = make_firm(config, tmp_path / "run")
    with pytest.raises(
        RunError, match=r"(?s)forget domain 'a' has 0 of 2.*; retain has 0 of 1.*retain-c-0: boom"
    ):
        firm.start(FakeGrid(train=train).mock)
    assert not firm.run.merged.exists()


def test_a_client_that_delivered_need_not_come_again(config: RunConfig, tmp_path: Path) -> None:
    def declares(spec: ClientSpec) -> dict[str, str]:
        return {protocol.CLIENTS: json.dumps([protocol.spec_to_json(spec)]), "client-id": spec.id}

    specs = expand_clients(config.clients)
    nodes = {10 + i: declares(spec) for i, spec in enumerate(specs)}

    def train(message: Message) -> list[Message]:
        spec = specs[message.metadata.dst_node_id - 10]
        assert message.content[protocol.CONFIG][protocol.DECLARED] == spec.id
        return [failure(message, 2, "boom") if spec.id == failing else answer(message, summary_of(spec))]

    config.simulation.nodes, failing = 4, "retain-c-0"
    with pytest.raises(RunError, match="boom"):
        make_firm(config, tmp_path / "run").start(DeclaredGrid(nodes, train).mock)
    failing = ""
    grid = DeclaredGrid({13: nodes[13]}, train)
    second = make_firm(config, tmp_path / "run")
    second.start(grid.mock)
    assert sorted(second.run.record["clients"]) == CLIENTS
    assert [m.metadata.dst_node_id for m in grid.pushed if m.metadata.message_type == protocol.UNLEARN] == [
        13
    ]


class DeclaredGrid(FakeGrid):
    """A grid whose nodes declare their clients, so that messages name none."""

    def _pull(self, names: Sequence[str]) -> list[Message]:
        replies = []
        for name in list(names):
            if (message := self._pending.pop(name, None)) is not None:
                kind = message.metadata.message_type
                replies += [self._describe(message)] if kind == protocol.DESCRIBE else self.train(message)
        return replies


def test_a_full_disk_ends_the_run_in_a_sentence(firm: Firm, monkeypatch: pytest.MonkeyPatch) -> None:
    """No client is blamed, no further reply is taken, and what was stored stays for the next attempt."""
    save, stored = ClientSummary.save, []

    def full(self: ClientSummary, directory: Path) -> None:
        if len(stored) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        stored.append(self.client_id)
        save(self, directory)

    monkeypatch.setattr(ClientSummary, "save", full)
    firm.config.quorum.forget = "1"
    with pytest.raises(StorageError, match=r"cannot be stored \(No space left on device\); free some disk"):
        firm.start(FakeGrid().mock)
    assert sorted(path.name for path in firm.run.summaries.iterdir()) == sorted(stored)
    monkeypatch.undo()
    grid = FakeGrid()
    make_firm(firm.config, firm.run.path).start(grid.mock)
    assert sorted(grid.trained) == [name for name in CLIENTS if name not in stored]


def test_one_reply_is_in_memory_at_a_time(firm: Firm) -> None:
    alive: list[weakref.ref[Array]] = []
    most = 0

    def train(message: Message) -> list[Message]:
        nonlocal most
        most = max(most, 1 + sum(one() is not None for one in alive))
        reply = answer(message, summary_of(spec_in(message)))
        alive.extend(weakref.ref(one) for one in reply.content[protocol.ARRAYS].values())
        return [reply]

    gc.disable()  # it comes late where little else is going on, and then frees what is left in cycles
    try:
        firm.start(FakeGrid(train=train).mock)
    finally:
        gc.enable()
    assert (len(alive), most) == (4, 1)


def test_the_server_takes_thrice_a_message_at_most(config: RunConfig, tmp_path: Path) -> None:
    """However many clients there are; merging comes after, and is about tensors, not messages."""
    shape, most = (1024, 1024), {}
    delta, fisher = {"w.weight": torch.full(shape, 0.5)}, {"w.weight": torch.ones(shape).bfloat16()}

    def train(message: Message) -> list[Message]:
        buckets, manifest = packed[spec_in(message).id]
        return [wire(message, [one.tobytes() for one in buckets], manifest)]

    for count in (1, 8):
        config.clients[0].count = count
        firm = make_firm(config, tmp_path / f"{count}")
        firm.spool = Spool(firm.run.summaries, {"w.weight": shape}, PRINT, needs_fisher=True)
        firm.configure_train(1, ArrayRecord(), ConfigRecord(), FakeGrid().mock)
        specs = {a.spec.id: a.spec for a in firm.assignments}
        packed = {
            name: pack(dataclasses.replace(summary_of(spec), deltas=delta, fisher=fisher))
            for name, spec in specs.items()
        }
        size = sum(one.nbytes for one in packed["retain-c-0"][0])
        gc.disable()
        before = forget_peak()
        try:
            receive = functools.partial(collect, firm, specs)
            dispatch(FakeGrid(train=train).mock, firm._asked, receive, timeout=60.0)
        finally:
            gc.enable()
        assert len(firm.spool.received) == len(specs)
        most[count] = (peak() - before) / size
    assert max(most.values()) < 3.0, most


def test_evaluation_by_clients_is_a_mean_per_role(config: RunConfig, tmp_path: Path) -> None:
    firm = make_firm(config, tmp_path / "run", evaluate_clients=True)
    grid = FakeGrid()
    firm.configure_train(1, ArrayRecord(), ConfigRecord(), grid.mock)
    arrays, _ = firm.aggregate_train(1, grid.mock.send_and_receive([t.message for t in firm._asked]))
    assert arrays is not None
    asked = firm.configure_evaluate(1, arrays, ConfigRecord(), grid.mock)
    assert [list(m.content[protocol.CONFIG]["tensors"]) for m in asked] == [list(arrays)] * 4
    losses = {"forget-a-0": (2.0, 1), "forget-a-1": (4.0, 3), "forget-b-0": (1.0, 4), "retain-c-0": (0.5, 2)}
    replies = []
    for message in asked:
        message.metadata.__dict__["_message_id"] = spec_in(message).id
        loss, count = losses[spec_in(message).id]
        content = RecordDict(
            {
                protocol.METRICS: MetricRecord({"loss": loss, "num-examples": count}),
                protocol.INFO: ConfigRecord({"role": spec_in(message).role}),
            }
        )
        replies.append(Message(content, reply_to=message))
    # forget: (2*1 + 4*3 + 1*4) / 8 = 2.25
    assert dict(firm.aggregate_evaluate(1, replies) or {}) == {"forget-loss": 2.25, "retain-loss": 0.5}


def test_without_the_option_clients_do_not_evaluate(firm: Firm) -> None:
    assert firm.configure_evaluate(1, ArrayRecord(), ConfigRecord(), FakeGrid().mock) == []
    assert firm.aggregate_evaluate(1, []) is None


def test_the_summary_is_a_tree(firm: Firm, caplog: pytest.LogCaptureFixture) -> None:
    import logging

    flower = logging.getLogger("flwr")
    flower.addHandler(caplog.handler)
    try:
        firm.summary()
    finally:
        flower.removeHandler(caplog.handler)
    assert "Clients: 3 forget, 1 retain" in caplog.text
    assert PRINT not in caplog.text
