"""The Fisher's codecs: what they keep, how small they are, and what they refuse to decode."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from codecs_fakes import log_normal, resealed, summary_with
from hypothesis import given, settings
from hypothesis import strategies as st

from fedforget.codecs import Instruction, pack, packing, traffic, unpack
from fedforget.codecs.frames import compress, decompress
from fedforget.codecs.top import decode_places, encode_places, sparsify
from fedforget.errors import SummaryError
from fedforget.merging.selection import kept_count
from fedforget.sparse_fisher import Coverage, SparseFisher, dense_fisher

TOP = Instruction("top", 0.1)
PLANES = Instruction("planes")
LOG8 = Instruction("log8", approximate=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(7, 5), (0, 3), (1,), (3, 2, 2)])
@pytest.mark.parametrize("bucket_bytes", [16, 2**20])
def test_planes_keep_every_bit(dtype: torch.dtype, shape: tuple[int, ...], bucket_bytes: int) -> None:
    fisher = torch.rand(shape).to(dtype)
    summary = summary_with({"w": fisher})
    back = unpack(*pack(summary, bucket_bytes, PLANES))
    assert back.coverage == Coverage()
    assert isinstance(back.fisher["w"], torch.Tensor)
    assert back.fisher["w"].dtype == dtype
    assert torch.equal(back.fisher["w"], fisher)
    back.validate()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("share", [1e-9, 0.1, 0.29, 0.5, 1.0])
def test_the_top_holds_the_largest_with_ties(dtype: torch.dtype, share: float) -> None:
    # 30 distinct values over 200 places: the threshold is always tied.
    draw = torch.Generator().manual_seed(4)
    fisher = torch.randint(0, 30, (20, 10), generator=draw).to(dtype)
    kept = sparsify(fisher, share)
    threshold = fisher.flatten().sort(descending=True).values[kept_count(200, share) - 1]
    expected = fisher.where(fisher >= threshold, 0)
    assert torch.equal(kept.dense(), expected)
    assert int(kept.values.numel()) == int((expected > 0).sum())
    back = unpack(*pack(summary_with({"w": fisher}), fisher=Instruction("top", share)))
    assert isinstance(back.fisher["w"], SparseFisher)
    assert torch.equal(back.fisher["w"].dense(), expected)
    assert back.coverage == Coverage("top", share)
    back.validate()


def test_a_fisher_of_zeros_has_no_top() -> None:
    for zero in (torch.zeros(9), torch.full((9,), -0.0), torch.zeros(0)):
        kept = sparsify(zero.bfloat16(), 0.3)
        assert kept.values.numel() == 0
        assert torch.equal(kept.dense(), torch.zeros(zero.shape).bfloat16())


@pytest.mark.parametrize(
    ("places", "stream"),
    [
        # A gap of 254 ends in its byte; 255 needs another one; 510 two more.
        ([0], [0]),
        ([254], [254]),
        ([255], [255, 0]),
        ([510, 511], [255, 255, 0, 0]),
        ([], []),
    ],
)
def test_gaps_by_hand(places: list[int], stream: list[int]) -> None:
    assert encode_places(torch.tensor(places, dtype=torch.int64)).tolist() == stream
    frame = compress(np.array(stream, np.uint8))
    assert decode_places(frame, 1000, len(places), len(stream), "x").tolist() == places


@settings(max_examples=40, deadline=None, derandomize=True)
@given(places=st.sets(st.integers(0, 5000), max_size=60), size=st.integers(5001, 9000))
def test_places_come_back(places: set[int], size: int) -> None:
    stream = encode_places(torch.tensor(sorted(places), dtype=torch.int32))
    found = decode_places(compress(stream), size, len(places), stream.size, "x")
    assert found.tolist() == sorted(places)


@pytest.mark.parametrize("sigma", [1.0, 2.0, 3.0])
def test_sizes_on_log_normal_fishers(sigma: float) -> None:
    """At most 72 % lossless and 11 % for the top tenth; a byte per value is smaller than lossless."""
    summary = summary_with({"w": log_normal(400_000, sigma=sigma).reshape(800, 500)})
    ratio = {}
    for name, how in (("planes", PLANES), ("top", TOP), ("log8", LOG8), ("dense", Instruction("raw"))):
        buckets, manifest = pack(summary, fisher=how)
        found = traffic(manifest)
        ratio[name] = found["fisher_bytes"] / found["fisher_dense_bytes"]
        assert found["delta_bytes"] == found["delta_dense_bytes"] == 1_600_000
        assert sum(b.nbytes for b in buckets) >= found["fisher_bytes"] + found["delta_bytes"]
    assert ratio["dense"] == 1.0
    assert ratio["planes"] <= 0.72
    assert ratio["top"] <= 0.11
    assert ratio["log8"] < ratio["planes"]


def test_log8_says_how_wrong_it_is() -> None:
    fisher = log_normal(20_000, dtype=torch.float32)
    fisher[:5] = 0.0
    buckets, manifest = pack(summary_with({"w": fisher}), fisher=LOG8)
    back = unpack(buckets, manifest)
    assert back.coverage.kind == "approximate"
    decoded = dense_fisher(back.fisher["w"])
    assert torch.equal(decoded == 0, fisher == 0)
    assert decoded.max() == fisher.max()
    error = float((decoded.double() - fisher.double()).norm() / fisher.double().norm())
    found = traffic(manifest)
    assert found["codec"] == "approximate: log 8 bit"
    assert found["relative_error"] == pytest.approx(error, rel=1e-9)
    assert 0.0 < error < 0.05
    assert 0.9 < found["overlap"] < 1.0
    constant = unpack(*pack(summary_with({"w": torch.full((3,), 2.5)}), fisher=LOG8)).fisher["w"]
    assert torch.equal(dense_fisher(constant), torch.full((3,), 2.5))


def test_an_approximate_top_says_how_wrong_it_is() -> None:
    how = Instruction("top", 0.5, approximate=True, alpha=0.5)
    fisher = torch.tensor([4.0, 3.0, 0.0, 0.0, 0.0, 12.0, 0.0, 0.0])
    found = traffic(pack(summary_with({"w": fisher}), fisher=how)[1])
    assert (found["relative_error"], found["overlap"]) == (0.0, 1.0)
    # The top quarter keeps 12 and 4 of the four largest: half of the places.
    found = traffic(
        pack(
            summary_with({"w": torch.tensor([4.0, 3.0, 0.5, 0.0, 0.0, 12.0, 0.0, 0.0])}),
            fisher=Instruction("top", 0.25, approximate=True, alpha=0.5),
        )[1]
    )
    assert found["relative_error"] == pytest.approx((9.25 / 169.25) ** 0.5)
    assert found["overlap"] == 0.5


def test_a_bomb_is_refused_before_it_is_decompressed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few KB that state a hundred megabytes; the decompressor must not be called."""
    bomb = compress(np.zeros(100_000_000, np.uint8))
    assert bomb.nbytes < 20_000

    def called(*_: object, **__: object) -> None:
        raise AssertionError("decompressed")

    monkeypatch.setattr("zstandard.ZstdDecompressor", called)
    with pytest.raises(SummaryError, match="a bomb decompresses to 100000000 bytes, expected 1000"):
        decompress(bomb, 1000, "a bomb")
    fisher = torch.zeros(100).bfloat16()
    buckets, manifest = pack(summary_with({"w": fisher}), fisher=PLANES)
    huge = resealed(buckets, manifest, shape=[2**40])
    with pytest.raises(SummaryError, match=r"client 'retain-c-0'.*once decompressed"):
        unpack(*huge)
    with pytest.raises(SummaryError, match=r"client 'retain-c-0'.*the backbone has \(100,\)"):
        unpack(*huge, shapes={"w": (100,)})
    with pytest.raises(SummaryError, match="no such weight"):
        unpack(*huge, shapes={"v": (100,)})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"count": 1_001}, "1001 entries in"),
        ({"count": 2**62, "gap_bytes": 2**62}, "entries in"),
        ({"gap_bytes": 2**40}, "gap bytes"),
        ({"gap_bytes": 1}, "gap bytes"),
        ({"count": 99, "rest": 0.0}, "holds 100 gaps|decompresses to"),
        ({"count": None}, "'count' is missing"),
        ({"gap_bytes": -1}, "'gap_bytes' is missing"),
        ({"parts": [1, 2]}, "2 parts"),
        ({"parts": [-5, 5, 5]}, "not a list of sizes"),
        ({"parts": [2**47, 2**47, 2**47]}, "bytes, which its parts do"),
        ({"codec": "pickle"}, "unknown codec 'pickle'"),
        ({"shape": [2000]}, "holds 100 entries, and the largest 0.1 of it, as was said, are 200"),
        ({"codec": "planes"}, "3 parts"),
        ({"shape": [10]}, "entries in"),
        ({"shape": [-1000]}, "not a list of sizes"),
        ({"shape": [150, 1]}, "outside its 150 coordinates|holds|gap bytes"),
        ({"dtype": "float32"}, "3 parts"),
        ({"dtype": "int16"}, "unknown dtype"),
    ],
)
def test_a_false_declaration_is_refused(changes: dict[str, object], says: str) -> None:
    buckets, manifest = pack(summary_with({"w": log_normal(1000)}), fisher=TOP)
    with pytest.raises(SummaryError, match=says) as caught:
        unpack(*resealed(buckets, manifest, **changes))
    assert "client 'retain-c-0'" in str(caught.value)


