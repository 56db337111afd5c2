"""Every method through the real messages, against references trained in this process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedforget.data.corpora import load_corpus
from fedforget.data.holdings import client_records
from fedforget.errors import ConfigError, RunError, TrainingError
from fedforget.runs import RunDirectory
from fedforget.seeds import derive_seed
from fedforget.sequences.ledger import Deletion, Ledger
from fedforget.sequential import approximate, training
from fedforget.sequential.ascent import ascend_locally
from fedforget.sequential.classifiers import load_classifier
from fedforget.sequential.config import SequentialRunConfig
from fedforget.sequential.deletions import deletion, held
from fedforget.sequential.modules import module_hash
from fedforget.sequential.plan import Prefix, SequentialPlan
from fedforget.sequential.reference import train_sequences_locally
from fedforget.sequential.stack import ModuleStack
from fedforget.sequential.training import client_seed, common_seed, module_seed, train_locally
from fedforget.sequential.verify import VerificationError, verify_run
from simulations.federated_method import FederatedMethod
from simulations.methods import METHODS, Cost, create
from simulations.sequential_upkeep import prepare_retrain
from strategies.gradient_ascent import pending

pytestmark = pytest.mark.integration

Config = Callable[..., SequentialRunConfig]
Tensors = dict[str, Tensor]
CLIENTS = ("client-00", "client-01", "client-02")


def made(name: str, config: SequentialRunConfig, out: Path) -> FederatedMethod:
    method = create(name, config, out)
    assert isinstance(method, FederatedMethod)
    return method


def hashes(run: RunDirectory) -> dict[Prefix, str]:
    with Ledger(run.ledger) as ledger:
        return {prefix: module.sha256 for prefix, module in ledger.live_modules().items()}


def plan_of(run: RunDirectory) -> SequentialPlan:
    with Ledger(run.ledger) as ledger:
        return SequentialPlan.of(ledger.groups(), ledger.sequences())


def some(run: RunDirectory, client: str, slice_id: int = 0, count: int = 2) -> Deletion:
    return deletion(client, slice_id, list(held(run)[client][slice_id])[:count])


def locally(method: FederatedMethod, without: dict[tuple[str, int], Any]) -> dict[Prefix, str]:
    """Train the run's plan here, on data from which the deleted records are absent."""
    found = train_sequences_locally(method.config, plan_of(method.run), without=without)
    return {prefix: module.sha256 for prefix, module in found.items()}


def mean(results: dict[str, tuple[int, Tensors]]) -> Tensors:
    """Average by examples, in fp64 and in the order of client ids."""
    total = sum(count for count, _ in results.values())
    found = {}
    for name in sorted(next(iter(results.values()))[1]):
        value = sum(results[client][1][name].double() * results[client][0] for client in sorted(results))
        found[name] = (value / total).float()  # type: ignore[union-attr]
    return found


class Clients:
    """Clients that train here, one after the other, with none of the project's server code."""

    def __init__(self, config: SequentialRunConfig, plan: SequentialPlan) -> None:
        self.config, self.plan = config, plan
        self.root = config.seeds.training
        self.stack = ModuleStack(load_classifier(config), config.module)
        self.init = module_seed(self.root, plan, (0,))

    def train(
        self, start: Tensors | None, round_: int, names: Any = CLIENTS, gone: Any = None, **how: Any
    ) -> dict[str, tuple[int, Tensors]]:
        purpose = how.pop("purpose", "")
        found = {}
        for name in names:
            seed = client_seed(self.root, self.plan, (0,), round_, name)
            data = client_records(self.config, name, without=(gone or {}).get(name, {}))
            result = train_locally(
                self.stack, [], start, data.records(data.slices),
                dataclasses.replace(self.config.training, **how),
                init_seed=self.init, seed=derive_seed(seed, purpose) if purpose else seed,
            )  # fmt: skip
            found[name] = (result.num_examples, result.tensors)
        return found


