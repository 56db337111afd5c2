"""Partitions: disjoint, exhaustive, seeded, and honest about what cannot be done."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedforget.data import by_domain, dirichlet, iid
from fedforget.errors import DataError


@given(n=st.integers(0, 200), shards=st.integers(1, 20), seed=st.integers(0, 2**63 - 1))
@settings(max_examples=60, deadline=None)
def test_iid_shards_are_disjoint_exhaustive_and_even(n: int, shards: int, seed: int) -> None:
    parts = iid(n, shards, seed)
    assert len(parts) == shards
    assert sorted(i for part in parts for i in part) == list(range(n))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert parts == iid(n, shards, seed)


def test_iid_depends_on_the_seed() -> None:
    assert iid(50, 5, 0) != iid(50, 5, 1)


def test_iid_refuses_no_shards() -> None:
    with pytest.raises(DataError, match="0 shards"):
        iid(5, 0, 0)


@given(
    labels=st.lists(st.integers(0, 4), min_size=40, max_size=120),
    clients=st.integers(1, 5),
    alpha=st.floats(0.3, 100.0),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=60, deadline=None)
def test_dirichlet_is_disjoint_exhaustive_and_leaves_no_client_empty(
    labels: list[int], clients: int, alpha: float, seed: int
) -> None:
    parts = dirichlet(labels, clients, alpha, seed)
    assert len(parts) == clients
    assert sorted(i for part in parts for i in part) == list(range(len(labels)))
    assert min(map(len, parts)) >= 1
    assert parts == dirichlet(labels, clients, alpha, seed)


def test_dirichlet_skew_grows_as_alpha_shrinks() -> None:
    labels = [i % 10 for i in range(2000)]

    def largest_share(alpha: float) -> float:
        """Mean over clients of the share of a client's most frequent label."""
        shares = []
        for part in dirichlet(labels, 10, alpha, seed=3):
            counts = [len(indices) for indices in by_domain([labels[i] for i in part]).values()]
            shares.append(max(counts) / sum(counts))
        return sum(shares) / len(shares)

    # With ten equal labels an IID client's largest share is near 0.1.
    assert largest_share(1e4) < 0.15 < 0.3 < largest_share(0.1)


def test_dirichlet_of_one_client_is_everything() -> None:
    assert dirichlet(["a", "b", "a"], 1, 0.5, 0) == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("labels", "clients", "alpha", "message"),
    [
        (["a", "b"], 3, 1.0, "2 examples cannot give 3 clients 1 each"),
        (["a", "b"], 0, 1.0, "0 clients"),
        (["a", "b"], 1, 0.0, "alpha is 0.0"),
        (["a", "b"], 1, float("nan"), "alpha is nan"),
        # One label and a tiny alpha: practically every draw gives one client everything.
        (["a"] * 20, 10, 1e-6, "no Dirichlet"),
    ],
)
def test_dirichlet_refuses_what_it_cannot_do(
    labels: list[str], clients: int, alpha: float, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        dirichlet(labels, clients, alpha, seed=0)


def test_dirichlet_honours_a_higher_minimum() -> None:
    parts = dirichlet([i % 3 for i in range(90)], 5, 0.5, seed=1, min_examples=8)
    assert min(map(len, parts)) >= 8


def test_by_domain_keeps_the_order_of_appearance() -> None:
    assert by_domain(["b", "a", "b"]) == {"b": [0, 2], "a": [1]}
