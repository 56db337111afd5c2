"""Who may take part, and what is said to those who may not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from strategies_fakes import PRINT, FakeGrid

from fedforget import protocol
from fedforget.client_specs import ClientSpec
from fedforget.codecs import instructions
from fedforget.config import RunConfig
from fedforget.errors import ConfigError, RunError
from fedforget.presets import load
from fedforget.quorum import needed
from strategies.nodes import wait_for_nodes
from strategies.roles import Assignment, assign, check_codecs, check_roles, discover


def client(name: str, role: str, domain: str) -> dict[str, Any]:
    spec = protocol.spec_to_json(ClientSpec(name, role, domain, 0, 1, path="/data/own.jsonl"))
    return {protocol.CLIENTS: json.dumps([spec]), "client-id": name}


DEPLOYED: dict[int, dict[str, Any]] = {
    5: client("hospital", "forget", "a"),
    6: client("clinic", "forget", "a"),
    7: client("lab", "forget", "b"),
    8: client("library", "retain", "c"),
}


def found(nodes: dict[int, dict[str, Any]], config: RunConfig) -> list[Assignment]:
    assignments, silent = discover(FakeGrid(nodes).mock, config, PRINT, timeout=0.3, poll=0.0)
    check_codecs(assignments, instructions(config, [a.spec for a in assignments]))
    assert silent == {}
    return assignments


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
            {6: client("hospital", "forget", "a")},
            r"'hospital' is declared by the nodes \[5, 6\]",
        ),
        ({6: {}}, "node 6 declares no client while others do"),
        (
            {8: client("x", "retain", "d")},
            "client 'x' declares role 'retain' and domain 'd'",
        ),
        ({8: client("x", "forget", "b")}, "retain domain 'c' has 0 of its 1 clients"),
        ({6: client("x", "forget", "b")}, "forget domain 'a' has 1 of its 2 clients"),
        ({6: client("../x", "forget", "a")}, r"client id '\.\./x' is not 1 to 128"),
        ({6: {"error": "no such file"}}, "node 6.*no such file"),
        ({5: DEPLOYED[5] | {protocol.FINGERPRINT: "other"}}, "client 'hospital' has the backbone other"),
        ({5: DEPLOYED[5] | {"versions": json.dumps({"fedforget": "9.9"})}}, "'hospital' runs fedforget 9.9"),
        ({5: DEPLOYED[5] | {"versions": "["}}, "description cannot be read"),
        ({5: {protocol.CLIENTS: json.dumps(['{"id": 3}'])}}, "client that cannot be read"),
        ({5: {protocol.CLIENTS: "3"}}, "description cannot be read"),
        ({5: DEPLOYED[5] | {"codecs": "raw"}}, r"'hospital' cannot send its Fisher as 'planes', only as raw"),
        (
            {
                5: {
                    protocol.CLIENTS: json.dumps(
                        [json.loads(client("x", "forget", "a")[protocol.CLIENTS])[0].replace("0", '"0"', 1)]
                    )
                }
            },
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


def test_nodes_may_come_late(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = FakeGrid({})
    later = iter([[], [3], [4, 3]])
    grid.mock.get_node_ids.side_effect = lambda: next(later)
    said: list[tuple[object, ...]] = []
    monkeypatch.setattr("strategies.nodes.log", lambda level, text, *values: said.append(values))
    assert wait_for_nodes(grid.mock, 2, 5.0, 0.0) == [3, 4]
    assert said == [(0, 2), (1, 2)]


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


def test_a_client_id_belongs_to_a_node(config: RunConfig) -> None:
    config.deployment.nodes = {"hospital": 5, "clinic": 6, "lab": 7, "library": 8}
    assert len(found(DEPLOYED, config)) == 4
    # Another registered node that claims to be the hospital, while the hospital's is there or is not.
    with pytest.raises(RunError, match=r"'hospital' is declared by node 9, and deployment.nodes has node 5"):
        found(DEPLOYED | {9: client("hospital", "forget", "a")}, config)
    with pytest.raises(RunError, match="another key claims to be this client"):
        found({7: DEPLOYED[7], 8: DEPLOYED[8], 9: client("hospital", "forget", "a")}, config)
    with pytest.raises(RunError, match=r"node 9 declares the client 'clinik', which .*mean 'clinic'"):
        found(DEPLOYED | {9: client("clinik", "forget", "a")}, config)


def test_the_nodes_of_the_clients_may_be_listed_in_a_file(config: RunConfig, tmp_path: Path) -> None:
    path = tmp_path / "nodes.yaml"
    config.deployment.nodes_file = str(path)
    with pytest.raises(RunError, match=r"deployment.nodes_file: .*nodes.yaml cannot be read"):
        found(DEPLOYED, config)
    path.write_text("- hospital\n")
    with pytest.raises(RunError, match="is not a list of `client: node id`"):
        found(DEPLOYED, config)
    path.write_text('"hospital": 5\n"clinic": 6\n"lab": 7\n"library": 8\n')
    assert len(found(DEPLOYED, config)) == 4
    path.write_text('"hospital": 15\n"clinic": 6\n"lab": 7\n"library": 8\n')
    with pytest.raises(RunError, match=r"'hospital' is declared by node 5, and .*nodes.yaml has node 15"):
        found(DEPLOYED, config)


def test_a_node_with_data_of_two_roles_is_two_clients(config: RunConfig) -> None:
    parts = [
        ClientSpec("hospital-forget-a", "forget", "a", 0, 1),
        ClientSpec("hospital-retain-c", "retain", "c", 0, 1),
    ]
    both = {protocol.CLIENTS: json.dumps([protocol.spec_to_json(s) for s in parts]), "client-id": "hospital"}
    nodes = {5: both, 6: DEPLOYED[6], 7: DEPLOYED[7]}
    config.deployment.nodes = {"hospital": 5, "clinic": 6, "lab": 7}
    assert [(a.spec.id, a.node_id) for a in found(nodes, config)] == [
        ("clinic", 6),
        ("hospital-forget-a", 5),
        ("hospital-retain-c", 5),
        ("lab", 7),
    ]


def test_a_quorum_lets_clients_be_absent(config: RunConfig) -> None:
    config.quorum.forget = "50%"
    with pytest.raises(
        RunError, match=r"forget domain 'b' has 0 of 1 clients, and quorum\.forget asks for 1"
    ):
        found({5: DEPLOYED[5], 8: DEPLOYED[8]}, config)
    with pytest.raises(RunError, match=r"retain has 0 of 1 clients, and quorum\.retain asks for 1; start"):
        found({5: DEPLOYED[5], 7: DEPLOYED[7]}, config)
    nodes = DEPLOYED | {6: {"error": "no such file"}}
    assignments, silent = discover(FakeGrid(nodes).mock, config, PRINT, timeout=0.3, poll=0.0)
    assert len(assignments) == 3
    assert "no such file" in silent["node 6"]
    assert silent["forget a"] == "1 of 2 clients are not connected"


@pytest.mark.parametrize(
    ("text", "clients", "count"),
    [("all", 3, 3), ("2", 3, 2), ("60%", 5, 3), ("34%", 3, 2), ("1%", 3, 1), ("100 %", 7, 7)],
)
def test_how_many_a_quorum_asks_for(text: str, clients: int, count: int) -> None:
    assert needed(text, clients) == count


@pytest.mark.parametrize(
    ("key", "says"),
    [("forget=some", "'some' is not all, a number"), ("forget=0%", "'0%' is not all"),
     ("retain=0", "'0' is not all"), ("forget=2", "asks for 2 clients, and forget domain 'stars'")],
)  # fmt: skip
def test_a_quorum_that_cannot_be(key: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load("firm-ci", f"quorum.{key}")