def test_fedavg_is_the_naive_loop(config: Config, tmp_path: Path) -> None:
    method = made("FedAvg", config(), tmp_path / "run")
    method.train()
    clients = Clients(method.config, plan_of(method.run))
    current: Tensors | None = None
    for round_ in range(3):
        current = mean(clients.train(current, round_))
    assert current is not None
    assert hashes(method.run) == {(0,): module_hash(current)}
    assert all(one.ok for one in verify_run(method.run.path))
    cost = method.cost()
    assert (cost.rounds, cost.participations, cost.examples) == (3, 9, 180)
    assert cost.bytes_received > 9 * method.run.record["module_bytes"]
    assert cost.seconds > cost.client_seconds > 0
    # It does not unlearn: the first request ends its service.
    assert not method.forget(some(method.run, "client-01"))
    assert not method.recover()
    assert method.probabilities(load_corpus(method.config.data, 0).test) is None


def test_fedretrain_never_had_the_data(config: Config, tmp_path: Path) -> None:
    method = made("FedRetrain", config(), tmp_path / "run")
    method.train()
    assert not method.recover()
    request = some(method.run, "client-01")
    whole = deletion("client-02", 1, None)
    assert not method.forget(request)
    assert not method.forget(whole)
    assert method.recover()
    assert method.cost().rounds == 6
    with Ledger(method.run.ledger) as ledger:
        assert ledger.generation() == 1
    assert ("client-02", 1) not in {item[:2] for item in plan_of(method.run).groups[0]}
    assert hashes(method.run) == locally(method, {("client-01", 0): request.records})
    assert all(one.ok for one in verify_run(method.run.path))
    assert not method.recover()


def test_a_repaired_cluster_never_had_the_data_given_its_clustering(config: Config, tmp_path: Path) -> None:
    method = made("FedCIO", config(), tmp_path / "run")
    method.train()
    test = load_corpus(method.config.data, 0).test
    assert method.cost().rounds == 4  # one for the clustering
    before, clusters = hashes(method.run), method.run.record["clusters"]
    assert sorted(name for names in clusters for name in names) == [*CLIENTS]
    assert before == locally(method, {})
    request = some(method.run, clusters[0][0])
    assert method.forget(request)  # the other cluster serves
    assert set(hashes(method.run)) == {(1,)}
    alone = method.probabilities(test)
    assert method.recover()
    after = hashes(method.run)
    assert after == locally(method, {(clusters[0][0], 0): request.records})
    assert after[1,] == before[1,]
    assert after[0,] != before[0,]
    assert all(one.ok for one in verify_run(method.run.path))
    together = method.probabilities(test)
    assert alone is not None
    assert together is not None
    assert not np.allclose(alone, together)
    # A new generation clusters anew, and knows nothing of what was deleted.
    assert "generation 1" in prepare_retrain(method.run, 3, None)
    method._train()
    assert [len(names) for names in method.run.record["clusters"]] == [1, 1, 1]
    assert hashes(method.run) == locally(method, {(clusters[0][0], 0): request.records})


def test_clusters_begin_alike_and_other_methods_do_not(config: Config, tmp_path: Path) -> None:
    method = made("FedCIO", config(), tmp_path / "run")
    asked: list[int] = []
    real = training.train_locally
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            training, "train_locally",
            lambda *a, **k: asked.append(k["init_seed"]) or real(*a, **k),
        )  # fmt: skip
        method.train()
    assert set(asked) == {common_seed(method.config.seeds.training)}


def test_parameters_are_averaged_where_that_is_asked_for(config: Config, tmp_path: Path) -> None:
    method = made("FedCIO", config("clustering.aggregation=parameters"), tmp_path / "run")
    method.train()
    test = load_corpus(method.config.data, 0).test
    averaged = method.probabilities(test)
    same = dataclasses.replace(
        method.config, clustering=dataclasses.replace(method.config.clustering, aggregation="predictions")
    )
    other = made("FedCIO", same, tmp_path / "other")
    other.train()
    assert hashes(other.run) == hashes(method.run)
    predictions = other.probabilities(test)
    assert averaged is not None
    assert predictions is not None
    assert 0 < np.abs(averaged - predictions).max() < 0.2


