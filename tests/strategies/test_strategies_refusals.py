"""Replies that FIRM's round refuses or ignores, each with its reason and the client's name."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from flwr.app import Message, MetricRecord, RecordDict
from strategies_fakes import CLIENTS, FakeGrid, answer, failure, make_firm, spec_in, summary_of, wire

from fedforget import protocol
from fedforget.client_specs import expand_clients
from fedforget.codecs import pack
from fedforget.config import RunConfig
from fedforget.errors import RunError
from fedforget.summaries import ClientSummary, LoraFactors
from strategies.firm import Firm


def changed(**fields: object):  # type: ignore[no-untyped-def]
    return lambda s: dataclasses.replace(s, **fields)


def with_tensor(part: str, tensor: torch.Tensor):  # type: ignore[no-untyped-def]
    def change(s: ClientSummary) -> ClientSummary:
        return dataclasses.replace(s, **{part: {**getattr(s, part), "w.weight": tensor}})

    return change


def dishonest(s: ClientSummary) -> tuple[list[bytes], str]:
    """Pack without the sender's own checks."""
    kept, ClientSummary.validate = ClientSummary.validate, lambda self: None  # type: ignore[method-assign]
    try:
        buckets, manifest = pack(s)
    finally:
        ClientSummary.validate = kept  # type: ignore[method-assign]
    return [bucket.tobytes() for bucket in buckets], manifest


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (with_tensor("deltas", torch.full((4, 3), math.nan)), "NaN or infinite"),
        (
            with_tensor("deltas", LoraFactors(torch.full((1, 3), math.inf), torch.ones(4, 1), 1.0)),
            "NaN or infinite",
        ),
        (with_tensor("deltas", torch.zeros(3, 4)), r"has shape \(3, 4\), the backbone has \(4, 3\)"),
        (with_tensor("fisher", -torch.ones(4, 3)), "negative"),
        (with_tensor("fisher", torch.full((4, 3), math.nan)), "NaN or infinite"),
        (with_tensor("fisher", torch.ones(4, 4)), "has shape"),
        (changed(fisher={}), "no Fisher"),
        (changed(client_id="forget-a-0"), "says client_id 'forget-a-0'"),
        (changed(role="retain"), "says role 'retain'"),
        (changed(domain="c"), "says domain 'c'"),
        (changed(num_examples=0), "0 examples"),
        (changed(deltas={"x.weight": torch.zeros(2, 2)}, fisher={}), "'v.weight' is missing"),
    ],
)
def test_a_bad_summary_is_refused_by_name(firm: Firm, change, says: str) -> None:  # type: ignore[no-untyped-def]
    def train(message: Message) -> list[Message]:
        spec = spec_in(message)
        if spec.id != "forget-a-1":
            return [answer(message, summary_of(spec))]
        return [wire(message, *dishonest(change(summary_of(spec))))]

    with pytest.raises(RunError, match=f"(?s)client 'forget-a-1' failed: .*{says}"):
        firm.start(FakeGrid(train=train).mock)
    assert not (firm.run.merged / "update.safetensors").exists()
    assert sorted(path.name for path in firm.run.summaries.iterdir()) == [
        c for c in CLIENTS if c != "forget-a-1"
    ]


def test_a_task_vector_larger_than_its_weight_by_far_is_refused(config: RunConfig, tmp_path: Path) -> None:
    def train(message: Message) -> list[Message]:
        summary = summary_of(spec_in(message))
        if summary.client_id == "forget-a-1":
            factors = summary.deltas["w.weight"]
            assert isinstance(factors, LoraFactors)
            big = LoraFactors(factors.A * 1e4, factors.B, factors.scale)
            assert big.norm() == pytest.approx(float(torch.linalg.norm(big.dense().double())))
            summary = with_tensor("deltas", big)(summary)
        return [answer(message, summary)]

    norms = {"w.weight": 2.0}
    firm = make_firm(config, tmp_path / "run", norms=norms)
    says = r"'forget-a-1' failed: .*'w\.weight' of its task vector has norm .*, at most 200 is taken"
    with pytest.raises(RunError, match=says):
        firm.start(FakeGrid(train=train).mock)
    config.communication.norm_limit = 0.0
    make_firm(config, tmp_path / "free", norms=norms).start(FakeGrid(train=train).mock)