def test_a_compressed_task_vector_is_refused() -> None:
    buckets, manifest = pack(summary_with({"w": log_normal(10)}))
    raw = json.loads(manifest)
    raw["tensors"][0]["codec"] = "planes"
    with pytest.raises(SummaryError, match="delta of tensor 'w' comes in the unknown codec"):
        unpack(buckets, json.dumps(raw))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"coverage": None}, "coverage is not a mapping"),
        ({"coverage": {"kind": "most", "share": 1, "members": []}}, "unknown kind 'most'"),
        ({"coverage": {"kind": [], "share": 1, "members": []}}, "unknown kind"),
        ({"coverage": {"kind": "top", "share": float("nan"), "members": []}}, "share nan"),
        ({"coverage": {"kind": "top", "share": 0.1, "members": [3]}}, "members"),
        ({"errors": {"overlap": float("inf")}}, "the error 'overlap' is not a finite number"),
        ({"codec": 3}, "'codec'"),
    ],
)
def test_a_false_claim_of_coverage_is_refused(change: dict[str, object], says: str) -> None:
    buckets, manifest = pack(summary_with({"w": log_normal(10)}))
    with pytest.raises(SummaryError, match=says):
        unpack(buckets, json.dumps({**json.loads(manifest), **change}))


@pytest.mark.parametrize(
    ("sparse", "says"),
    [
        (SparseFisher((3,), torch.tensor([0, 0]), torch.ones(2)), "one place twice"),
        (SparseFisher((3,), torch.tensor([2, 1]), torch.ones(2)), "do not ascend"),
        (SparseFisher((3,), torch.tensor([1, 3]), torch.ones(2)), "outside a tensor"),
        (SparseFisher((3,), torch.tensor([-1, 1]), torch.ones(2)), "outside a tensor"),
        (SparseFisher((3,), torch.tensor([1]), torch.ones(2)), "2 values at 1 places"),
        (SparseFisher((3,), torch.tensor([1.0]), torch.ones(1)), "not a list of places"),
        (SparseFisher((3,), torch.tensor([1]), torch.tensor([-1.0])), "negative"),
        (SparseFisher((3,), torch.tensor([1]), torch.tensor([torch.nan])), "NaN or infinite"),
        (SparseFisher((3,), torch.tensor([1]), torch.ones(1, dtype=torch.int64)), "not a floating one"),
        (SparseFisher((4,), torch.tensor([1]), torch.ones(1)), "has shape"),
        (
            SparseFisher((3,), torch.tensor([0, 1]), torch.tensor([5.0, 2.0]), 3.0),
            "left out, and the smallest",
        ),
        (SparseFisher((3,), torch.tensor([0, 1]), torch.tensor([5.0, 2.0]), 2.0), "not the largest entries"),
        (SparseFisher((3,), torch.tensor([], dtype=torch.int32), torch.ones(0), 1.0), "it holds none"),
    ],
)
def test_a_bad_sparse_fisher_is_not_valid(sparse: SparseFisher, says: str) -> None:
    summary = summary_with({"w": torch.ones(3)})
    summary.fisher = {"w": sparse}
    with pytest.raises(SummaryError, match=f"client 'retain-c-0': Fisher 'w' .*{says}"):
        summary.validate()