def test_federaser_is_its_arithmetic(config: Config, tmp_path: Path) -> None:
    how = "calibration.interval=1 training.local_epochs=2 calibration.local_epochs=1"
    method = made("FedEraser", config(how), tmp_path / "run")
    method.train()
    assert all(one.ok for one in verify_run(method.run.path))  # exact until something is deleted
    assert not method.exact
    request = some(method.run, "client-01")
    assert not method.forget(request)
    assert not list(method.run.path.glob("history/*/*/client-01*"))
    assert method.recover()

    clients = Clients(method.config, plan_of(method.run))
    start = clients.stack.initial([], clients.init)
    current: Tensors = start
    stored = []
    for round_ in range(3):
        results = clients.train(current if round_ else None, round_)
        stored.append({c: {k: v[k] - current[k] for k in v} for c, (_, v) in results.items()})
        current = mean(results)
    kept = ("client-00", "client-02")
    rebuilt = {k: start[k] + mean({c: (20, stored[0][c]) for c in kept})[k] for k in start}
    for round_ in (1, 2):
        fresh = clients.train(rebuilt, round_, kept, local_epochs=1, purpose="calibration")
        steps: dict[str, tuple[int, Tensors]] = {}
        for c in kept:
            step = {}
            for k in start:
                v = (fresh[c][1][k] - rebuilt[k]).numpy().astype(np.float64)
                u = stored[round_][c][k].numpy().astype(np.float64)
                step[k] = torch.from_numpy(v * (np.linalg.norm(u) / (np.linalg.norm(v) or 1.0))).float()
            steps[c] = (20, step)
        rebuilt = {k: rebuilt[k] + mean(steps)[k] for k in start}
    with Ledger(method.run.ledger, read_only=True) as ledger:
        found = approximate.load(method.run.path, ledger)
        assert not ledger.live_modules()  # the ledger holds no module that is not exact
    assert found is not None
    for name, tensor in rebuilt.items():
        np.testing.assert_allclose(found.tensors[name].numpy(), tensor.numpy(), atol=1e-6)
    with pytest.raises(VerificationError, match="federaser, which is approximate"):
        verify_run(method.run.path)
    # Requests to everyone else: nothing is left to rebuild from.
    assert not method.forget(some(method.run, "client-00"))
    assert not method.forget(some(method.run, "client-02"))
    assert not method.recover()


def test_gradient_ascent_is_its_arithmetic(config: Config, tmp_path: Path) -> None:
    method = made("GradientAscent", config("ascent.rounds=2"), tmp_path / "run")
    method.train()
    request = some(method.run, "client-01", count=3)
    assert not method.forget(request)
    assert method.recover()

    clients = Clients(method.config, plan_of(method.run))
    current: Tensors | None = None
    for round_ in range(3):
        results = clients.train(current, round_)
        current = mean(results)
    reference = mean({c: results[c] for c in ("client-00", "client-02")})
    seeds = [derive_seed(0, "ascent", "radius", i) for i in range(10)]
    drawn = [clients.stack.initial([], seed) for seed in seeds]
    distances = [
        np.sqrt(sum(((reference[k] - one[k]).double() ** 2).sum().item() for k in one)) for one in drawn
    ]
    data = client_records(method.config, "client-01").slices[0].subset(map(str, request.records or ()))
    seed = derive_seed(client_seed(0, clients.plan, (0,), 1, "client-01"), "ascent")
    ascended = ascend_locally(
        clients.stack, reference, data, method.config.ascent,
        radius=float(np.mean(distances)) / 3, seed=seed, threads=1,
    )  # fmt: skip
    assert ascended.last_loss > ascended.first_loss
    current = ascended.tensors
    for round_ in (1, 2):
        gone = {"client-01": {0: request.records}}
        current = mean(clients.train(current, round_, gone=gone, purpose="after ascent 1"))
    with Ledger(method.run.ledger, read_only=True) as ledger:
        found = approximate.load(method.run.path, ledger)
    assert found is not None
    for name, tensor in current.items():
        np.testing.assert_allclose(found.tensors[name].numpy(), tensor.numpy(), atol=1e-5)
    with pytest.raises(VerificationError, match="gradient_ascent, which is approximate"):
        verify_run(method.run.path)
    # The next request forgets its own records alone, and the one before is not loaded any more.
    method.forget(deletion("client-01", 0, None))
    with Ledger(method.run.ledger, read_only=True) as ledger:
        done = approximate.noted(method.run.path)["requests"]
        left = pending(ledger, plan_of(method.run), done)["client-01"]
        both = pending(ledger, plan_of(method.run), [])["client-01"]
    assert (left.records, left.earlier, left.examples) == ({0: None}, {0: tuple(request.records or ())}, 7)
    assert (both.records, both.earlier, both.examples) == ({0: None}, {0: ()}, 10)
    assert method.recover()


