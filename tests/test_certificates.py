"""A certificate holds for the bytes, Fishers and claims it was made of, and for no others."""

from __future__ import annotations

import json
import shutil
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fedforget import cli
from fedforget.certificates import KEY, budget_solved_for, digest, slack_gap
from fedforget.certification import certify
from fedforget.codecs.top import sparsify
from fedforget.errors import ModelError, RunError, SummaryError
from fedforget.merging import merge
from fedforget.presets import load
from fedforget.runs import RunDirectory
from fedforget.sparse_fisher import dense_fisher
from fedforget.stored_fishers import find_fishers
from fedforget.summaries import ClientSummary
from fedforget.sweeps.remerge import merge_again
from fedforget.updates import UPDATE


@pytest.fixture
def certified(stored_run: RunDirectory) -> Path:
    return merge_again(stored_run, "firm", {"epsilon": "1e-3", "gamma": "1.5"}) / UPDATE


def content(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        return dict(json.loads(file.metadata()[KEY]))


def rewrite(path: Path, said: dict[str, Any] | None = None, change: float = 1.0) -> None:
    tensors, said = load_file(path), said or content(path)
    name = sorted(tensors)[0]
    tensors[name] = tensors[name] * change
    save_file(tensors, path, metadata={KEY: json.dumps(said)})


def test_what_a_merge_writes_is_certified(certified: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = certify(certified, find_fishers(certified))
    assert found.problems == []
    assert found.budget == 1e-3
    assert all(found.optimal.values())
    assert max(v for one in found.damages.values() for v in one.values()) == pytest.approx(1e-3, rel=1e-6)
    assert all(value <= 1e-3 for one in found.damages.values() for value in one.values())
    with pytest.raises(SystemExit) as ended:
        cli.main(["certify", str(certified.parent)])
    assert (ended.value.code or 0) == 0
    said = capsys.readouterr().out
    assert "Certified: " in said
    assert "(recomputed from the summaries)" in said
    assert 0.0 < found.distance < 1e-2


def test_a_self_consistent_lie_about_optimality_is_found_against_the_base(
    certified: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An update that keeps every budget, is not the closest, and claims to be, with all numbers agreeing."""
    said, name = content(certified), sorted(load_file(certified))[0]
    update = 0.5 * load_file(certified)[name]
    entry = said["tensors"][name]
    values = [0.25 * ratio * said["epsilon"] for ratio in entry["ratio"]]
    entry |= {"sha256": digest(update), "ratio": [0.25 * ratio for ratio in entry["ratio"]]}
    budget = budget_solved_for(said["epsilon"], "exact", torch.float32)
    entry["slack_gap"] = entry["duality_gap"] = slack_gap(entry["multipliers"], values, budget)
    rewrite(certified, said, change=0.5)
    problems = certify(certified, find_fishers(certified)).problems
    assert f"tensor {name!r}: is not the closest update that keeps the budgets" in problems[0]
    assert "the certificate says that the duality gap is" in problems[1]
    # Without a forget client's summary there is no base to measure against, and the output says so.
    shutil.rmtree(find_fishers(certified) / said["forget"][0])
    assert certify(certified, find_fishers(certified)).problems == []
    with pytest.raises(SystemExit):
        cli.main(["certify", str(certified)])
    assert (
        f"as recorded, for the summary of client '{said['forget'][0]}' is not in" in capsys.readouterr().out
    )


@pytest.mark.parametrize("epsilon", ["1e-3", "0", "1e9"])
def test_the_base_is_that_of_a_hardened_merge(tmp_path: Path, epsilon: str) -> None:
    config = load("firm-ci", "model.device=cpu")
    config.clients[0].count = 4
    config.robust.clip, config.robust.pool = "median", "geometric_median"
    run = RunDirectory.create(tmp_path / "run", config, "firm-ci")
    for i in range(6):
        draw, role = torch.Generator().manual_seed(i), "forget" if i < 5 else "retain"
        deltas = {"w": (1 + 9 * (i == 0)) * torch.randn(17, 9, generator=draw)}
        fishers = {"w": torch.rand(17, 9, generator=draw)}
        domain = "herbs" if i < 4 else f"d{i}"
        ClientSummary(f"c{i}", role, domain, 8, deltas, fishers).save(run.summaries / f"c{i}")  # type: ignore[arg-type]
    run.update(clients={f"c{i}": {} for i in range(6)})
    path = merge_again(run, "firm", {"epsilon": epsilon}) / UPDATE
    found = certify(path, run.summaries)
    assert (found.problems, found.as_recorded, found.optimal) == ([], "", {"w": True})


def test_another_gap_and_another_base_are_found(certified: Path) -> None:
    said, name = content(certified), sorted(load_file(certified))[0]
    said["tensors"][name]["duality_gap"] *= 1.5
    rewrite(certified, said)
    (problem,) = certify(certified, find_fishers(certified)).problems
    assert f"tensor {name!r}: the certificate says that the duality gap is" in problem
    folder = find_fishers(certified) / said["forget"][0] / "deltas.safetensors"
    save_file({n: 1.01 * delta for n, delta in load_file(folder).items()}, folder)
    problems = certify(certified, find_fishers(certified)).problems
    assert problems[0] == f"tensor {name!r}: the summaries do not merge to the base update that was projected"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_budgets_hold_in_fp64_arithmetic_from_the_raw_fishers_on(dtype: torch.dtype) -> None:
    """fp32 normalisation moves a damage by up to 1e-7 of it: without a reserve, 7 of these 40 break."""
    draw, alpha, eps0 = torch.Generator().manual_seed(0), 0.1, 1e-8
    for _ in range(20):
        fishers = [torch.randn(900, generator=draw).mul_(2.0).exp_().to(dtype) for _ in range(3)]
        clients = [
            ClientSummary(
                f"c{i}", role, "d", 1, {"w": torch.randn(900, generator=draw).to(dtype)}, {"w": one}
            )
            for i, (role, one) in enumerate(zip(("forget", "retain", "retain"), fishers, strict=True))
        ]
        update = merge(clients, "firm", epsilon=0.5, alpha=alpha, eps0=eps0).deltas["w"].double()
        for fisher in fishers[1:]:
            wide = fisher.double()
            kept = torch.where(wide >= wide.sort(descending=True).values[89], wide / (wide.max() + eps0), 0.0)
            assert 0.5 * float((kept * update.square()).sum()) <= 0.5


def test_a_fisher_that_was_sent_as_its_largest_entries_certifies_too(stored_run: RunDirectory) -> None:
    client = next(one for one in stored_run.load_summaries() if one.role == "retain")
    folder = stored_run.summaries / client.client_id
    top = {name: sparsify(dense_fisher(fisher), 0.2) for name, fisher in client.fisher.items()}
    replace(client, fisher=top).save(stored_run.path / "other")
    shutil.rmtree(folder)
    (stored_run.path / "other").rename(folder)
    path = merge_again(stored_run, "firm", {"epsilon": "1e-3"}) / UPDATE
    assert certify(path, find_fishers(path)).problems == []


def test_a_flipped_bit_is_found(certified: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = bytearray(certified.read_bytes())
    header = struct.unpack("<Q", raw[:8])[0]
    raw[8 + header + 1] ^= 1
    certified.write_bytes(raw)
    with pytest.raises(SystemExit) as ended:
        cli.main(["certify", str(certified)])
    assert ended.value.code == 1
    name = sorted(load_file(certified))[0]
    assert f"tensor {name!r}: its bytes are not those that were certified" in capsys.readouterr().err


def test_a_larger_update_breaks_the_budget_of_a_named_client(certified: Path) -> None:
    rewrite(certified, change=2.0)
    problems = "\n".join(certify(certified, find_fishers(certified)).problems)
    name, client = sorted(load_file(certified))[0], content(certified)["clients"][0]
    assert f"tensor {name!r}, client {client!r}: damage " in problems
    assert "exceeds the budget 0.001" in problems


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("multipliers", 1.0, "multipliers do not give the gap"),
        ("ratio", 0.5, "b/epsilon = 0.5"),
        ("ratio", "inf", "b/epsilon = inf"),
        ("fishers", "0" * 64, "is not the one that the certificate was made with"),
    ],
)
def test_edited_claims_are_found(certified: Path, key: str, value: Any, message: str) -> None:
    said = content(certified)
    name = sorted(said["tensors"])[0]
    said["tensors"][name][key][0] = value
    if key == "multipliers":
        said["tensors"][name]["slack_gap"] = 123.0
    rewrite(certified, said)
    assert any(message in problem for problem in certify(certified, find_fishers(certified)).problems)


def test_another_epsilon_and_a_missing_tensor_are_found(certified: Path) -> None:
    said = content(certified)
    rewrite(certified, {**said, "epsilon": 1e-4})
    with pytest.raises(ModelError, match=r"was changed or is not one .*two values of epsilon"):
        certify(certified, find_fishers(certified))
    rewrite(certified, {**said, "epsilon": 1e-4, "parameters": {**said["parameters"], "epsilon": 1e-4}})
    assert any("exceeds the budget" in one for one in certify(certified, find_fishers(certified)).problems)
    name = sorted(said["tensors"])[0]
    rewrite(certified, {**said, "tensors": {k: v for k, v in said["tensors"].items() if k != name}})
    assert f"tensor {name!r}: is in the file alone" in certify(certified, find_fishers(certified)).problems


def test_a_swapped_fisher_is_found(certified: Path, tmp_path: Path) -> None:
    folder, client = tmp_path / "fishers", content(certified)["clients"][0]
    shutil.copytree(find_fishers(certified), folder)
    assert certify(certified, folder).problems == []
    fishers = load_file(folder / client / "fisher.safetensors")
    save_file(
        {n: f * torch.linspace(0.5, 1.0, f.numel()).view_as(f) for n, f in fishers.items()},
        folder / client / "fisher.safetensors",
    )
    problems = certify(certified, folder).problems
    assert any(f"client {client!r}: the Fisher is not the one" in one for one in problems)
    shutil.rmtree(folder / client)
    with pytest.raises(SystemExit) as ended:
        cli.main(["certify", str(certified), "--fishers", str(folder)])
    assert ended.value.code == 1


@pytest.mark.parametrize("scaled", [False, True])
def test_without_a_budget_damages_are_reported_and_nothing_is_certified(
    certified: Path, stored_run: RunDirectory, scaled: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    if scaled:  # by a tool that keeps no metadata
        save_file({name: 0.5 * tensor for name, tensor in load_file(certified).items()}, certified)
    else:
        certified = merge_again(stored_run, "ties") / UPDATE
    with pytest.raises(SystemExit) as ended:
        cli.main(["certify", str(certified)])
    out = capsys.readouterr().out
    assert ended.value.code == 1
    assert "Nothing is certified" in out
    assert ("carries no certificate" if scaled else "'ties' has no budget") in out
    assert ": damage " in out


def test_a_tensor_or_client_cannot_be_left_out_of_the_claims(certified: Path, tmp_path: Path) -> None:
    said = content(certified)
    name = sorted(said["tensors"])[0]
    rewrite(certified, {**said, "tensors": {**said["tensors"], name: {}}})
    with pytest.raises(ModelError, match="its certificate was changed or is not one"):
        certify(certified, find_fishers(certified))
    rewrite(certified, said)
    folder, client = tmp_path / "fishers", said["clients"][0]
    shutil.copytree(find_fishers(certified), folder)
    shutil.copytree(folder / client, folder / "retain-other")
    assert certify(certified, folder).problems == [
        f"retain client 'retain-other': its summary is in {folder}, and the certificate leaves it out"
    ]


def test_files_that_are_no_update_are_told_in_a_sentence(
    certified: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = find_fishers(certified) / content(certified)["clients"][0]
    save_file({"w": torch.arange(4)}, certified.parent / "numbers.safetensors")
    (certified.parent / "text").write_text("no update")
    for path, message in (
        (client, "holds no merged update (update.safetensors or delta.safetensors); give a run"),
        (certified.parent / "absent", "holds no merged update"),
        (certified.parent / "text", "cannot be read as a merged update"),
        (certified.parent / "numbers.safetensors", "has dtype torch.int64, which no merged update has"),
    ):
        with pytest.raises(SystemExit) as ended:
            cli.main(["certify", str(path)])
        said = capsys.readouterr().err
        assert (ended.value.code, message in said, said.count("\n")) == (1, True, 1)
    other = certified.parent / "other.safetensors"
    save_file({f"{name}.x": one for name, one in load_file(certified).items()}, other)
    with pytest.raises(SummaryError, match=r"has no Fisher of tensor .*; is the file a merged update"):
        certify(other, find_fishers(certified))


def test_a_certificate_nested_beyond_reading_is_one_sentence(certified: Path) -> None:
    save_file(load_file(certified), certified, metadata={KEY: "[" * 100_000})
    with pytest.raises(ModelError, match="its certificate was changed or is not one"):
        certify(certified, find_fishers(certified))


def test_a_merge_into_a_place_that_cannot_be_says_so(stored_run: RunDirectory, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="choose another --out"):
        merge_again(stored_run, "avg", out=tmp_path / "file" / "merged")
