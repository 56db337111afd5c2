"""What a client sends: checked, stored with its dtypes, read one tensor at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedforget.errors import SummaryError
from fedforget.summaries import ClientSummary, LoraFactors

NAN, INF = float("nan"), float("inf")


def factors(dtype: torch.dtype = torch.bfloat16) -> LoraFactors:
    draw = torch.Generator().manual_seed(0)
    A = torch.randn(2, 5, generator=draw).to(dtype)
    B = torch.randn(4, 2, generator=draw).to(dtype)
    return LoraFactors(A, B, 0.5)


def summary(**changes: Any) -> ClientSummary:
    values: dict[str, Any] = {
        "client_id": "forget-herbs-0",
        "role": "forget",
        "domain": "herbs",
        "num_examples": 3,
        "deltas": {"w": factors(), "v": torch.ones(3, 2)},
        "fisher": {"w": torch.rand(4, 5).bfloat16(), "v": torch.zeros(3, 2)},
    }
    return ClientSummary(**{**values, **changes})


def test_dense_by_hand() -> None:
    # 2 * [[1], [3]] @ [[1, 2]] = [[2, 4], [6, 12]].
    one = LoraFactors(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0], [3.0]]), 2.0)
    assert one.dense().tolist() == [[2.0, 4.0], [6.0, 12.0]]
    assert one.rows(1, 2).tolist() == [[6.0, 12.0]]
    assert (one.shape, one.dtype) == ((2, 2), torch.float32)


def test_dense_is_accumulated_wide_and_rounded_once() -> None:
    one = factors()
    wide = 0.5 * (one.B.float() @ one.A.float())
    assert one.dense().dtype == torch.bfloat16
    assert torch.equal(one.dense(), wide.bfloat16())
    assert one.rows(0, 4).dtype == torch.float32
    double = LoraFactors(one.A.double(), one.B.double(), 0.5)
    assert double.rows(0, 4).dtype == torch.float64


@pytest.mark.parametrize(("A", "B"), [((2, 5), (4, 3)), ((5,), (4, 2)), ((2, 5), (4, 2, 1))])
def test_factors_that_do_not_multiply(A: tuple[int, ...], B: tuple[int, ...]) -> None:
    with pytest.raises(SummaryError, match="LoRA factors do not multiply"):
        LoraFactors(torch.ones(A), torch.ones(B), 1.0)


def test_round_trip_keeps_bits_and_dtypes(tmp_path: Path) -> None:
    one = summary()
    one.save(tmp_path / "s")
    back = ClientSummary.load(tmp_path / "s")
    assert (back.client_id, back.role, back.domain, back.num_examples) == (
        "forget-herbs-0",
        "forget",
        "herbs",
        3,
    )
    assert sorted(back.deltas) == ["v", "w"]
    stored = back.deltas["w"]
    assert isinstance(stored, LoraFactors)
    assert isinstance(one.deltas["w"], LoraFactors)
    assert torch.equal(stored.A, one.deltas["w"].A)
    assert torch.equal(stored.B, one.deltas["w"].B)
    assert (stored.dtype, stored.scale) == (torch.bfloat16, 0.5)
    dense = back.deltas["v"]
    assert isinstance(dense, Tensor)
    assert torch.equal(dense, torch.ones(3, 2))
    assert back.fisher["w"].dtype == torch.bfloat16
    assert torch.equal(back.fisher["w"], one.fisher["w"])
    back.validate()


def test_views_that_share_memory_are_stored_whole(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    summary(deltas={"a": base.T, "b": base[:, :2]}, fisher={}).save(tmp_path / "s")
    back = ClientSummary.load(tmp_path / "s").deltas
    assert torch.equal(back["a"], base.T)  # type: ignore[arg-type]
    assert torch.equal(back["b"], base[:, :2])  # type: ignore[arg-type]


def test_a_summary_without_fisher_is_one(tmp_path: Path) -> None:
    summary(fisher={}).save(tmp_path / "s")
    assert len(ClientSummary.load(tmp_path / "s").fisher) == 0


@pytest.mark.parametrize("name", ["../x", "", ".hidden", "a/b", "a b", "a\n", "x" * 129, "é", "-a"])
def test_ids_that_are_no_directory_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(SummaryError, match="a client id is 1 to 128 letters"):
        summary(client_id=name).save(tmp_path / "s")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"role": "both"}, "role 'both' is neither 'forget' nor 'retain'"),
        ({"domain": ""}, "the domain is empty"),
        ({"num_examples": 0}, "0 examples; a summary needs at least one"),
        ({"deltas": {}}, "the summary holds no task vector"),
        ({"fisher": {"w": torch.ones(4, 5)}}, r"only in the task vector: \['v'\]"),
        ({"fisher": {n: torch.ones(2) for n in "wvx"}}, r"only in the Fisher: \['x'\]"),
        ({"fisher": {"w": torch.ones(5, 4), "v": torch.ones(3, 2)}}, r"Fisher 'w' has shape \(5, 4\)"),
        (
            {"fisher": {"w": torch.ones(4, 5), "v": torch.full((3, 2), -1e-9)}},
            "Fisher 'v' holds negative values",
        ),
        (
            {"fisher": {"w": torch.ones(4, 5), "v": torch.full((3, 2), NAN)}},
            "Fisher 'v' holds NaN or infinite",
        ),
        (
            {"fisher": {"w": torch.ones(4, 5), "v": torch.full((3, 2), INF)}},
            "Fisher 'v' holds NaN or infinite",
        ),
        (
            {"fisher": {"w": torch.ones(4, 5), "v": torch.ones(3, 2).int()}},
            "Fisher 'v' has dtype torch.int32",
        ),
        ({"deltas": {"v": torch.tensor([1.0, NAN])}, "fisher": {}}, "task vector 'v' holds NaN or infinite"),
        ({"deltas": {"v": torch.tensor([1.0, -INF])}, "fisher": {}}, "task vector 'v' holds NaN or infinite"),
        ({"deltas": {"v": torch.ones(2).long()}, "fisher": {}}, "task vector 'v' has dtype torch.int64"),
        (
            {"deltas": {"v": LoraFactors(torch.full((1, 2), NAN), torch.ones(2, 1), 1.0)}, "fisher": {}},
            "task vector 'v' holds NaN",
        ),
        (
            {"deltas": {"v": LoraFactors(torch.ones(1, 2), torch.ones(2, 1), NAN)}, "fisher": {}},
            "task vector 'v' has scale nan",
        ),
    ],
)
def test_what_must_not_be_merged_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SummaryError, match=message) as caught:
        summary(**changes).save(tmp_path / "s")
    assert "client 'forget-herbs-0'" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_against_the_backbone() -> None:
    one = summary()
    one.check_against({"w": (4, 5), "v": (3, 2)})
    with pytest.raises(SummaryError, match="tensor 'v' is not an adapted weight"):
        one.check_against({"w": (4, 5)})
    with pytest.raises(SummaryError, match="tensor 'x' is missing"):
        one.check_against({"w": (4, 5), "v": (3, 2), "x": (1, 1)})
    with pytest.raises(SummaryError, match=r"tensor 'w' has shape \(4, 5\), the backbone has \(5, 4\)"):
        one.check_against({"w": (5, 4), "v": (3, 2)})


def test_an_existing_directory_is_left_alone(tmp_path: Path) -> None:
    summary().save(tmp_path / "s")
    before = (tmp_path / "s" / "summary.json").read_bytes()
    with pytest.raises(SummaryError, match="exists already"):
        summary(domain="other").save(tmp_path / "s")
    assert (tmp_path / "s" / "summary.json").read_bytes() == before


@pytest.mark.parametrize("file", ["deltas.safetensors", "fisher.safetensors", "summary.json"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_damaged_files_are_named(tmp_path: Path, file: str, damage: str) -> None:
    summary().save(tmp_path / "s")
    path = tmp_path / "s" / file
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    else:
        path.unlink()
    with pytest.raises(SummaryError, match=file):
        ClientSummary.load(tmp_path / "s")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("format", 2, "format 2, this version reads format 1"),
        ("scales", {"w": "x"}, "not a client summary"),
        ("scales", [], "not a client summary"),
        ("scales", {"w": 0.5, "u": 1.0}, "factor 'u::lora_A' is missing"),
        ("num_examples", "many", "not a client summary"),
    ],
)
def test_records_that_do_not_fit(tmp_path: Path, key: str, value: Any, message: str) -> None:
    summary().save(tmp_path / "s")
    path = tmp_path / "s" / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(SummaryError, match=message):
        ClientSummary.load(tmp_path / "s")


def test_a_record_that_is_no_mapping(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text("[1]")
    with pytest.raises(SummaryError, match="not a client summary"):
        ClientSummary.load(tmp_path)


def test_factors_without_their_scale_are_refused(tmp_path: Path) -> None:
    summary().save(tmp_path / "s")
    path = tmp_path / "s" / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "scales": {}}))
    with pytest.raises(SummaryError, match="factor 'w::lora_A' has no scale"):
        ClientSummary.load(tmp_path / "s")
