"""The server tells each client how to send its Fisher, and takes nothing that it did not ask for."""

from __future__ import annotations

import errno
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from safetensors.torch import load_file
from strategies_fakes import SHAPES, FakeGrid, failure, make_firm, spec_in, summary_of, wire

from fedforget import protocol
from fedforget.codecs import Instruction, pack
from fedforget.codecs.exchange import pack_values, unpack_places
from fedforget.config import RunConfig
from fedforget.errors import RunError, StorageError
from fedforget.reporting.tables import client_table, markdown
from fedforget.summaries import ClientSummary, Coverage


def obedient(message: Message) -> list[Message]:
    """A client that sends its Fisher as it is told."""
    how = Instruction.from_json(str(message.content[protocol.CONFIG][protocol.FISHER]))
    buckets, manifest = pack(summary_of(spec_in(message)), fisher=how)
    return [wire(message, [one.tobytes() for one in buckets], manifest)]


def stored(path: Path) -> dict[str, tuple[str, bytes]]:
    """Return each tensor's dtype and bytes; the header names the Fishers by hash as they were sent."""
    tensors = load_file(path)
    return {
        name: (str(tensor.dtype), tensor.view(torch.uint8).numpy().tobytes())
        for name, tensor in sorted(tensors.items())
    }


def test_the_server_output_does_not_depend_on_the_codec(config: RunConfig, tmp_path: Path) -> None:
    config.merge.epsilon_fraction = 0.2
    config.merge.alpha = 0.3
    updates = []
    for mode in ("raw", "lossless", "exact"):
        config.communication.fisher = mode
        firm = make_firm(config, tmp_path / mode)
        firm.start(FakeGrid(train=obedient).mock)
        updates.append(stored(firm.run.merged / "update.safetensors"))
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


def in_two_phases(message: Message) -> list[Message]:
    """A client that keeps its Fisher, here by drawing it again, and answers the second request."""
    if message.metadata.message_type != protocol.VALUES:
        (reply,) = obedient(message)
        reply.content[protocol.METRICS]["lossless-bytes"] = 60
        reply.content[protocol.INFO][protocol.DIGEST] = "d"
        return [reply]
    spec = spec_in(message)
    request = message.content[protocol.CONFIG]
    assert request[protocol.DIGEST] == "d"
    arrays = [np.frombuffer(one.data, np.uint8) for one in message.content[protocol.ARRAYS].values()]
    places = unpack_places(arrays, str(request[protocol.MANIFEST]), SHAPES, spec.id)
    fisher = {name: one.flatten() for name, one in summary_of(spec).fisher.items()}
    buckets, manifest = pack_values(
        {name: fisher[name] if at is None else fisher[name][at.long()] for name, at in places.items()}
    )
    return [wire(message, [one.tobytes() for one in buckets], manifest)]


@pytest.mark.parametrize(("alpha", "whole"), [(0.3, 1), (0.4, 0)])
def test_two_phases_give_the_bits_of_one(config: RunConfig, tmp_path: Path, alpha: float, whole: int) -> None:
    """Where the bound decides, and where one of the two tensors has to be asked for whole."""
    config.merge.epsilon_fraction = 0.2
    config.merge.alpha = alpha
    plain = make_firm(config, tmp_path / "exact")
    plain.start(FakeGrid(train=obedient).mock)
    config.communication.fisher = "two-phase"
    firm = make_firm(config, tmp_path / "two-phase")
    grid = FakeGrid(train=in_two_phases)
    firm.start(grid.mock)
    name = "update.safetensors"
    assert (firm.run.merged / name).read_bytes() == (plain.run.merged / name).read_bytes()
    asked = [spec_in(m).id for m in grid.pushed if m.metadata.message_type == protocol.VALUES]
    assert asked == ["forget-a-0", "forget-a-1"]
    assert not firm.spool.first.exists()
    loaded = {one.client_id: one.coverage for one in firm.run.load_summaries()}
    assert loaded["forget-a-1"] == Coverage("pooled-top", alpha, ("forget-a-0", "forget-a-1"))
    record = firm.run.record
    one = record["clients"]["forget-a-0"]
    assert one["codec"] == f"two-phase, first top {alpha:g}"
    assert one["whole_tensors"] == whole
    assert record["bytes"]["requested"] > 0
    twice = [record["clients"][name] for name in asked]
    assert record["bytes"]["saved"] == 120 - sum(c["fisher_bytes"] + c["request_bytes"] for c in twice)


