"""The ClientApp through Flower's messages: who a message is for, and what comes back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from clients.client_app import ClientError, app
from clients.identity import declared
from fedforget import protocol
from fedforget.client_specs import ClientSpec, expand_clients
from fedforget.codecs import RAW, unpack
from fedforget.config import RunConfig
from fedforget.errors import RunError
from fedforget.presets import to_yaml
from fedforget.protocol import Description

NODE = {"client-id": "hospital", "role": "forget", "domain": "stars"}


def context(**node: bool | int | float | str) -> Context:
    return Context(run_id=1, node_id=7, node_config=node, state=RecordDict(), run_config={})


def send(kind: str, config: RunConfig | None, node: Context, spec: ClientSpec | None = None) -> Message:
    record = ConfigRecord()
    if config is not None:
        record[protocol.RUN_CONFIG] = to_yaml(config)
    if spec is not None:
        record[protocol.CLIENT] = protocol.spec_to_json(spec)
    message = Message(RecordDict({protocol.CONFIG: record}), 7, kind)
    message.metadata.__dict__["_message_id"] = "m1"
    return app(message, node)


def test_train_round_trip(config: RunConfig) -> None:
    spec = expand_clients(config.clients)[0]
    reply = send(protocol.UNLEARN, config, context(**{"partition-id": 0}), spec)
    arrays = reply.content[protocol.ARRAYS]
    assert all(array.stype == RAW for array in arrays.values())
    info = reply.content[protocol.INFO]
    buckets = [np.frombuffer(array.data, np.uint8) for array in arrays.values()]
    summary = unpack(buckets, str(info[protocol.MANIFEST]))
    summary.validate()
    assert summary.client_id == spec.id
    metrics = reply.content[protocol.METRICS]
    assert metrics["num-examples"] == 8
    assert metrics["steps"] == 2
    assert reply.metadata.reply_to_message_id == "m1"


def test_a_spec_in_the_message_replaces_the_node_as_a_whole(config: RunConfig) -> None:
    spec = expand_clients(config.clients)[0]
    named = send(protocol.EVALUATE, config, context(**NODE, data="/nowhere.jsonl"), spec)
    plain = send(protocol.EVALUATE, config, context(), spec)
    assert named.content[protocol.METRICS] == plain.content[protocol.METRICS]
    assert named.content[protocol.METRICS]["loss"] > 0


def test_a_deployed_node_trains_as_what_it_declares(config: RunConfig) -> None:
    reply = send(protocol.UNLEARN, config, context(**NODE, **{"max-examples": 4}))
    buckets = [np.frombuffer(array.data, np.uint8) for array in reply.content[protocol.ARRAYS].values()]
    summary = unpack(buckets, str(reply.content[protocol.INFO][protocol.MANIFEST]))
    assert (summary.client_id, summary.domain, summary.num_examples) == ("hospital", "stars", 4)


def test_describe(config: RunConfig) -> None:
    simulated = Description.from_properties(
        send(protocol.DESCRIBE, config, context(**{"partition-id": 3})).content[protocol.INFO]
    )
    assert (simulated.clients, simulated.partition) == ((), 3)
    deployed = Description.from_properties(
        send(protocol.DESCRIBE, config, context(**NODE)).content[protocol.INFO]
    )
    assert deployed.clients == (ClientSpec("hospital", "forget", "stars", 0, 1),)
    assert deployed.client_id == "hospital"
    assert deployed.fingerprint == simulated.fingerprint
    assert deployed.sizes["hospital"] > 8


def test_a_node_with_two_roles_sends_a_summary_for_each(config: RunConfig) -> None:
    node = context(
        **{"client-id": "hospital", "role": "forget,retain", "domain": "stars, birds", "max-examples": 4}
    )
    described = Description.from_properties(send(protocol.DESCRIBE, config, node).content[protocol.INFO])
    assert described.sizes == {"hospital-forget-stars": 4, "hospital-retain-birds": 4}
    for spec in described.clients:
        record = ConfigRecord({protocol.RUN_CONFIG: to_yaml(config), protocol.DECLARED: spec.id})
        message = Message(RecordDict({protocol.CONFIG: record}), 7, protocol.UNLEARN)
        message.metadata.__dict__["_message_id"] = "m1"
        reply = app(message, node)
        buckets = [np.frombuffer(array.data, np.uint8) for array in reply.content[protocol.ARRAYS].values()]
        summary = unpack(buckets, str(reply.content[protocol.INFO][protocol.MANIFEST]))
        assert (summary.client_id, summary.role, summary.domain) == (spec.id, spec.role, spec.domain)
    record[protocol.DECLARED] = "hospital"
    message = Message(RecordDict({protocol.CONFIG: record}), 7, protocol.UNLEARN)
    with pytest.raises(RunError, match=r"declares 'hospital-forget-stars', .* for client 'hospital'; was"):
        app(message, node)


def test_files_of_several_roles() -> None:
    both = {"client-id": "h", "role": "forget,retain", "domain": "a,b"}
    assert [spec.path for spec in declared(context(**both, data="/x.jsonl"))] == ["/x.jsonl"] * 2
    assert [spec.path for spec in declared(context(**both, data="/x.jsonl,/y.jsonl"))] == [
        "/x.jsonl",
        "/y.jsonl",
    ]
    assert [s.retain_domain for s in declared(context(**both, **{"retain-domain": "c"}))] == ["c", ""]
    with pytest.raises(RunError, match="'h': its node configuration lists 2 roles, 2 domains and 3 data"):
        declared(context(**both, data="/x,/y,/z"))
    with pytest.raises(RunError, match="lists 2 roles, 1 domains"):
        declared(context(**{**both, "domain": "a"}))


@pytest.mark.parametrize(
    ("node", "says"),
    [
        ({"client-id": "x"}, "gives client-id but no role"),
        ({"role": "forget", "domain": "a"}, "no client-id"),
        ({**NODE, "shard": 2, "num-shards": 2}, "'hospital': shard 2 of 2"),
        ({**NODE, "max-examples": "many"}, "'hospital': max-examples .* is 'many', not a count"),
        ({**NODE, "shard": True}, "not a count"),
    ],
)
def test_a_bad_declaration_is_refused(node: dict[str, str | int], says: str) -> None:
    with pytest.raises(RunError, match=says):
        declared(context(**node))


def test_nobody_is_named(config: RunConfig) -> None:
    with pytest.raises(RunError, match="node 7: neither the message nor"):
        send(protocol.UNLEARN, config, context(**{"partition-id": 0}))


def test_a_message_without_a_configuration() -> None:
    with pytest.raises(RunError, match="carries no run configuration"):
        send(protocol.DESCRIBE, None, context())


def test_an_error_names_the_client(config: RunConfig) -> None:
    spec = ClientSpec("forget-x-0", "forget", "x", 0, 1)
    with pytest.raises(ClientError, match="DataError: client 'forget-x-0'"):
        send(protocol.UNLEARN, config, context(), spec)
    # Steps that large leave nothing finite.
    config.forget.training.learning_rate = 1e30
    with pytest.raises(ClientError, match=r"TrainingError: client 'forget-herbs-0'"):
        send(protocol.UNLEARN, config, context(), expand_clients(config.clients)[0])


def test_the_simulation_process_works_where_the_packages_are(tmp_path: Path) -> None:
    """Ray puts the working directory first on its workers' path; another checkout's packages must not win."""
    code = (
        "import sys; sys.argv[0] = '/usr/bin/' + sys.argv[1]\n"
        "import clients, os, pathlib\n"
        "root = str(pathlib.Path(clients.__file__).resolve().parents[1])\n"
        "print(os.getcwd() == root, os.environ.get('FEDFORGET_CWD'))"
    )
    root = str(Path(__file__).resolve().parents[2])
    env = {k: v for k, v in os.environ.items() if k != "FEDFORGET_CWD"} | {"PYTHONPATH": root}

    def run(program: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code, program],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    assert run("flwr-simulation") == f"True {tmp_path}"
    assert run("flwr-clientapp") == "False None"


def test_a_message_waits_for_no_import_that_it_does_not_need() -> None:
    """A deployed client works on each message in a new process; slices are told without a model."""
    code = (
        "import sys, clients.client_app, clients.sequential; print({'peft', 'transformers'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
