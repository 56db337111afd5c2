"""Merging over a Ray cluster of two nodes: the bits of a merge in this process."""

from __future__ import annotations

import os
import shutil
import socket

import pytest
import ray
import torch
from ray.cluster_utils import Cluster

from fedforget.errors import RunError, SummaryError
from fedforget.merging import merge
from fedforget.summaries import ClientSummary
from simulations.ray_merge import _stream, over_ray

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def cluster():
    nodes = {"num_cpus": 1, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**nodes, "include_dashboard": False})
    cluster.add_node(**nodes)
    cluster.wait_for_nodes()
    yield cluster.address
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def stored(tmp_path):
    """Paths of four clients with three weights each."""
    generator = torch.Generator().manual_seed(0)
    for i, role in enumerate(["forget", "forget", "forget", "retain"]):
        deltas = {name: torch.randn(40, 30, generator=generator).bfloat16() for name in "abc"}
        fishers = {name: torch.rand(40, 30, generator=generator).bfloat16() for name in "abc"}
        ClientSummary(f"c{i}", role, "x", 1, deltas, fishers).save(tmp_path / f"c{i}")
    return sorted(tmp_path.iterdir())


def test_bits_and_reports_are_those_of_a_local_merge(cluster, stored):
    clients = [ClientSummary.load(path) for path in stored]
    # FULM decides over all tensors before the first; FIRM projects.
    for method, parameters in (("fulm", {}), ("firm", {"epsilon": 1e-3})):
        local = merge(clients, method, **parameters)
        merged = list(over_ray(cluster)(clients, method, **parameters))
        assert [name for name, _, _ in merged] == list(local.deltas)
        for name, delta, report in merged:
            assert torch.equal(delta, local.deltas[name])
            assert report == local.report["tensors"][name]
    # A client's file that a node does not see.
    shutil.rmtree(stored[1])
    with pytest.raises(SummaryError, match=r"c1/deltas\.safetensors: was there and cannot be opened"):
        list(over_ray(cluster)(clients, "sum"))


def test_a_weight_whose_process_dies_is_merged_by_another(cluster, tmp_path):
    class Dying:  # defined here, so that it travels by value
        names = ("a",)

        def tensor(self, name):
            died = tmp_path / name
            if not died.exists():
                died.touch()
                os._exit(1)
            return torch.ones(2), {"name": name}

    ((name, delta, report),) = _stream(Dying(), cluster)
    assert (name, delta.tolist(), report) == ("a", [1.0, 1.0], {"name": "a"})


def test_no_cluster_is_told_in_a_sentence(stored, monkeypatch):
    def refuse(**options):
        raise ConnectionError("Could not find any running Ray instance.\nPlease specify")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    clients = [ClientSummary.load(path) for path in stored]
    with pytest.raises(RunError, match="--ray-address auto: no Ray cluster answers there"):
        list(over_ray("auto")(clients, "sum"))
    monkeypatch.setattr(ray, "init", lambda **options: pytest.fail("Ray would try for minutes"))
    with socket.socket() as bound:  # bound and not listening: nobody else can take the port
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        for one in (address, f"ray://{address}", "127.0.0.1:99999999"):
            with pytest.raises(RunError, match=f"--ray-address {one}: no Ray cluster answers there"):
                list(over_ray(one)(clients, "sum"))
