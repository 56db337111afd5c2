"""A module depends on the ordered prefix it was trained on and on nothing else, to the bit."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from fedforget.data.holdings import ClientRecords, client_records
from fedforget.data.records import Records
from fedforget.reproducible import deterministic
from fedforget.sequential.averaging import fedavg
from fedforget.sequential.modules import PrefixModule
from fedforget.sequential.reference import held_by_clients, train_sequences_locally
from fedforget.sequential.stack import ModuleStack
from fedforget.sequential.training import client_seed, module_seed
from fedforget.sequential.verify import VerificationError, require, verify_prefixes


def test_absent_groups_change_no_bit(trained, stack):
    prefix = trained.plan.sequences[0][:2]
    absent = next(g for g in range(3) if g not in prefix)
    data = held_by_clients(trained.config, trained.plan, [prefix], {})
    # Physically absent: no record of the third group is reachable from what the training is given.
    gone = {item[:2] for item in trained.plan.groups[absent]}
    held = {(client, i) for client, own in data.items() for i in own.slices}
    assert held.isdisjoint(gone)
    again = train_sequences_locally(trained.config, trained.plan, prefixes=[prefix], data=data, stack=stack)
    assert [m.sha256 for m in again.values()] == [trained.modules[p].sha256 for p in again]


def test_other_data_in_other_groups_change_no_bit(trained, stack):
    prefix = trained.plan.sequences[1][:2]
    absent = next(g for g in range(3) if g not in prefix)
    data = {}
    for client in trained.plan.clients(range(3)):
        held = client_records(trained.config, client)
        noise = set(trained.plan.client_slices((absent,), client))
        data[client] = ClientRecords(
            client,
            {
                i: Records(part.ids, np.zeros_like(part.inputs), 9 - part.labels) if i in noise else part
                for i, part in held.slices.items()
            },
        )
    again = train_sequences_locally(trained.config, trained.plan, prefixes=[prefix], data=data, stack=stack)
    assert again[prefix].sha256 == trained.modules[prefix].sha256


def test_the_prefix_is_ordered(trained):
    a, b, c = trained.plan.sequences[0]
    shared = [trained.modules[p] for p in trained.plan.tree.nodes if set(p) == {a, b, c}]
    assert len({m.sha256 for m in shared}) == len(shared) == 3


def test_a_deleted_record_changes_the_modules_that_saw_it(trained, stack):
    prefix = trained.plan.sequences[0][:1]
    client, number, _ = trained.plan.groups[prefix[0]][0]
    name = client_records(trained.config, client).slices[number].ids[0]
    again = train_sequences_locally(
        trained.config, trained.plan, prefixes=[prefix], without={(client, number): [name]}, stack=stack
    )
    assert again[prefix].sha256 != trained.modules[prefix].sha256


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_of_the_process_do_not_matter(trained, stack, threads):
    before = torch.get_num_threads()
    prefix = trained.plan.sequences[2][:1]
    torch.set_num_threads(threads)
    try:
        torch.manual_seed(threads)
        again = train_sequences_locally(trained.config, trained.plan, prefixes=[prefix], stack=stack)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert again[prefix].sha256 == trained.modules[prefix].sha256


def test_deterministic_mode_is_restored():
    before = torch.get_deterministic_debug_mode(), torch.get_num_threads()
    with deterministic(2):
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.get_num_threads() == 2
    assert (torch.get_deterministic_debug_mode(), torch.get_num_threads()) == before


def test_several_rounds_average_and_continue(trained, stack):
    training = dataclasses.replace(trained.config.training, rounds_per_phase=2)
    config = dataclasses.replace(trained.config, training=training)
    prefix = trained.plan.sequences[0][:1]
    one, two = (
        train_sequences_locally(config, trained.plan, prefixes=[prefix], stack=stack) for _ in range(2)
    )
    assert one[prefix].sha256 == two[prefix].sha256 != trained.modules[prefix].sha256


def test_seeds_ignore_sizes_and_tell_everything_else_apart(trained):
    plan = trained.plan
    shrunk = dataclasses.replace(
        plan, groups=tuple(tuple(item._replace(size=1) for item in group) for group in plan.groups)
    )
    seen = {
        client_seed(0, plan, prefix, round_, client)
        for prefix in ((0,), (1,), (0, 1), (1, 0))
        for round_ in (0, 1)
        for client in ("client-00", "client-01")
    }
    assert len(seen) == 16
    assert module_seed(0, plan, (0, 1)) == module_seed(0, shrunk, (0, 1))
    assert client_seed(0, plan, (0,), 0, "client-00") == client_seed(0, shrunk, (0,), 0, "client-00")


def test_verify_accepts_what_the_data_give(trained):
    prefixes = [trained.plan.sequences[0][:2], trained.plan.sequences[1][:1]]
    results = verify_prefixes(trained.config, trained.plan, trained.modules, prefixes)
    assert [r.prefix for r in results] == [prefixes[0][:1], prefixes[0], prefixes[1]]
    assert all(r.ok and r.stored == r.retrained and not r.difference for r in results)
    require(results)


def test_verify_catches_a_leaky_head(trained):
    """After the last group is deleted, the prefix keeps the head of the whole sequence: a leak."""
    whole = trained.plan.sequences[0]
    served = whole[:2]
    head = {k: v for k, v in trained.modules[whole].tensors.items() if k.startswith("classifier.")}
    leaky = PrefixModule(served, trained.modules[served].tensors | head)
    results = verify_prefixes(trained.config, trained.plan, {**trained.modules, served: leaky}, [served])
    assert [r.ok for r in results] == [True, False]
    assert results[1].difference.startswith("classifier.bias differs")
    with pytest.raises(VerificationError, match=r"classifier\.bias"):
        require(results)


def test_verify_catches_a_head_that_outlives_its_prefix(trained, monkeypatch):
    """Code with the leak: a first module's head starts where the module trained before it ended."""
    initial, result = ModuleStack.initial, ModuleStack.trained

    def leaky_initial(self, frozen, seed):
        kept = {} if frozen else self.__dict__.get("kept", {})
        return initial(self, frozen, seed) | kept

    def leaky_trained(self):
        tensors = result(self)
        self.kept = {k: v for k, v in tensors.items() if k.startswith("classifier.")}
        return tensors

    monkeypatch.setattr(ModuleStack, "initial", leaky_initial)
    monkeypatch.setattr(ModuleStack, "trained", leaky_trained)
    firsts = trained.plan.tree.depth(1)
    stored = train_sequences_locally(trained.config, trained.plan, prefixes=firsts)
    # The verification trains a prefix by itself, so it catches the leak even when it runs the same code.
    leaky = verify_prefixes(trained.config, trained.plan, stored, [firsts[-1]])
    monkeypatch.undo()
    honest = verify_prefixes(trained.config, trained.plan, stored, [firsts[-1]])
    assert [one.ok for one in (*leaky, *honest)] == [False, False]
    assert honest[0].retrained == trained.modules[firsts[-1]].sha256


def test_fedavg_weights_by_examples_and_ignores_order():
    parts = [("b", 3, {"w": torch.tensor([1.0])}), ("a", 1, {"w": torch.tensor([5.0])})]
    average, examples = fedavg(parts)
    # (1 * 5 + 3 * 1) / 4
    assert average["w"].tolist() == [2.0]
    assert average["w"].dtype == torch.float32
    assert examples == 4
    assert torch.equal(fedavg(parts[::-1])[0]["w"], average["w"])