FUZZED = {
    how.codec: pack(summary_with({"w": log_normal(300).reshape(20, 15)}), fisher=how)
    for how in (TOP, PLANES, LOG8)
}


@settings(max_examples=250, deadline=None, derandomize=True)
@given(data=st.data())
def test_hostile_bytes_are_refused_or_harmless(data: st.DataObject) -> None:
    """Changed bytes under a manifest that vouches for them: the project's error, or a valid summary."""
    codec = data.draw(st.sampled_from(sorted(FUZZED)))
    buckets, manifest = FUZZED[codec]
    changed = buckets[0].copy()
    entry = json.loads(manifest)["tensors"][-1]
    for _ in range(data.draw(st.integers(1, 3))):
        at = entry["offset"] + data.draw(st.integers(0, entry["nbytes"] - 1))
        changed[at] = data.draw(st.integers(0, 255))
    changes = {}
    if data.draw(st.booleans()):
        key = data.draw(st.sampled_from(["shape", "count", "gap_bytes", "parts", "dtype"]))
        number = st.one_of(st.integers(-2, 400), st.sampled_from([2**31, 2**47, 2**63]))
        value = {
            "shape": st.lists(number, max_size=3),
            "parts": st.lists(number, max_size=4),
            "dtype": st.sampled_from(["float16", "float64"]),
        }
        changes[key] = data.draw(value.get(key, number))
    try:
        summary = unpack(*resealed([changed], manifest, **changes), shapes={"w": (20, 15)})
        summary.validate()
    except SummaryError as error:
        told = str(error)
    else:
        told = "client 'retain-c-0' sent what is valid"
        assert dense_fisher(summary.fisher["w"]).shape == (20, 15)
        assert bool((dense_fisher(summary.fisher["w"]) >= 0).all())
    assert "client 'retain-c-0'" in told