@pytest.mark.parametrize(("name", "after"), [("FedCIO", 2), ("FedCIO", 6), ("FedEraser", 4)])
def test_an_interrupted_training_carries_on(config: Config, tmp_path: Path, name: str, after: int) -> None:
    whole = made(name, config(), tmp_path / "whole")
    whole.train()
    calls = 0
    real = training.train_locally

    def failing(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > after:
            raise TrainingError("the power is gone")
        return real(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "train_locally", failing)
        with pytest.raises(RunError, match="the power is gone"):
            made(name, config(), tmp_path / "run").train()
    method = made(name, config(), tmp_path / "run")
    method.train()
    assert hashes(method.run) == hashes(whole.run)
    assert method.run.record.get("clusters") == whole.run.record.get("clusters")
    # What had arrived was not asked for again.
    assert method.cost().visits == whole.cost().visits
    assert made(name, config(), tmp_path / "run").cost() == method.cost()


def test_sisa_and_s3t_are_fedsgt_with_one_client(config: Config, tmp_path: Path) -> None:
    one = "data.clients=1 data.slices=6 grouping.groups=6 simulation.nodes=1"
    sisa = made("SISA", config(f"{one} sequences.shards=3"), tmp_path / "sisa")
    sisa.train()
    assert set(hashes(sisa.run)) == {(0,), (0, 1), (2,), (2, 3), (4,), (4, 5)}
    (second,) = [item.slice_id for item in plan_of(sisa.run).groups[3]]
    assert sisa.forget(some(sisa.run, "client-00", second))
    assert set(hashes(sisa.run)) == {(0,), (0, 1), (2,), (4,), (4, 5)}
    assert sisa.recover()
    assert all(one.ok for one in verify_run(sisa.run.path))
    s3t = made("S3T", config(f"{one} sequences.budget=2"), tmp_path / "s3t")
    assert s3t.config.sequences.shards == 0


@pytest.mark.parametrize("name", METHODS)
def test_costs_begin_at_nothing_and_unknown_records_are_refused(
    config: Config, tmp_path: Path, name: str
) -> None:
    one = "data.clients=1 data.slices=3 simulation.nodes=1" if name in ("SISA", "S3T") else ""
    method = made(name, config(f"{one} training.rounds=1 data.max_records=30"), tmp_path / "run")
    assert dataclasses.replace(method.cost(), storage_bytes=0) == Cost()
    method.train()
    spent = method.cost()
    method.train()
    assert method.cost() == spent
    with pytest.raises(RunError, match="has no record 'digits-nine'"):
        method.forget(deletion("client-00", 0, ["digits-nine"]))
    probabilities = method.probabilities(load_corpus(method.config.data, 0).test)
    assert probabilities is not None
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    method.close()


def test_what_does_not_suit_a_method_is_said(config: Config, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'FedCEO' is not one of .* \(did you mean 'FedCIO'\?\)"):
        create("FedCEO", config(), tmp_path / "run")
    with pytest.raises(ConfigError, match="3 clients cannot form 5 clusters"):
        create("FedCIO", config("clustering.clusters=5"), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"set data\.clients to 1"):
        create("SISA", config(), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    method = made("FedCIO", config(), tmp_path / "run")
    with pytest.raises(RunError, match="holds a run of another configuration"):
        create("FedCIO", config("clustering.clusters=3"), tmp_path / "run")
    method.train()
    with pytest.raises(RunError, match="--sequences: fedcio has no sequences to choose"):
        prepare_retrain(method.run, None, 2)
