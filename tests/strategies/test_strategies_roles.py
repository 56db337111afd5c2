"""Who may take part, and what is said to those who may not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from strategies_fakes import PRINT, FakeGrid

from fedforget import protocol
from fedforget.config import ClientSpec, RunConfig
from fedforget.errors import RunError
from strategies.roles import Assignment, assign, check_roles, discover, wait_for_nodes


def client(name: str, role: str, domain: str) -> str:
    return protocol.spec_to_json(ClientSpec(name, role, domain, 0, 1, path="/data/own.jsonl"))


DEPLOYED: dict[int, dict[str, Any]] = {
    5: {protocol.CLIENT: client("hospital", "forget", "a")},
    6: {protocol.CLIENT: client("clinic", "forget", "a")},
    7: {protocol.CLIENT: client("lab", "forget", "b")},
    8: {protocol.CLIENT: client("library", "retain", "c")},
}


def found(nodes: dict[int, dict[str, Any]], config: RunConfig) -> list[Assignment]:
    return discover(FakeGrid(nodes).mock, config, PRINT, timeout=0.3, poll=0.0)


def test_deployed_nodes_keep_the_clients_they_declare(config: RunConfig) -> None:
    assert [(a.spec.id, a.node_id, a.declared) for a in found(DEPLOYED, config)] == [
        ("clinic", 6, True),
        ("hospital", 5, True),
        ("lab", 7, True),
        ("library", 8, True),
    ]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {6: {protocol.CLIENT: client("hospital", "forget", "a")}},
            r"'hospital' is declared by the nodes \[5, 6\]",
        ),
        ({6: {}}, "node 6 declares no client while others do"),
        (
            {8: {protocol.CLIENT: client("x", "retain", "d")}},
            "client 'x' declares role 'retain' and domain 'd'",
        ),
        ({8: {protocol.CLIENT: client("x", "forget", "b")}}, "retain domain 'c' has 0 of its 1 clients"),
        ({6: {protocol.CLIENT: client("x", "forget", "b")}}, "forget domain 'a' has 1 of its 2 clients"),
        ({6: {protocol.CLIENT: client("../x", "forget", "a")}}, r"client id '\.\./x' is not 1 to 128"),
        ({6: {"error": "no such file"}}, "node 6.*no such file"),
        ({5: DEPLOYED[5] | {protocol.FINGERPRINT: "other"}}, "client 'hospital' has the backbone other"),
        ({5: DEPLOYED[5] | {"versions": json.dumps({"fedforget": "9.9"})}}, "'hospital' runs fedforget 9.9"),
        ({5: DEPLOYED[5] | {"versions": "["}}, "description cannot be read"),
        ({5: {protocol.CLIENT: '{"id": 3}'}}, "client that cannot be read"),
        (
            {5: {protocol.CLIENT: client("x", "forget", "a").replace("0", '"0"', 1)}},
            "'shard' has the wrong type",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    config: RunConfig, changes: dict[int, dict[str, Any]], says: str
) -> None:
    with pytest.raises(RunError, match=says):
        found(DEPLOYED | changes, config)


def test_a_node_without_a_description_is_refused(config: RunConfig) -> None:
    from flwr.app import Message, RecordDict

    grid = FakeGrid()
    grid._describe = lambda message: Message(RecordDict(), reply_to=message)  # type: ignore[method-assign]
    with pytest.raises(RunError, match="answered without a description"):
        discover(grid.mock, config, PRINT, timeout=0.3, poll=0.0)


def test_too_few_nodes(config: RunConfig) -> None:
    with pytest.raises(RunError, match=r"1 of 2 nodes connected within 0\.05 s"):
        wait_for_nodes(FakeGrid({1: {}}).mock, 2, 0.05, 0.01)


def test_nodes_may_come_late() -> None:
    grid = FakeGrid({})
    later = iter([[], [3], [4, 3]])
    grid.mock.get_node_ids.side_effect = lambda: next(later)
    assert wait_for_nodes(grid.mock, 2, 5.0, 0.0) == [3, 4]


def test_no_node_at_all(config: RunConfig) -> None:
    with pytest.raises(RunError, match="no node is connected"):
        assign({}, config)


@pytest.mark.parametrize("budget", [{"epsilon": 1.0}, {"epsilon_fraction": 0.1}])
def test_a_budget_needs_a_retain_client(config: RunConfig, budget: dict[str, float]) -> None:
    for key, value in budget.items():
        setattr(config.merge, key, value)
    spec = ClientSpec("f", "forget", "a", 0, 1)
    with pytest.raises(RunError, match="no connected client has the role 'retain'"):
        check_roles([Assignment(spec, 1)], config)


def test_something_must_be_forgotten(config: RunConfig) -> None:
    with pytest.raises(RunError, match="nothing to unlearn"):
        check_roles([Assignment(ClientSpec("r", "retain", "c", 0, 1), 1)], config)
