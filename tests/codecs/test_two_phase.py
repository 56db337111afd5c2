"""Two-phase pooling: the candidates suffice for the pooled top alpha, ties included."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from codecs_fakes import log_normal
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedforget.codecs.exchange import PlacesRequest, pack_values, unpack_places, unpack_values
from fedforget.codecs.top import sparsify
from fedforget.errors import SummaryError
from fedforget.merging.selection import kept_count
from fedforget.sparse_fisher import SparseFisher
from fedforget.two_phase import candidates, check_answer, completed, missing


def pooled(fishers: list[Tensor], dtype: torch.dtype = torch.float64) -> Tensor:
    total = fishers[0].to(dtype)
    for one in fishers[1:]:
        total = total + one.to(dtype)
    return total / len(fishers)


def top(mean: Tensor, alpha: float) -> Tensor:
    threshold = mean.sort(descending=True).values[kept_count(mean.numel(), alpha) - 1]
    return mean.where(mean >= threshold, 0)


def test_by_hand() -> None:
    # Each sends its two largest of six. low = mean of what was sent: [5, 4, 0, 0, 2, 2], so that B = 4
    # for k = 2. The rests are 3 and 1: at places 4 and 5 high is 2 + 1/2 and 2 + 3/2, both below B.
    a = torch.tensor([6.0, 3.0, 0.0, 0.0, 4.0, 1.0])
    b = torch.tensor([4.0, 8.0, 0.0, 1.0, 0.0, 0.5])
    sent = [sparsify(a, 0.34), sparsify(b, 0.34)]
    assert [one.indices.tolist() for one in sent] == [[0, 4], [0, 1]]
    assert [one.rest for one in sent] == [3.0, 1.0]
    places = candidates(sent, 0.34)
    assert places is not None
    assert places.tolist() == [0, 1]
    assert missing(places, sent[0]).tolist() == [1]
    assert missing(places, sent[1]).tolist() == []
    whole = [completed(places, sent[0], torch.tensor([3.0])), completed(places, sent[1], torch.tensor([]))]
    assert pooled([one.dense() for one in whole]).tolist() == [5.0, 5.5, 0.0, 0.0, 0.0, 0.0]


def test_an_undecided_bound_asks_for_everything() -> None:
    # Nobody's largest is the mean's largest: the rest of 4 each could be (and is) at one place.
    a, b = torch.tensor([5.0, 0.0, 4.0]), torch.tensor([0.0, 5.0, 4.0])
    assert candidates([sparsify(a, 0.34), sparsify(b, 0.34)], 0.34) is None
    # Fewer entries than k, and more are left.
    assert candidates([sparsify(a, 0.34)] * 2, 0.67) is None


def test_entries_that_are_all_sent_decide_everything() -> None:
    a, b = torch.tensor([5.0, 0.0, 0.0]), torch.tensor([0.0, 1e-40, 0.0])
    places = candidates([sparsify(a, 1.0), sparsify(b, 1.0)], 0.9)
    assert places is not None
    assert places.tolist() == [0, 1]


def test_numbers_too_small_to_round_are_asked_for_whole() -> None:
    tiny = torch.tensor([5.0, 3.0, 1.0, 1.0]) * 1e-38
    assert candidates([sparsify(tiny, 0.5), sparsify(tiny, 0.5)], 0.25) is None


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(2, 5),
    levels=st.sampled_from([3, 12, 1000]),
    share=st.sampled_from([0.1, 0.2, 0.5]),
    alpha=st.sampled_from([0.01, 0.1, 0.2]),
    common=st.floats(0.0, 1.0),
)
def test_the_candidates_hold_the_pooled_top(
    seed: int, n: int, levels: int, share: float, alpha: float, common: float
) -> None:
    """Few levels make ties at every threshold; clients agree on a part of their Fishers."""
    draw = torch.Generator().manual_seed(seed)
    shared = torch.randn(150, generator=draw)
    fishers = []
    for _ in range(n):
        noise = torch.randn(150, generator=draw)
        values = (2.0 * (common * shared + (1 - common) * noise)).exp_()
        fishers.append((values * levels / 100).round().bfloat16())
    sent = [sparsify(one, share) for one in fishers]
    places = candidates(sent, alpha)
    if places is None:
        return
    whole = []
    for one, fisher in zip(sent, fishers, strict=True):
        rest = missing(places, one)
        assert not set(rest.tolist()) & set(one.indices.tolist())
        whole.append(completed(places, one, fisher[rest.long()]))
        whole[-1].validate("x")
        assert torch.equal(whole[-1].dense()[places.long()], fisher[places.long()])
    for dtype in (torch.float64, torch.float32):
        dense, sparse = pooled(fishers, dtype), pooled([one.dense() for one in whole], dtype)
        for smaller in (alpha, alpha / 2):
            assert torch.equal(top(dense, smaller), top(sparse, smaller))


def test_the_bound_decides_where_clients_agree() -> None:
    shared = log_normal(20_000, 9, sigma=1.5).float()
    fishers = [(shared * log_normal(20_000, i, sigma=0.7).float() * 1e8).bfloat16() for i in range(3)]
    places = candidates([sparsify(one, 0.15) for one in fishers], 0.1)
    assert places is not None
    assert 2000 <= places.numel() < 5000
    asked = sum(missing(places, sparsify(one, 0.15)).numel() for one in fishers)
    assert asked < 3 * 20_000 * 0.1


def a_request() -> PlacesRequest:
    request = PlacesRequest()
    request.add("w", torch.tensor([0, 3, 700]))
    request.add("v", None)
    request.add("u", torch.zeros(0, dtype=torch.int32))
    return request


SHAPES = {"w": (40, 20), "v": (3,), "u": (2, 2)}


def test_a_request_and_its_answer_travel() -> None:
    found = unpack_places(*a_request().pack(), SHAPES, "client 'a'")
    assert found["v"] is None
    assert [found[name].tolist() for name in ("w", "u")] == [[0, 3, 700], []]  # type: ignore[union-attr]
    values = {"w": torch.rand(3).bfloat16(), "v": torch.rand(3), "u": torch.zeros(0).bfloat16()}
    expected = {name: (one.numel(), one.dtype) for name, one in values.items()}
    back = unpack_values(*pack_values(values), expected, "client 'a'")
    assert all(torch.equal(back[name], one) for name, one in values.items())


@pytest.mark.parametrize(
    ("expected", "says"),
    [
        ({"w": (4, torch.float32)}, "decompresses to 3 bytes, expected 4"),
        ({"w": (3, torch.bfloat16)}, "4 parts, not in 2"),
        ({"x": (3, torch.float32)}, "does not name the tensors"),
    ],
)
def test_another_answer_is_refused(expected: dict[str, tuple[int, torch.dtype]], says: str) -> None:
    with pytest.raises(SummaryError, match=f"client 'a'.*{says}"):
        unpack_values(*pack_values({"w": torch.rand(3)}), expected, "client 'a'")


def test_a_request_beyond_the_tensor_is_refused() -> None:
    with pytest.raises(SummaryError, match="client 'a': the request for tensor 'w' has places outside"):
        unpack_places(*a_request().pack(), {**SHAPES, "w": (30, 20)}, "client 'a'")


@settings(max_examples=100, deadline=None, derandomize=True)
@given(data=st.data())
def test_hostile_exchanges_are_refused_or_harmless(data: st.DataObject) -> None:
    buckets, manifest = a_request().pack()
    start = data.draw(st.integers(0, len(manifest)))
    manifest = manifest[:start] + data.draw(st.text('0123456789[]{},:-"', max_size=3)) + manifest[start + 1 :]
    told = "client 'a' asks for what is there"
    try:
        found = unpack_places([np.array(one) for one in buckets], manifest, SHAPES, "client 'a'")
    except SummaryError as error:
        told = str(error)
    else:
        assert all(places is None or places.numel() <= 800 for places in found.values())
    assert "client 'a'" in told


def test_an_answer_that_contradicts_the_first_trip_is_refused() -> None:
    whole = torch.tensor([1.0, 5.0, 2.0, 4.0])
    sent = sparsify(whole, 0.5)  # 5 and 4; the rest is 2
    check_answer(sent, torch.tensor([2.0, 1.0]), False, "x")
    check_answer(sent, torch.zeros(0), False, "x")
    check_answer(sent, whole, True, "x")
    for values, says in (
        (torch.tensor([1.0, 2.5]), "x: 2.5 is among .* at most 2 was said"),
        (torch.tensor([torch.nan]), "nan is among"),
        (torch.tensor([1.0, 5.0, 3.0, 4.0]), "x: 3 is among"),
        (torch.tensor([1.0, 5.0, 2.0, 4.5]), "holds other values than were sent first"),
    ):
        with pytest.raises(SummaryError, match=says):
            check_answer(sent, values, values.numel() == 4, "x")


def test_rest_is_checked() -> None:
    for rest in (-1.0, float("nan"), float("inf")):
        with pytest.raises(SummaryError, match="its other entries are at most"):
            SparseFisher((3,), torch.tensor([1]), torch.ones(1), rest).validate("client 'a'")