def test_a_second_phase_that_failed_is_asked_for_again(config: RunConfig, tmp_path: Path) -> None:
    config.communication.fisher = "two-phase"

    def train(message: Message) -> list[Message]:
        if message.metadata.message_type == protocol.VALUES and spec_in(message).id == "forget-a-1":
            return [failure(message, 2, "<class 'x'>:<'\nException X occurred. Message: disk full'>")]
        return in_two_phases(message)

    firm = make_firm(config, tmp_path / "run")
    with pytest.raises(RunError, match=r"second phase of pooling .*'forget-a-1' failed: disk full"):
        firm.start(FakeGrid(train=train).mock)
    grid = FakeGrid(train=in_two_phases)
    firm = make_firm(config, tmp_path / "run")
    firm.start(grid.mock)
    kinds = [(m.metadata.message_type, m) for m in grid.pushed]
    sent = [(kind, spec_in(m).id) for kind, m in kinds if kind != protocol.DESCRIBE]
    assert sent == [(protocol.VALUES, "forget-a-1")]
    assert {one.client_id: one.coverage.kind for one in firm.run.load_summaries()} == {
        "forget-a-0": "pooled-top",
        "forget-a-1": "pooled-top",
        "forget-b-0": "top",
        "retain-c-0": "top",
    }


def test_a_full_disk_ends_the_second_phase_in_a_sentence(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.communication.fisher = "two-phase"
    save = ClientSummary.save

    def full(self: ClientSummary, directory: Path) -> None:
        if self.coverage.kind == "pooled-top":
            raise OSError(errno.ENOSPC, "No space left on device")
        save(self, directory)

    monkeypatch.setattr(ClientSummary, "save", full)
    with pytest.raises(StorageError, match=r"cannot be stored \(No space left on device\); free some disk"):
        make_firm(config, tmp_path / "run").start(FakeGrid(train=in_two_phases).mock)


def test_a_wrong_second_answer_is_refused(config: RunConfig, tmp_path: Path) -> None:
    config.communication.fisher = "two-phase"

    def train(message: Message) -> list[Message]:
        if message.metadata.message_type != protocol.VALUES or spec_in(message).id != "forget-a-0":
            return in_two_phases(message)
        buckets, manifest = pack_values({name: torch.ones(1000).bfloat16() for name in SHAPES})
        return [wire(message, [one.tobytes() for one in buckets], manifest)]

    firm = make_firm(config, tmp_path / "run")
    with pytest.raises(RunError, match=r"client 'forget-a-0' failed: .*decompresses to 1000 bytes, expected"):
        firm.start(FakeGrid(train=train).mock)
    assert not firm.spool.has("forget-a-0")


def test_a_second_answer_that_contradicts_the_first_is_refused(config: RunConfig, tmp_path: Path) -> None:
    config.communication.fisher = "two-phase"

    def train(message: Message) -> list[Message]:
        (reply,) = in_two_phases(message)
        if message.metadata.message_type == protocol.VALUES and spec_in(message).id == "forget-a-0":
            arrays = [np.frombuffer(one.data, np.uint8) for one in message.content[protocol.ARRAYS].values()]
            manifest = str(message.content[protocol.CONFIG][protocol.MANIFEST])
            places = unpack_places(arrays, manifest, SHAPES, "x")
            sizes = {n: math.prod(SHAPES[n]) if at is None else at.numel() for n, at in places.items()}
            buckets, manifest = pack_values({n: torch.full((k,), 1e9).bfloat16() for n, k in sizes.items()})
            return [wire(message, [one.tobytes() for one in buckets], manifest)]
        return [reply]

    firm = make_firm(config, tmp_path / "run")
    with pytest.raises(RunError, match=r"client 'forget-a-0' failed: .*(was said|were sent first)"):
        firm.start(FakeGrid(train=train).mock)
    assert not firm.spool.has("forget-a-0")


def test_two_phases_need_start(config: RunConfig, tmp_path: Path) -> None:
    config.communication.fisher = "two-phase"
    firm = make_firm(config, tmp_path / "run")
    grid = FakeGrid(train=in_two_phases)
    messages = firm.configure_train(1, ArrayRecord(), ConfigRecord(), grid.mock)
    with pytest.raises(RunError, match=r"'?forget-a-0'?.*second trip of start"):
        firm.aggregate_train(1, grid.mock.send_and_receive(messages))
