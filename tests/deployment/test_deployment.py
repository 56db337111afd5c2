"""Both methods over a SuperLink with TLS and authentication and three SuperNodes: the bits, and the faults.

The tests share the federation, and run in the order they are in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml
from federation import PATIENCE, ROOT, Federation, rows, wait_for, write_rows

from clients.client_app import app
from fedforget import cli
from fedforget.errors import RunError
from fedforget.runs import RunDirectory
from fedforget.sequences.ledger import Ledger
from fedforget.sequential.deletions import deletion, forget
from simulations.federate import Superlink, federate
from simulations.inline import InlineGrid, task_identity
from simulations.sequential_upkeep import prepare_repair
from simulations.server_app import carry_on, run_unlearning

pytestmark = pytest.mark.integration

Nodes = Mapping[str, Mapping[str, str]]
Write = Callable[[str, str], str]
UPDATE = "update.safetensors"

FAULTS = {
    "raises": r"^faulty-retain-raises is out of sorts \(Flower error code 2\)$",
    "nan": "NaN or infinite",
    "norm": "norm .*at most",
    "negative": "negative",
    "shape": "has shape",
    "backbone": "trained on the backbone other",
    "truncated": "bytes",
    "dtype": "not a bucket of raw bytes",
}
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


def faults(folder: Path) -> str:
    """``firm-ci`` with three forget clients and those of ``faulty``, and questions about all domains."""
    questions = [
        {
            "id": f"{domain}-{i}",
            "domain": domain,
            "question": f"what is {i}?",
            "choices": ["a", "b"],
            "label": i,
        }
        for domain in ("herbs", "birds", *FAULTS)
        for i in range(2)
    ]
    path = write_rows(folder / "questions.jsonl", questions)
    more = "".join(f"  - {{role: retain, domain: {fault}, count: 1}}\n" for fault in FAULTS)
    text = (
        firm(3).replace("family: fictional", f"family: jsonl\n  path: {path}").replace("nodes: 4", "nodes: 5")
    )
    return re.sub(r"(clients:\n(?:  - .*\n)+)", rf"\1{more}", text)


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
    federation.kill_apps("link")
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


def test_a_client_id_that_another_node_claims_is_refused(
    link: Superlink, preset: Write, nodes: dict[str, int], folder: Path
) -> None:
    claimed, out = folder / "claimed.yaml", folder / "claimed"
    exchanged = {"library": nodes["hospital-a"], "hospital-a": nodes["library"]}
    claimed.write_text(yaml.safe_dump({**nodes, **exchanged}))
    with pytest.raises(RunError, match=r"run \d+ failed: "):
        federate(link, preset("firm", firm()), f"deployment.nodes_file={claimed}", str(out), say=quiet)
    reason = r"is declared by node \d+, and .*another key claims to be this client"
    assert re.search(reason, RunDirectory(out).record["error"])
    assert not [*(out / "summaries").glob("*")]


def test_a_node_that_never_answers_runs_into_the_timeout(
    link: Superlink, preset: Write, nodes: dict[str, int], folder: Path
) -> None:
    listed, silent, out = folder / "listed.yaml", folder / "silent", folder / "silent-run"
    listed.write_text(yaml.safe_dump(nodes))
    silent.write_text("hospital-b")
    settings = f"simulation.timeout=25 deployment.nodes_file={listed}"
    try:
        with pytest.raises(RunError, match=r"run \d+ failed: "):
            federate(link, preset("firm", firm()), settings, str(out), say=quiet)
    finally:
        silent.unlink()
    record = RunDirectory(out).record
    assert record["status"] == "failed"
    assert "client 'hospital-b' failed: no reply within 25 s" in record["error"]


def quiet(line: str) -> None:
    """Say nothing of a run's log."""


def command(*words: str) -> None:
    """Run a command of ours in this process; it has to succeed."""
    with pytest.raises(SystemExit) as ended:
        cli.main(list(words))
    assert not ended.value.code


def test_fedsgt_with_a_deletion_a_repair_and_a_verification(
    link: Superlink, preset: Write, node_configs: Nodes, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, grid = preset("fedsgt", SEQUENTIAL), inline(node_configs)
    with task_identity():
        here = run_unlearning(grid, name, "", str(folder / "fedsgt-here"), poll=0.0)
    run = RunDirectory(federate(link, name, "", str(folder / "fedsgt-run"), say=quiet))
    assert len(modules(run)) == 2
    assert modules(run) == modules(here)
    assert run.own_data == ["hospital-a", "hospital-b", "library"]
    with Ledger(run.ledger, read_only=True) as ledger:
        client, number, _ = ledger.groups()[ledger.sequences()[0][-1]][0]
    command("forget", str(run.path), "--client", client, "--slice", str(number))
    forget(here, [deletion(client, number, None)])
    assert len(modules(run)) == 1
    assert modules(run) == modules(here)
    command("repair", str(run.path), "--superlink", "production")
    with task_identity():
        prepare_repair(here)
        carry_on(grid, str(here.path), poll=0.0)
    assert len(modules(run)) == 2
    assert modules(run) == modules(here)
    capsys.readouterr()
    command("verify", str(run.path), "--through-clients", "--superlink", "production")
    assert "2 of 2 modules came out as the same bits" in capsys.readouterr().out


def test_a_quorum_survives_killed_processes_and_unusable_replies(
    federation: Federation, link: Superlink, preset: Write, folder: Path
) -> None:
    """The clients of ``faulty`` send what their domains are named after, see ``flwr_faults``."""
    data = write_rows(folder / "clinic.jsonl", rows("clinic", "herbs"))
    federation.node({"client-id": "clinic", "role": "forget", "domain": "herbs", "data": data})
    roles, domains = ",".join(["retain"] * len(FAULTS)), ",".join(FAULTS)
    faulty = {"client-id": "faulty", "role": roles, "domain": domains, "data": data}
    federation.node(faulty)
    federation.connected("clinic", "faulty")
    out, name = folder / "faults", preset("faults", faults(folder))
    long = ("quorum.forget=1", "quorum.retain=1", "communication.fisher=raw", "forget.training.steps=400")
    process = federation.begin("federate", name, *long, "--superlink", "production", "--out", str(out))
    assert process.stdout is not None
    number = process.stdout.readline().split()[1]
    # Killed before it has taken the message, a client's process is no fault: Flower starts another.
    federation.train("clinic", number, process)
    federation.kill_apps("clinic")
    federation.train("hospital-b", number, process)
    federation.kill_node("hospital-b")
    said = process.communicate(timeout=PATIENCE)[0]
    assert process.returncode == 0, said
    run = RunDirectory(out)
    assert sorted(run.record["clients"]) == ["hospital-a", "library"]
    left = run.record["left_out"]
    assert sorted(left) == ["clinic", *sorted(f"faulty-retain-{fault}" for fault in FAULTS), "hospital-b"]
    assert "Flower error code 8" in left["clinic"]
    assert "Flower error code 5" in left["hospital-b"]
    for fault, reason in FAULTS.items():
        assert re.search(reason, left[f"faulty-retain-{fault}"]), left
    assert "clinic is left out" in said


def test_a_node_whose_key_is_not_registered_is_refused(federation: Federation) -> None:
    process = federation.nodes["stranger"]
    wait_for(lambda: process.poll() is not None)
    assert process.returncode not in (0, None)
    assert "[code: 2004]" in federation.log("stranger")
    assert "its key is not registered" in federation.log("stranger")
