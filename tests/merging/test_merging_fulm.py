"""FULM: who is clustered with whom, and what happens across clusters."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedforget.merging import merge
from fedforget.merging.fulm import cluster_labels
from fedforget.summaries import ClientSummary

# A chain: neighbours are alike (0.7), the ends are not (0.1).
CHAIN = np.array([[1.0, 0.7, 0.1], [0.7, 1.0, 0.7], [0.1, 0.7, 1.0]])


@pytest.mark.parametrize(
    ("how", "groups"),
    [
        ("single", 1),  # connected through the middle
        ("complete", 2),  # the ends are 0.1 apart
        ("average", 2),  # (0.7 + 0.1) / 2 = 0.4 < 0.6
    ],
)
def test_linkage(how, groups):
    assert len(set(cluster_labels(CHAIN, 0.6, how))) == groups


def test_similarity_at_the_threshold_links():
    assert cluster_labels(np.array([[1.0, 0.6], [0.6, 1.0]]), 0.6, "single") == [0, 0]
    assert cluster_labels(np.array([[1.0, 0.59], [0.59, 1.0]]), 0.6, "single") == [0, 1]


def test_clusters_and_similarities_are_reported(four):
    report = merge(four, "fulm").report
    assert report["clusters"] == [["a"], ["b", "c"], ["r"]]
    # a.b = 3 - 4 - 3 = -4, |a|^2 = 14, |b|^2 = 30.
    assert report["similarity"][0][1] == pytest.approx(-4 / np.sqrt(14 * 30), rel=1e-14)
    assert np.diag(report["similarity"]).tolist() == [1.0, 1.0, 1.0]


def test_similarity_is_over_all_tensors():
    # Alike in u, opposite and longer in v: cos = (1 - 4) / 5.
    def client(name, sign):
        deltas = {"u": torch.tensor([1.0]), "v": torch.tensor([2.0 * sign])}
        return ClientSummary(name, "forget", "bio", 1, deltas)

    report = merge([client("a", 1.0), client("b", -1.0)], "fulm").report
    assert report["similarity"][0][1] == pytest.approx(-0.6)


def test_retain_clients_are_clusters_of_their_own(make):
    # All four vectors are equal, and still no retain client joins another.
    clients = [
        make("a", [1.0]),
        make("b", [1.0]),
        make("r", [1.0], role="retain"),
        make("s", [1.0], role="retain"),
    ]
    result = merge(clients, "fulm")
    assert result.report["clusters"] == [["a", "b"], ["r"], ["s"]]
    assert result.deltas["w"].tolist() == [3.0]


def test_vector_of_zeros_is_like_no_other(make):
    clients = [make("a", [0.0, 0.0]), make("b", [1.0, 1.0]), make("c", [1.0, 1.0])]
    assert merge(clients, "fulm").report["clusters"] == [["a"], ["b", "c"]]


def test_mean_is_the_sum_over_the_number_of_clusters(federation):
    clients = federation(1, torch.float64)
    mean, total = merge(clients, "fulm_mean"), merge(clients, "fulm", gamma=1 / 6)
    assert len(mean.report["clusters"]) == 6  # random vectors are not alike
    for name, update in mean.deltas.items():
        torch.testing.assert_close(update, total.deltas[name], rtol=1e-14, atol=0.0)


def test_cluster_of_one_is_trimmed(make):
    # 0.3 of 10 keeps three entries.
    client = make("a", [float(i) for i in range(1, 11)])
    assert merge([client], "fulm").deltas["w"].nonzero().flatten().tolist() == [7, 8, 9]