def _truncated(message: Message) -> Message:
    (bucket,), manifest = dishonest(summary_of(spec_in(message)))
    return wire(message, [bucket[:-16]], manifest)


def _empty(message: Message) -> Message:
    return Message(RecordDict({protocol.METRICS: MetricRecord({"num-examples": 1})}), reply_to=message)


def _from_elsewhere(message: Message) -> Message:
    reply = answer(message, summary_of(spec_in(message)))
    reply.metadata.__dict__["_src_node_id"] = 999
    return reply


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (lambda m: failure(m, 2, "<class 'x'>:<'\nException X occurred. Message: disk full'>"),
         r"disk full \(Flower error code 2\)"),
        # A SuperLink that answers for a node that is gone answers as node 1.
        (lambda m: failure(m, 5, "Node Unavailable"), r"Node Unavailable \(Flower error code 5\)"),
        (_truncated, "bytes, declared"),
        (_empty, "holds no summary"),
        (_from_elsewhere, "node 999 answered a message that was sent to node 20"),
        (lambda m: answer(m, summary_of(spec_in(m)), fingerprint="other"), "trained on the backbone other"),
    ],
)  # fmt: skip
def test_a_bad_reply_is_refused_by_name(firm: Firm, reply, says: str) -> None:  # type: ignore[no-untyped-def]
    def train(message: Message) -> list[Message]:
        spec = spec_in(message)
        return [reply(message) if spec.id == "forget-a-1" else answer(message, summary_of(spec))]

    with pytest.raises(RunError, match=f"client 'forget-a-1' failed: .*{says}"):
        firm.start(FakeGrid(train=train).mock)


def test_every_client_at_fault_is_named(firm: Firm) -> None:
    def train(message: Message) -> list[Message]:
        spec = spec_in(message)
        return [
            failure(message, 2, f"no data for {spec.id}")
            if spec.domain == "a"
            else answer(message, summary_of(spec))
        ]

    with pytest.raises(RunError, match="2 clients failed") as caught:
        firm.start(FakeGrid(train=train).mock)
    assert "forget-a-0: no data for forget-a-0" in str(caught.value)
    assert "forget-a-1: no data for forget-a-1" in str(caught.value)


def test_a_silent_client_runs_into_the_timeout(firm: Firm) -> None:
    grid = FakeGrid(ready=lambda key, _: key != "retain-c-0")
    with pytest.raises(RunError, match=r"client 'retain-c-0' failed: no reply within 1 s"):
        firm.start(grid.mock, timeout=1.0)


def test_a_second_reply_is_ignored(firm: Firm) -> None:
    def train(message: Message) -> list[Message]:
        summary = summary_of(spec_in(message))
        other = dataclasses.replace(summary, fisher={n: f * 2 for n, f in summary.fisher.items()})
        return [answer(message, summary), answer(message, other)]

    firm.start(FakeGrid(train=train).mock)
    kept = ClientSummary.load(firm.run.summaries / "forget-a-0")
    assert torch.equal(
        kept.fisher["w.weight"], summary_of(expand_clients(firm.config.clients)[0]).fisher["w.weight"]
    )


def test_a_reply_to_another_message_is_ignored(firm: Firm) -> None:
    def train(message: Message) -> list[Message]:
        good = answer(message, summary_of(spec_in(message)))
        stray = answer(message, summary_of(spec_in(message)))
        stray.metadata.__dict__["_reply_to_message_id"] = "m999"
        return [stray, good]

    firm.start(FakeGrid(train=train).mock)
    assert sorted(path.name for path in firm.run.summaries.iterdir()) == CLIENTS
