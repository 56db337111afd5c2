"""The server tells each client how to send its Fisher, and takes nothing that it did not ask for."""

from __future__ import annotations

from pathlib import Path

import pytest
from flwr.app import Message
from strategies_fakes import FakeGrid, make_firm, spec_in, summary_of, wire

from fedforget import protocol
from fedforget.codecs import Instruction, pack
from fedforget.config import RunConfig
from fedforget.errors import RunError
from fedforget.reporting.tables import client_table, markdown


def obedient(message: Message) -> list[Message]:
    """A client that sends its Fisher as it is told."""
    how = Instruction.from_json(str(message.content[protocol.CONFIG][protocol.FISHER]))
    buckets, manifest = pack(summary_of(spec_in(message)), fisher=how)
    return [wire(message, [one.tobytes() for one in buckets], manifest)]


def test_the_server_output_does_not_depend_on_the_codec(config: RunConfig, tmp_path: Path) -> None:
    config.merge.epsilon_fraction = 0.2
    config.merge.alpha = 0.3
    updates = []
    for mode in ("raw", "lossless", "exact"):
        config.communication.fisher = mode
        firm = make_firm(config, tmp_path / mode)
        firm.start(FakeGrid(train=obedient).mock)
        updates.append((firm.run.merged / "update.safetensors").read_bytes())
        record = firm.run.record
    assert updates[0] == updates[1] == updates[2]
    clients = record["clients"]
    assert {name: one["codec"] for name, one in clients.items()} == {
        "forget-a-0": "planes + zstd",
        "forget-a-1": "planes + zstd",
        "forget-b-0": "top 0.3",
        "retain-c-0": "top 0.3",
    }
    # 22 coordinates in bf16, and 28 numbers of LoRA factors in fp32.
    assert clients["retain-c-0"]["fisher_dense_bytes"] == 44
    assert clients["retain-c-0"]["delta_dense_bytes"] == 88
    assert clients["retain-c-0"]["delta_bytes"] == 112
    sizes = record["bytes"]
    assert sizes["dense"] == 4 * (44 + 88)
    assert sizes["of_dense"] == round(sizes["received"] / sizes["dense"], 4)
    assert "| top 0.3 |" in markdown(client_table(clients))


def test_an_approximate_codec_is_reported(config: RunConfig, tmp_path: Path) -> None:
    config.communication.fisher = "approximate-log8"
    firm = make_firm(config, tmp_path / "run")
    firm.start(FakeGrid(train=obedient).mock)
    clients = firm.run.record["clients"]
    assert {one["codec"] for one in clients.values()} == {"approximate: log 8 bit"}
    assert all(0.0 < one["relative_error"] < 0.1 for one in clients.values())
    assert "its Fisher is approximate" in markdown(client_table(clients))


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        (Instruction("top", 0.5), "top"),
        (Instruction("log8", approximate=True), "approximate"),
        (Instruction("top", 0.15, approximate=True), "approximate"),
    ],
)
def test_a_codec_that_was_not_asked_for_is_refused(
    config: RunConfig, tmp_path: Path, how: Instruction, kind: str
) -> None:
    def train(message: Message) -> list[Message]:
        if spec_in(message).id != "forget-a-0":
            return obedient(message)
        buckets, manifest = pack(summary_of(spec_in(message)), fisher=how)
        return [wire(message, [one.tobytes() for one in buckets], manifest)]

    firm = make_firm(config, tmp_path / "run")
    with pytest.raises(RunError, match=f"client 'forget-a-0' failed: .*came as '{kind}', .* not asked for"):
        firm.start(FakeGrid(train=train).mock)
    assert not firm.spool.has("forget-a-0")
