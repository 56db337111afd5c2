"""FedSGT's rounds with mocked clients: what is asked of whom, what is averaged, recorded and refused."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch
from sequential_fakes import NAMES, PRINT, SIZE, FakeClients, hashes, make_fedsgt, tensors_of

from fedforget.errors import ModelError, RunError, StorageError
from fedforget.sequential.config import (
    SequentialRunConfig,
)
from fedforget.sequential.modules import PrefixModule
from fedforget.sequential.protocol import Work


def test_every_prefix_is_trained_once_and_recorded(sequential: SequentialRunConfig, tmp_path: Path) -> None:
    grid = FakeClients(NAMES)
    strategy = make_fedsgt(sequential, tmp_path / "run")
    strategy.start(grid.mock)
    live = strategy.ledger.live_modules()
    assert set(live) == set(strategy.plan.tree.nodes)
    assert len(live) == 9  # three rotations of three groups share no prefix
    assert strategy.trained == list(strategy.plan.tree.nodes)
    for prefix, module in live.items():
        assert list(module.participants) == list(strategy.plan.clients(prefix))
        assert module.examples == SIZE * len(strategy.plan.slices(prefix))
        PrefixModule.load(strategy.run.path / module.path, module.sha256)
    # Each client trains each prefix that holds its data once.
    expected = sorted((c, p) for p in live for c in strategy.plan.clients(p))
    assert sorted(grid.trained) == expected
    head = strategy.run.record["ledger_head"]
    assert head["number"] == strategy.ledger.head().number == 10


def test_a_shared_prefix_is_trained_once(sequential: SequentialRunConfig, tmp_path: Path) -> None:
    sequential.sequences.budget = 6  # all orders of three groups: 3 + 6 + 6 prefixes
    grid = FakeClients(NAMES)
    strategy = make_fedsgt(sequential, tmp_path / "run")
    strategy.start(grid.mock)
    assert len(strategy.trained) == len(set(strategy.trained)) == 15
    assert max(grid.received.values()) == 1
    assert len(grid.trained) == len(set(grid.trained))


def test_one_message_per_client_and_round(sequential: SequentialRunConfig, tmp_path: Path) -> None:
    grid = FakeClients(NAMES)
    strategy = make_fedsgt(sequential, tmp_path / "run")
    strategy.start(grid.mock)
    taking_part = [
        {name for prefix in strategy.plan.tree.depth(d) for name in strategy.plan.clients(prefix)}
        for d in (1, 2, 3)
    ]
    assert len(grid.train_messages) == sum(map(len, taking_part))
    assert strategy.run.record["trainings"][0]["messages"] == len(grid.train_messages)


def test_modules_are_the_average_by_examples(sequential: SequentialRunConfig, tmp_path: Path) -> None:
    asked: dict[tuple[str, tuple[int, ...]], Work] = {}

    def before(name: str, work: list[Work]) -> None:
        asked.update({(name, one.prefix): one for one in work})

    strategy = make_fedsgt(sequential, tmp_path / "run")
    strategy.start(FakeClients(NAMES, before=before).mock)
    for prefix, module in strategy.ledger.live_modules().items():
        total = {}
        for name in strategy.plan.clients(prefix):
            work = asked[name, prefix]
            assert work.slices == strategy.plan.client_slices(prefix, name)
            n = SIZE * len(work.slices)
            for key, value in tensors_of(name, work, n).items():
                total[key] = total.get(key, 0) + n * value.double()
        found = PrefixModule.load(strategy.run.path / module.path).tensors
        for key, value in total.items():
            assert torch.equal(found[key], (value / module.examples).float())


def test_frozen_modules_are_those_of_the_shorter_prefixes(
    sequential: SequentialRunConfig, tmp_path: Path
) -> None:
    seen: list[Work] = []
    grid = FakeClients(NAMES, before=lambda name, work: seen.extend(work))  # type: ignore[func-returns-value]
    strategy = make_fedsgt(sequential, tmp_path / "run")
    strategy.start(grid.mock)
    found = hashes(strategy.run.path)
    assert {len(one.frozen) for one in seen} == {0, 1, 2}
    for one in seen:
        assert one.frozen == tuple(found[one.prefix[:i]] for i in range(1, len(one.prefix)))


def test_later_rounds_of_a_phase_go_on_from_the_average(
    sequential: SequentialRunConfig, tmp_path: Path
) -> None:
    sequential.training.rounds_per_phase = 2
    seen: list[Work] = []
    grid = FakeClients(NAMES, before=lambda name, work: seen.extend(work))  # type: ignore[func-returns-value]
    strategy = make_fedsgt(sequential, tmp_path / "run")
    result = strategy.start(grid.mock)
    assert sorted(result.train_metrics_clientapp) == [1, 2, 3, 4, 5, 6]
    for prefix in strategy.plan.tree.nodes:
        currents = {one.current for one in seen if one.prefix == prefix}
        assert len(currents) == 2  # none in the first round, one average in the second
        assert "" in currents
        seeds = {one.seed for one in seen if one.prefix == prefix}
        assert len(seeds) == 2 * len(strategy.plan.clients(prefix))
    assert len(strategy.ledger.live_modules()) == 9
    assert not (strategy.run.path / "spool").exists()


def test_the_order_of_arrival_changes_no_bit(sequential: SequentialRunConfig, tmp_path: Path) -> None:
    for name, reverse in (("a", False), ("b", True)):
        grid = FakeClients(NAMES)
        grid.reverse = reverse
        make_fedsgt(sequential, tmp_path / name).start(grid.mock)
    assert hashes(tmp_path / "a") == hashes(tmp_path / "b")


def test_a_lost_cache_is_filled_again(sequential: SequentialRunConfig, tmp_path: Path) -> None:
    grid = FakeClients(NAMES)

    def before(name: str, work: list[Work]) -> None:
        if name == "client-01" and len(work[0].prefix) == 3 and grid.received["lost", ""] == 0:
            grid.received["lost", ""] += 1
            grid.caches[name].clear()

    grid.before = before  # type: ignore[assignment]
    make_fedsgt(sequential, tmp_path / "run").start(grid.mock)
    whole = FakeClients(NAMES)
    make_fedsgt(sequential, tmp_path / "whole").start(whole.mock)
    assert hashes(tmp_path / "run") == hashes(tmp_path / "whole")
    assert max(n for (name, _), n in grid.received.items() if name == "client-01") == 2
    assert max(n for (name, _), n in grid.received.items() if name == "client-00") == 1


def test_a_client_that_never_keeps_a_module_is_named(sequential: SequentialRunConfig, tmp_path: Path) -> None:
    grid = FakeClients(NAMES)

    class Forgetful(dict[str, PrefixModule]):
        def __contains__(self, key: object) -> bool:
            return False

    grid.caches["client-02"] = Forgetful()
    with pytest.raises(RunError, match=r"client 'client-02' failed: .* lacks module .* sent to it twice"):
        make_fedsgt(sequential, tmp_path / "run").start(grid.mock)


def test_failed_clients_are_all_named(sequential: SequentialRunConfig, tmp_path: Path) -> None:
    def before(name: str, work: list[Work]) -> str | None:
        return "disk full" if name != "client-00" and len(work[0].prefix) == 2 else None

    strategy = make_fedsgt(sequential, tmp_path / "run")
    with pytest.raises(RunError) as error:
        strategy.start(FakeClients(NAMES, before=before).mock)
    assert "client-01: disk full" in str(error.value)
    assert "client-02: disk full" in str(error.value)
    assert len(hashes(tmp_path / "run")) == 3  # the first phase is on record


def test_resumed_training_asks_for_nothing_twice(sequential: SequentialRunConfig, tmp_path: Path) -> None:
    def before(name: str, work: list[Work]) -> str | None:
        return "power cut" if name == "client-02" and len(work[0].prefix) == 2 else None

    first = FakeClients(NAMES, before=before)
    with pytest.raises(RunError, match="power cut"):
        make_fedsgt(sequential, tmp_path / "run").start(first.mock)
    second = FakeClients(NAMES)
    make_fedsgt(sequential, tmp_path / "run").start(second.mock)
    whole = FakeClients(NAMES)
    make_fedsgt(sequential, tmp_path / "whole").start(whole.mock)
    assert hashes(tmp_path / "run") == hashes(tmp_path / "whole")
    assert sorted(first.trained + second.trained) == sorted(whole.trained)
    assert len(make_fedsgt(sequential, tmp_path / "run").run.record["trainings"]) == 1


def test_a_full_disk_ends_the_training_in_a_sentence(
    sequential: SequentialRunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: PrefixModule, path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(PrefixModule, "save", full)
        with pytest.raises(StorageError, match=r"cannot be stored \(No space left on device\)"):
            make_fedsgt(sequential, tmp_path / "run").start(FakeClients(NAMES).mock)
    make_fedsgt(sequential, tmp_path / "run").start(FakeClients(NAMES).mock)
    make_fedsgt(sequential, tmp_path / "whole").start(FakeClients(NAMES).mock)
    assert hashes(tmp_path / "run") == hashes(tmp_path / "whole")


def test_a_damaged_result_on_disk_is_asked_for_again(sequential: SequentialRunConfig, tmp_path: Path) -> None:
    def before(name: str, work: list[Work]) -> str | None:
        return "power cut" if name == "client-02" else None

    with pytest.raises(RunError, match="power cut"):
        make_fedsgt(sequential, tmp_path / "run").start(FakeClients(NAMES, before=before).mock)
    spooled = sorted((tmp_path / "run" / "spool").glob("*.safetensors"))
    assert spooled
    spooled[0].write_bytes(spooled[0].read_bytes()[:-1] + b"\x00")
    make_fedsgt(sequential, tmp_path / "run").start(FakeClients(NAMES).mock)
    make_fedsgt(sequential, tmp_path / "whole").start(FakeClients(NAMES).mock)
    assert hashes(tmp_path / "run") == hashes(tmp_path / "whole")


def _wrong_count(parts: dict[str, Any]) -> None:
    parts["done"][0]["num_examples"] += 1


def _wrong_hash(parts: dict[str, Any]) -> None:
    parts["done"][0]["sha256"] = "0" * 64


def _too_few(parts: dict[str, Any]) -> None:
    parts["done"].pop()


def _other_prefix(parts: dict[str, Any]) -> None:
    parts["done"][0]["prefix"] = [9]


def _replaced(tensors: dict[str, torch.Tensor]) -> Any:
    def change(parts: dict[str, Any]) -> None:
        from flwr.app import Array

        from fedforget.codecs import RAW
        from fedforget.sequential.modules import module_hash
        from fedforget.sequential.protocol import module_to_bytes

        raw = module_to_bytes(tensors)
        parts["arrays"]["00000"] = Array("uint8", (len(raw),), RAW, raw)
        parts["done"][0]["sha256"] = module_hash(tensors)

    return change


LORA, BIAS = torch.zeros(2, 3), torch.zeros(4)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_wrong_count, "was trained on .* records, and its slices hold"),
        (_wrong_hash, "does not match its hash"),
        (_too_few, "other results than it was asked for"),
        (_other_prefix, "other results than it was asked for"),
        (_replaced({"block.lora_A": LORA}), "tensor 'classifier.bias' is missing"),
        (
            _replaced({"block.lora_A": LORA, "classifier.bias": BIAS, "x": BIAS.clone()}),
            "'x' is one too many",
        ),
        (
            _replaced({"block.lora_A": BIAS.clone(), "classifier.bias": BIAS}),
            r"'block.lora_A' is .*\(4,\), expected",
        ),
        (_replaced({"block.lora_A": LORA + torch.nan, "classifier.bias": BIAS}), "NaN or infinite"),
    ],
)
def test_unusable_results_are_refused(
    sequential: SequentialRunConfig, tmp_path: Path, change: Any, reason: str
) -> None:
    grid = FakeClients(NAMES)
    grid.tamper = lambda name, parts: change(parts) if name == "client-01" else None
    with pytest.raises(RunError, match=f"client 'client-01' failed: .*{reason}"):
        make_fedsgt(sequential, tmp_path / "run").start(grid.mock)


def test_barycentre_grouping_asks_for_embeddings(sequential: SequentialRunConfig, tmp_path: Path) -> None:
    sequential.grouping.method = "barycentre"
    grid = FakeClients(NAMES)
    strategy = make_fedsgt(sequential, tmp_path / "run")
    strategy.start(grid.mock)
    assert grid.embeddings_asked == 3
    assert len(strategy.ledger.live_modules()) == 9
    found = strategy.run.record["grouping"]
    assert 0 <= found["barycentre"] < found["random"]


def test_clients_drop_their_caches_at_the_end(sequential: SequentialRunConfig, tmp_path: Path) -> None:
    grid = FakeClients(NAMES)
    make_fedsgt(sequential, tmp_path / "run").start(grid.mock)
    assert sorted(grid.released) == NAMES


def test_deployed_nodes_declare_their_clients(sequential: SequentialRunConfig, tmp_path: Path) -> None:
    nodes = {7: "client-02", 8: "client-00", 9: "client-01"}
    sequential.simulation.nodes = 3
    strategy = make_fedsgt(sequential, tmp_path / "run")
    strategy.start(FakeClients(NAMES, nodes=nodes).mock)
    assert strategy.clients == {"client-00": 8, "client-01": 9, "client-02": 7}
    make_fedsgt(sequential, tmp_path / "simulated").start(FakeClients(NAMES, nodes=3).mock)
    assert hashes(tmp_path / "run") == hashes(tmp_path / "simulated")


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ({7: "client-00", 8: "client-01"}, "1 of 3 clients are not connected: client-02"),
        ({7: "client-00", 8: "client-00", 9: "client-01"}, r"declared by the nodes \[7, 8\]"),
        ({7: "client-00", 8: "client-01", 9: "client-20"}, "'client-20', which is not in this run"),
        ({7: "client-00", 8: "client-01", 9: ""}, "node 9 declares no client while others do"),
    ],
)
def test_declarations_that_do_not_fit(
    sequential: SequentialRunConfig, tmp_path: Path, nodes: dict[int, str], reason: str
) -> None:
    with pytest.raises(RunError, match=reason):
        make_fedsgt(sequential, tmp_path / "run").start(FakeClients(NAMES, nodes=nodes).mock)


def test_a_changed_module_file_is_not_sent(sequential: SequentialRunConfig, tmp_path: Path) -> None:
    def before(name: str, work: list[Work]) -> str | None:
        return "power cut" if len(work[0].prefix) == 2 else None

    with pytest.raises(RunError):
        make_fedsgt(sequential, tmp_path / "run").start(FakeClients(NAMES, before=before).mock)
    path = min((tmp_path / "run" / "modules").iterdir())
    module = PrefixModule.load(path)
    PrefixModule(module.prefix, {k: v + 1 for k, v in module.tensors.items()}).save(path)
    with pytest.raises(ModelError, match="the file was changed"):
        make_fedsgt(sequential, tmp_path / "run").start(FakeClients(NAMES).mock)


def test_another_number_of_rounds_is_refused(sequential: SequentialRunConfig, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="takes 3 rounds, not 2"):
        make_fedsgt(sequential, tmp_path / "run").start(FakeClients(NAMES).mock, num_rounds=2)
    assert PRINT  # the clients' backbone was accepted before that
