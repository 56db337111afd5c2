"""Clusters of clients by the similarity of their updates, for FedCIO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedforget.errors import PlanError
from fedforget.seeds import derive_seed

Array = NDArray[np.float64]


def cluster_clients(
    updates: Mapping[str, Array],
    num_clusters: int,
    *,
    algorithm: str = "kmeans",
    metric: str = "cosine",
    seed: int = 0,
) -> list[list[str]]:
    """Cluster clients, the same whatever order they come in and however many threads there are.

    Parameters
    ----------
    updates : mapping of client id to array, shape [d]
        What each client's training changed, flattened; float64.
    num_clusters : int
        c, from 1 to the number of clients.
    algorithm : {"kmeans", "agglomerative", "spectral"}
        scikit-learn's. Agglomerative takes average linkage. Spectral takes as affinity (1 + cosine) / 2, or
        exp(-d^2 / (2 m^2)) of the distance d with its median m.
    metric : {"cosine", "euclidean"}
        Cosine scales every update to length 1 first; for k-means that is the spherical variant's input.
    seed : int
        Of what an algorithm draws.

    Returns
    -------
    list of list of str
        Client ids in order; clusters in the order of their first client.

    Raises
    ------
    PlanError
        Too many clusters for the clients or for their distinct updates, an unknown algorithm, or updates
        of different length or not finite.
    """
    names = sorted(updates)
    if not 1 <= num_clusters <= len(names):
        raise PlanError(
            f"clustering.clusters: {len(names)} clients cannot form {num_clusters} clusters; "
            f"ask for 1 to {len(names)}"
        )
    points = _points(updates, names, metric)
    if num_clusters in (1, len(names)):  # nothing to choose
        return [names] if num_clusters == 1 else [[name] for name in names]
    labels = _labels(points, num_clusters, algorithm, metric, derive_seed(seed, "clusters"))
    members: dict[int, list[str]] = {}
    for name, label in zip(names, labels.tolist(), strict=True):
        members.setdefault(label, []).append(name)
    if len(members) < num_clusters:
        raise PlanError(
            f"the clients' updates form {len(members)} clusters and not {num_clusters}, because some are "
            "alike; lower clustering.clusters, or choose another clustering.algorithm"
        )
    return list(members.values())


def _points(updates: Mapping[str, Array], names: list[str], metric: str) -> Array:
    sizes = {name: np.shape(updates[name]) for name in names}
    for name in names:
        if len(sizes[name]) != 1 or sizes[name] != sizes[names[0]]:
            raise PlanError(
                f"client {name!r}: its update has shape {sizes[name]} and that of {names[0]!r} has "
                f"{sizes[names[0]]}; they must be flat and of one length"
            )
    points = np.stack([np.asarray(updates[name], dtype=np.float64) for name in names])
    finite = np.isfinite(points).all(axis=1)
    if not finite.all():
        raise PlanError(f"client {names[int(finite.argmin())]!r}: its update holds NaN or infinite values")
    if metric == "cosine":
        norms = np.linalg.norm(points, axis=1, keepdims=True)
        if not norms.all():
            raise PlanError(
                f"client {names[int(norms.argmin())]!r}: its update is zero, which has no direction; "
                "set clustering.metric to euclidean"
            )
        points = points / norms
    return points


def _labels(points: Array, num_clusters: int, algorithm: str, metric: str, seed: int) -> NDArray[np.int64]:
    from sklearn.cluster import AgglomerativeClustering, KMeans, SpectralClustering
    from threadpoolctl import threadpool_limits

    draws = seed % 2**32  # scikit-learn takes 32 bits
    fitted: Any
    # Sums over several threads have an order of their own.
    with threadpool_limits(1):
        if algorithm == "kmeans":
            fitted = KMeans(num_clusters, n_init=10, random_state=draws).fit(points)
        elif algorithm == "agglomerative":
            fitted = AgglomerativeClustering(num_clusters, linkage="average").fit(points)
        elif algorithm == "spectral":
            # cluster_qr draws nothing; the seed is for the eigenvectors' start.
            fitted = SpectralClustering(
                num_clusters, affinity="precomputed", assign_labels="cluster_qr", random_state=draws
            ).fit(_affinity(points, metric))
        else:
            raise PlanError(
                f"clustering.algorithm: {algorithm!r} is not one of kmeans, agglomerative, spectral"
            )
    labels: NDArray[np.int64] = np.asarray(fitted.labels_, dtype=np.int64)
    return labels


def _affinity(points: Array, metric: str) -> Array:
    if metric == "cosine":
        near: Array = (1.0 + points @ points.T) / 2.0
        return near
    squares = ((points[:, None] - points[None]) ** 2).sum(axis=-1)
    between = squares[np.triu_indices(len(points), 1)]
    median = float(np.median(between)) if len(between) else 0.0
    found: Array = np.exp(-squares / (2.0 * (median or 1.0)))
    return found