def test_hostile_bytes_take_no_memory() -> None:
    """In a process that may take 300 MB more than it has, frames that state 2 GiB are refused, not tried."""
    code = """
import resource, sys
import numpy as np, torch
sys.path.insert(0, "tests/codecs")
from codecs_fakes import resealed, summary_with
from fedforget.codecs import Instruction, pack, unpack
from fedforget.errors import SummaryError
fisher = {"w": torch.rand(100).bfloat16()}
held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + 300 * 2**20,) * 2)
for how, change in (
    (Instruction("planes"), {"shape": [2**31]}),
    (Instruction("log8"), {"shape": [2**31]}),
    (Instruction("top", 0.1), {"shape": [2**40], "count": 2**31, "gap_bytes": 2**32}),
):
    for shapes in (None, {"w": (100,)}):
        try:
            unpack(*resealed(*pack(summary_with(fisher), fisher=how), **change), shapes=shapes)
        except SummaryError as error:
            print("refused:", str(error)[:40])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.count("refused: client 'retain-c-0'") == 6, done.stderr


def test_memory_is_counted_over_all_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    fishers = {name: torch.rand(100).bfloat16() for name in "uvw"}
    buckets, manifest = pack(summary_with(fishers), fisher=PLANES)
    monkeypatch.setattr(packing, "DECODED_LIMIT", 2000)
    with pytest.raises(SummaryError, match="2100 bytes once decompressed"):
        unpack(buckets, manifest)
    monkeypatch.setattr(packing, "DECODED_LIMIT", 2100)
    assert len(unpack(buckets, manifest).fisher) == 3
