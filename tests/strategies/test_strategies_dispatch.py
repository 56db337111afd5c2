"""Dispatch: one payload at a time, a hard deadline, and unknown nodes noticed."""

from __future__ import annotations

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from strategies_fakes import FakeGrid, failure, spec_in

from fedforget import protocol
from fedforget.client_specs import ClientSpec
from strategies.dispatch import Task, dispatch, error_reason


def task(name: str, node: int) -> Task:
    spec = ClientSpec(name, "forget", "a", 0, 1)
    record = ConfigRecord({protocol.CLIENT: protocol.spec_to_json(spec)})
    return Task(name, Message(RecordDict({protocol.CONFIG: record}), node, protocol.UNLEARN))


def test_a_message_to_an_unknown_node_is_noticed() -> None:
    got: list[str] = []
    failed = dispatch(
        FakeGrid().mock, [task("x", 10), task("y", 77)], lambda key, _: got.append(key), timeout=1, poll=0.0
    )
    assert got == ["x"]
    assert failed == {"y": "node 77 did not accept the message"}


def test_replies_are_pulled_one_at_a_time() -> None:
    grid = FakeGrid()
    dispatch(grid.mock, [task("x", 10), task("y", 20)], lambda *_: None, timeout=1, poll=0.0)
    assert all(len(call.args[0]) == 1 for call in grid.mock.pull_messages.call_args_list)
    assert [spec_in(m).id for m in grid.pushed] == ["x", "y"]


def test_several_messages_to_one_node() -> None:
    got: list[str] = []
    tasks = [task(name, 10) for name in ("x", "y", "z")]
    assert dispatch(FakeGrid().mock, tasks, lambda key, _: got.append(key), timeout=1, poll=0.0) == {}
    assert got == ["x", "y", "z"]


def test_a_deadline_in_the_past_asks_nobody_twice() -> None:
    grid = FakeGrid()
    failed = dispatch(grid.mock, [task("x", 10)], lambda *_: None, timeout=0.0, poll=0.0)
    assert failed == {"x": "no reply within 0 s"}
    assert grid.polls == 0


@pytest.mark.parametrize(
    "told",
    [
        "<class 'ray.exceptions.RayTaskError'>:<'\nException RayTaskError occurred. Message: it's full'>",
        "<class 'clients.client_app.ClientError'>:<'it's full'>",
        "it's full",
    ],
)
def test_a_clients_reason_is_told_without_flowers_wrapping(told: str) -> None:
    message = Message(RecordDict(), dst_node_id=1, message_type="train")
    assert error_reason(failure(message, 2, told)) == "it's full (Flower error code 2)"
