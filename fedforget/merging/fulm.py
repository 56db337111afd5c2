"""FULM: clusters of similar clients, TIES inside each, sum or mean across (Zhong et al.)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import squareform
from torch import Tensor

from fedforget.merging import kernels
from fedforget.merging.inputs import Clients
from fedforget.merging.layout import Scratch
from fedforget.merging.registry import Plan, method
from fedforget.merging.sources import Source
from fedforget.merging.ties import SCOPES, Trimming, elect
from fedforget.parameters import Scaled, between, choice, fraction
from fedforget.summaries import ClientSummary


@dataclass(frozen=True)
class FulmParameters(Scaled):
    """Parameters of FULM."""

    density: float = fraction(0.3, "share of each task vector's entries that TIES keeps inside a cluster")
    scope: str = choice("tensor", SCOPES, "trim each tensor by itself, or each client's whole vector at once")
    similarity: str = choice(
        "cosine",
        ("cosine", "domain"),
        "cosine of the flattened task vectors, or the domains that clients declare",
    )
    threshold: float = between(0.6, -1.0, 1.0, "similarity from which two forget clients are linked")
    linkage: str = choice(
        "single", ("single", "average", "complete"), "how links make clusters; single is connected components"
    )


@method(
    "fulm",
    pretty="FULM",
    reference="Zhong et al. 2025, as in FIRM, section 5.1 and appendix D.2",
    summary="gamma times the sum over clusters of their TIES merge; each retain client is a cluster",
    parameters=FulmParameters,
)
def fulm(clients: Clients, p: FulmParameters) -> Plan:
    """Plan FULM.

    FIRM gives the threshold (0.6) and not what it is a threshold of: cosine similarity of the flattened task
    vectors with connected components is an assumption. A cluster of one is trimmed like any other.
    """
    return _plan(clients, p, across_mean=False)


@method(
    "fulm_mean",
    pretty="FULM-MEAN",
    reference="FIRM, section 5.5 and appendix D.2",
    summary="FULM with the mean across clusters: for fixed clusters, FULM at gamma / number of clusters",
    parameters=FulmParameters,
)
def fulm_mean(clients: Clients, p: FulmParameters) -> Plan:
    """Plan FULM with the mean across clusters, the retain clients' included."""
    return _plan(clients, p, across_mean=True)


def _plan(clients: Clients, p: FulmParameters, *, across_mean: bool) -> Plan:
    report: dict[str, Any] = {}
    if p.similarity == "domain":
        clusters = list(clients.domains.values())
    else:
        cosines = cosine_similarities(clients, clients.forget)
        report["similarity"] = cosines.tolist()
        labels = cluster_labels(cosines, p.threshold, p.linkage)
        clusters = [
            [member for member, label in zip(clients.forget, labels, strict=True) if label == one]
            for one in dict.fromkeys(labels)
        ]
    clusters += [[member] for member in clients.retain]
    report["clusters"] = [[member.client_id for member in cluster] for cluster in clusters]
    trimmings = [Trimming(clients, cluster, p.density, p.scope) for cluster in clusters]
    scale = p.gamma / len(clusters) if across_mean else p.gamma

    def tensor(name: str) -> tuple[Tensor, dict[str, Any]]:
        trimmed = [trimming.sources(name) for trimming in trimmings]

        def block(start: int, stop: int) -> Tensor:
            centroids = [elect(cluster, start, stop) for cluster in trimmed]
            return kernels.total(centroids).mul_(scale)

        sources = [one.source for cluster in trimmed for one in cluster]
        return clients.layouts[name].assemble(clients.dtype(name), sources, block), {}

    return Plan(tensor, report)


def cosine_similarities(clients: Clients, members: list[ClientSummary]) -> NDArray[np.float64]:
    """Cosines between flattened task vectors over all tensors; a vector of zeros is similar to none.

    Streams the tensors once and keeps an ``[n, n]`` fp64 matrix of inner products.
    """
    gram = np.zeros((len(members), len(members)))
    for name in clients.names:
        for products in _inner_products(clients.sources(name, members)):
            gram += products
    norms = np.sqrt(np.diag(gram))
    scale = np.outer(norms, norms)
    cosines: NDArray[np.float64] = np.divide(gram, scale, out=np.zeros_like(gram), where=scale > 0.0)
    np.fill_diagonal(cosines, 1.0)
    return np.clip((cosines + cosines.T) / 2.0, -1.0, 1.0)


def _inner_products(sources: list[Source]) -> list[NDArray[np.float64]]:
    """Inner products of some task vectors for one weight, a matrix per block."""
    layout = sources[0].layout
    # Large buffers that come and go between small results that stay would scatter the latter over the heap.
    wide, scratch = Scratch(torch.float64), Scratch(sources[0].dtype)

    def block(start: int, stop: int) -> NDArray[np.float64]:
        size = stop - start
        stacked = wide("stacked", len(sources) * size).view(len(sources), size)
        delta, spare = scratch("delta", size), scratch("spare", size)
        for row, one in zip(stacked, sources, strict=True):
            row.copy_(one.delta(start, stop, delta, spare))
        product: NDArray[np.float64] = (stacked @ stacked.T).numpy()
        return product

    return layout.map(sources, block)


def cluster_labels(similarities: NDArray[np.float64], threshold: float, how: str) -> list[int]:
    """Cluster by similarity.

    Parameters
    ----------
    similarities : array of shape [n, n]
    threshold : float
        Two members are linked from this similarity on.
    how : {"single", "average", "complete"}
        Single linkage is the connected components of the links.

    Returns
    -------
    list of int
        A label per member.
    """
    if how == "single" or len(similarities) == 1:
        _, labels = connected_components(similarities >= threshold, directed=False)
    else:
        condensed = squareform(1.0 - similarities, checks=False)
        labels = fcluster(linkage(condensed, method=how), t=1.0 - threshold, criterion="distance")
    return [int(label) for label in labels]
