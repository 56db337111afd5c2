"""Both methods over a SuperLink with TLS and authentication and three SuperNodes: the bits, and the faults.

The tests share the federation, and run in the order they are in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from federation import PATIENCE, ROOT, Federation, rows, wait_for, write_rows

from clients.client_app import app
from fedforget.errors import RunError
from fedforget.runs import RunDirectory
from fedforget.sequences.ledger import Ledger
from fedforget.sequential.deletions import deletion, forget
from simulations.federate import Superlink, federate
from simulations.inline import InlineGrid, task_identity
from simulations.server_app import run_unlearning

pytestmark = pytest.mark.integration

Nodes = Mapping[str, Mapping[str, str]]
Write = Callable[[str, str], str]
UPDATE = "update.safetensors"

SEQUENTIAL = """
kind: fedsgt
name: deployed
model:
  path: statements-encoder
  device: cpu
  max_length: 24
  pretrain: {layers: 1, width: 16, heads: 2, steps: 0}
module: {kind: lora, r: 2, alpha: 4, targets: [query, value]}
data: {family: statements, max_records: 60, clients: 3, names: [hospital-a, hospital-b, library], slices: 2}
grouping: {groups: 2}
sequences: {budget: 1}
training: {local_epochs: 1, batch_size: 16, learning_rate: 1.0e-2, threads: 1}
simulation: {nodes: 3}
"""


def firm(herbs: int = 2) -> str:
    """``firm-ci``, with so many forget clients in one domain and a retain client, each on its own node."""
    text = (ROOT / "configs" / "firm-ci.yaml").read_text()
    forget = f"  - {{role: forget, domain: herbs, count: {herbs}}}"
    retain = "  - {role: retain, domain: birds, count: 1}"
    text = re.sub(r"clients:\n(  - .*\n)+", f"clients:\n{forget}\n{retain}\n", text)
    return text.replace("nodes: 2", f"nodes: {herbs + 1}")


def inline(nodes: Nodes) -> InlineGrid:
    with task_identity():
        return InlineGrid(app, list(nodes.values()))


def modules(run: RunDirectory) -> dict[tuple[int, ...], str]:
    with Ledger(run.ledger, read_only=True) as ledger:
        return {prefix: module.sha256 for prefix, module in ledger.live_modules().items()}


def test_firm_with_a_serverapp_that_is_killed_and_started_again(
    federation: Federation, link: Superlink, preset: Write, node_configs: Nodes, folder: Path
) -> None:
    name, out = preset("firm", firm()), folder / "firm-run"
    with task_identity():
        here = run_unlearning(inline(node_configs), name, "", str(folder / "firm-here"), poll=0.0)
    first = federation.begin("federate", name, "--superlink", "production", "--out", str(out))
    wait_for(lambda: [*(out / "summaries").glob("[!.]*")], first)
    for process in federation.named("flwr-serverapp"):
        process.kill()
    stored = [path.name for path in (out / "summaries").glob("[!.]*")]
    said: list[str] = []
    assert federate(link, name, "", str(out), say=said.append) == str(out)
    for client in stored:
        assert any(f"{client}: its summary is in the run already" in line for line in said)
    run = RunDirectory(out)
    assert run.record["status"] == "completed"
    assert run.record["left_out"] == {}
    assert (run.merged / UPDATE).read_bytes() == (here.merged / UPDATE).read_bytes()
    told = first.communicate(timeout=PATIENCE)[0]
    assert first.returncode == 1, told
    assert re.search(r"error: run \d+ failed: ", told)


def test_the_reason_is_said_once_and_without_a_stack(link: Superlink, preset: Write, folder: Path) -> None:
    said: list[str] = []
    with pytest.raises(RunError, match=r"run \d+ failed: .*firm-run: holds a finished run; choose another"):
        federate(link, preset("firm", firm()), "", str(folder / "firm-run"), say=said.append)
    assert not any("holds a finished run" in line or "Traceback" in line for line in said)


def test_fedsgt_with_a_deletion(
    federation: Federation, link: Superlink, preset: Write, node_configs: Nodes, folder: Path
) -> None:
    name, grid = preset("fedsgt", SEQUENTIAL), inline(node_configs)
    with task_identity():
        here = run_unlearning(grid, name, "", str(folder / "fedsgt-here"), poll=0.0)
    run = RunDirectory(federate(link, name, "", str(folder / "fedsgt-run"), say=lambda line: None))
    assert len(modules(run)) == 2
    assert modules(run) == modules(here)
    assert run.own_data == ["hospital-a", "hospital-b", "library"]
    with Ledger(run.ledger, read_only=True) as ledger:
        client, number, _ = ledger.groups()[ledger.sequences()[0][-1]][0]
    federation.fedforget("forget", str(run.path), "--client", client, "--slice", str(number))
    forget(here, [deletion(client, number, None)])
    assert len(modules(run)) == 1
    assert modules(run) == modules(here)


def test_a_quorum_survives_a_killed_client_and_a_killed_supernode(
    federation: Federation, link: Superlink, preset: Write, folder: Path
) -> None:
    own = {"client-id": "clinic", "role": "forget", "domain": "herbs"}
    federation.node({**own, "data": write_rows(folder / "clinic.jsonl", rows("clinic", "herbs"))})
    federation.connected()
    before = {name: federation.started(name) for name in ("clinic", "hospital-b")}
    out = folder / "faults"
    process = federation.begin(
        "federate",
        preset("faults", firm(3)),
        "quorum.forget=1",
        "--superlink",
        "production",
        "--out",
        str(out),
    )
    for name, apps in federation.training(before, process):
        if name == "hospital-b":
            federation.kill_node(name)
        else:
            for running in apps:
                running.kill()
    said = process.communicate(timeout=PATIENCE)[0]
    assert process.returncode == 0, said
    run = RunDirectory(out)
    assert sorted(run.record["clients"]) == ["hospital-a", "library"]
    assert sorted(run.record["left_out"]) == ["clinic", "hospital-b"]
    assert "Flower error code 8" in run.record["left_out"]["clinic"]
    assert "Flower error code 5" in run.record["left_out"]["hospital-b"]
    assert "clinic is left out" in said
