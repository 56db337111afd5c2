"""Clusters of clients: what is found, that it repeats, and how it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fedforget.errors import PlanError
from fedforget.sequential.clustering import cluster_clients

ALGORITHMS = ("kmeans", "agglomerative", "spectral")
PLANTED = [["c0", "c3", "c6"], ["c1", "c4", "c7"], ["c2", "c5", "c8"]]


def planted(noise: float = 0.1) -> dict[str, NDArray[np.float64]]:
    """Nine clients around three orthogonal directions."""
    draw = np.random.default_rng(0)
    centres = np.eye(3, 40) * 5.0
    return {f"c{i}": centres[i % 3] + noise * draw.standard_normal(40) for i in range(9)}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_planted_clusters_are_found(algorithm: str, metric: str) -> None:
    assert cluster_clients(planted(), 3, algorithm=algorithm, metric=metric) == PLANTED


def test_cosine_does_not_see_length_and_euclidean_does() -> None:
    updates = {name: vector * (10.0 if name in ("c0", "c1") else 1.0) for name, vector in planted().items()}
    assert cluster_clients(updates, 3, metric="cosine") == PLANTED
    assert cluster_clients(updates, 3, metric="euclidean") != PLANTED


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_order_of_clients_changes_nothing_and_it_repeats(algorithm: str) -> None:
    updates = planted(noise=3.0)  # no clear clusters: whatever is arbitrary would show
    found = cluster_clients(updates, 4, algorithm=algorithm, seed=1)
    turned = dict(sorted(updates.items(), reverse=True))
    assert cluster_clients(turned, 4, algorithm=algorithm, seed=1) == found
    assert sorted(name for cluster in found for name in cluster) == sorted(updates)
    assert [cluster[0] for cluster in found] == sorted(cluster[0] for cluster in found)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_cluster_and_one_per_client(algorithm: str) -> None:
    updates = planted()
    assert cluster_clients(updates, 1, algorithm=algorithm) == [sorted(updates)]
    assert cluster_clients(updates, 9, algorithm=algorithm) == [[name] for name in sorted(updates)]


@pytest.mark.parametrize(
    ("updates", "clusters", "options", "said"),
    [
        ({"a": np.ones(3), "b": np.ones(3)}, 3, {}, "2 clients cannot form 3 clusters"),
        (planted(), 0, {}, "cannot form 0 clusters"),
        (planted(), 3, {"algorithm": "dbscan"}, "'dbscan' is not one of"),
        ({"a": np.ones(3), "b": np.ones(4)}, 1, {}, "client 'b': its update has shape"),
        ({"a": np.ones(3), "b": np.full(3, np.nan)}, 1, {}, "client 'b': its update holds NaN"),
        ({"a": np.zeros(3), "b": np.ones(3)}, 1, {}, "client 'a': its update is zero"),
    ],
)
def test_what_cannot_be_clustered_is_said(updates, clusters, options, said) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(PlanError, match=said):
        cluster_clients(updates, clusters, **options)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_updates_that_are_all_alike_do_not_pass_for_clusters() -> None:
    with pytest.raises(PlanError, match="form 1 clusters and not 3"):
        cluster_clients({f"c{i}": np.ones(5) for i in range(6)}, 3)
