"""What a client packs is what the server unpacks; nothing else gets through."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedforget.codecs import pack, unpack
from fedforget.errors import SummaryError
from fedforget.summaries import ClientSummary, LoraFactors


def a_summary(dtype: torch.dtype = torch.float32, factors: bool = True) -> ClientSummary:
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    delta = LoraFactors(draw(2, 5), draw(7, 2), 0.1) if factors else draw(7, 5)
    return ClientSummary(
        client_id="forget-a-0",
        role="forget",
        domain="a",
        num_examples=3,
        deltas={"w": delta, "v": draw(4, 3)},
        fisher={"w": draw(7, 5).square(), "v": draw(4, 3).square()},
    )


def same(a: ClientSummary, b: ClientSummary) -> None:
    assert (a.client_id, a.role, a.domain, a.num_examples) == (b.client_id, b.role, b.domain, b.num_examples)
    assert set(a.deltas) == set(b.deltas)
    for name, x in a.deltas.items():
        y = b.deltas[name]
        assert type(x) is type(y)
        if isinstance(x, LoraFactors) and isinstance(y, LoraFactors):
            assert x.scale == y.scale
            assert torch.equal(x.A, y.A)
            assert torch.equal(x.B, y.B)
        assert x.dtype == y.dtype
        assert x.shape == y.shape
    assert set(a.fisher) == set(b.fisher)
    for name, f in a.fisher.items():
        assert b.fisher[name].dtype == f.dtype
        assert torch.equal(b.fisher[name], f)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("bucket_bytes", [1, 64, 2**20])
@pytest.mark.parametrize("factors", [True, False])
def test_round_trip_keeps_every_bit(dtype: torch.dtype, bucket_bytes: int, factors: bool) -> None:
    summary = a_summary(dtype, factors)
    buckets, manifest = pack(summary, bucket_bytes)
    assert all(bucket.dtype == np.uint8 and bucket.ndim == 1 for bucket in buckets)
    assert max(bucket.nbytes for bucket in buckets) <= max(16, bucket_bytes)
    same(summary, unpack(buckets, manifest))


def test_read_only_and_misaligned_buckets_are_read() -> None:
    buckets, manifest = pack(a_summary(torch.float64))
    shifted = [np.frombuffer(b"x" + b.tobytes(), np.uint8)[1:] for b in buckets]
    same(a_summary(torch.float64), unpack(shifted, manifest))


def test_one_bucket_is_not_copied() -> None:
    buckets, manifest = pack(a_summary())
    summary = unpack(buckets, manifest)
    start = buckets[0].ctypes.data
    assert start <= summary.fisher["v"].data_ptr() < start + buckets[0].nbytes


def test_an_empty_fisher_travels() -> None:
    summary = a_summary()
    summary.fisher = {}
    assert unpack(*pack(summary)).fisher == {}


def test_an_invalid_summary_is_not_sent() -> None:
    summary = a_summary()
    summary.fisher = {"w": summary.fisher["w"], "v": -summary.fisher["v"]}
    with pytest.raises(SummaryError, match="negative"):
        pack(summary)


def _edit(path: list[object], value: object):  # type: ignore[no-untyped-def]
    def edit(manifest: dict) -> None:  # type: ignore[type-arg]
        node: object = manifest
        for key in path[:-1]:
            node = node[key]  # type: ignore[index]
        node[path[-1]] = value  # type: ignore[index]

    return edit


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (_edit(["format"], 99), "format 99"),
        (_edit(["client_id"], 5), "'client_id'"),
        (_edit(["role"], None), "'role'"),
        (_edit(["num_examples"], True), "'num_examples'"),
        (_edit(["num_examples"], -1), "'num_examples'"),
        (_edit(["tensors", 0, "shape"], [0, 2**47, 2**47]), "which no tensor can have"),
        (_edit(["scales"], {"w": "x"}), "scale of tensor 'w'"),
        (_edit(["scales"], {"w": float("nan")}), "scale of tensor 'w'"),
        (_edit(["scales"], {}), "both LoRA factors and a scale"),
        (_edit(["buckets"], []), "1 buckets arrived"),
        (_edit(["buckets", 0], 3), "bucket 0"),
        (_edit(["buckets", 0, "nbytes"], 8), "declared 8"),
        (_edit(["buckets", 0, "sha256"], "00"), "SHA-256"),
        (_edit(["tensors", 0], "x"), "not a JSON object"),
        (_edit(["tensors", 0, "kind"], "weights"), "unknown kind"),
        (_edit(["tensors", 0, "dtype"], "object"), "unknown dtype"),
        (_edit(["tensors", 0, "shape"], [2**47, 2**47]), "does not take"),
        (_edit(["tensors", 0, "shape"], [-1, 2]), "list of sizes"),
        (_edit(["tensors", 0, "offset"], 2**40), "bytes arrived"),
        (_edit(["tensors", 0, "offset"], 8), "not a multiple"),
        (_edit(["tensors", 1, "offset"], 0), "overlaps"),
        (_edit(["tensors", 0, "name"], "w"), "declared both|twice"),
    ],
)
def test_a_false_manifest_is_refused(edit, says: str) -> None:  # type: ignore[no-untyped-def]
    buckets, manifest = pack(a_summary())
    raw = json.loads(manifest)
    edit(raw)
    with pytest.raises(SummaryError, match=says) as caught:
        unpack(buckets, json.dumps(raw), client="forget-a-0")
    assert "client" in str(caught.value)


@pytest.mark.parametrize("manifest", ["", "{", "[]", "3", "[" * 100_000, '{"format": 1}', "1" * 5000])
def test_what_is_no_manifest_is_refused(manifest: str) -> None:
    buckets, _ = pack(a_summary())
    with pytest.raises(SummaryError, match="client 'c7'"):
        unpack(buckets, manifest, client="c7")


@pytest.mark.parametrize(
    "bucket", [np.zeros(3, np.uint8), np.zeros((2, 2), np.uint8), np.zeros(4, np.float32), None, b"abc"]
)
def test_other_buckets_are_refused(bucket: object) -> None:
    _, manifest = pack(a_summary())
    with pytest.raises(SummaryError, match="client 'forget-a-0': bucket 0"):
        unpack([bucket], manifest)  # type: ignore[list-item]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_corruption_is_found_or_harmless(data: st.DataObject) -> None:
    """A corrupted summary is a SummaryError, or still the right bytes; it is never another error."""
    buckets, manifest = pack(a_summary(), 128)
    buckets = [bucket.copy() for bucket in buckets]
    what = data.draw(st.sampled_from(["flip", "truncate", "drop", "json", "text"]))
    index = data.draw(st.integers(0, len(buckets) - 1))
    if what == "flip":
        at = data.draw(st.integers(0, buckets[index].nbytes - 1))
        buckets[index][at] ^= data.draw(st.integers(1, 255))
    elif what == "truncate":
        buckets[index] = buckets[index][: data.draw(st.integers(0, buckets[index].nbytes - 1))]
    elif what == "drop":
        del buckets[index]
    elif what == "json":
        raw = json.loads(manifest)
        node = raw
        while isinstance(node, dict | list) and node:
            key = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
            if not isinstance(node[key], dict | list) or not node[key] or data.draw(st.booleans()):
                node[key] = data.draw(JSON)
                break
            node = node[key]
        manifest = json.dumps(raw)
    else:
        start = data.draw(st.integers(0, len(manifest)))
        manifest = manifest[:start] + data.draw(st.text(max_size=4)) + manifest[start + 1 :]
    before = copy.deepcopy(manifest)
    try:
        summary = unpack(buckets, manifest)
    except SummaryError:
        assert what in {"flip", "truncate", "drop", "json", "text"}
    else:
        assert what in {"json", "text"}
        assert sum(f.nbytes for f in summary.fisher.values()) <= sum(b.nbytes for b in buckets)
    assert manifest == before
