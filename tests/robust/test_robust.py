"""Checks on scale, clipping and robust pooling."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from robust_worlds import SHAPES, federation

from fedforget.checks.run import contradictions
from fedforget.config import ClientGroup, CommunicationConfig, MergeConfig, RunConfig
from fedforget.defence_config import RobustConfig
from fedforget.errors import SummaryError
from fedforget.merging import merge
from fedforget.robust import (
    ALL,
    Hardening,
    geometric_median,
    judge,
    measure,
    robust_scores,
    squared_distances,
    trimmed_mean,
)
from fedforget.sparse_fisher import Coverage
from fedforget.summaries import ClientSummary, LoraFactors
from fedforget.updates import merge_to


def flat(summary: ClientSummary) -> torch.Tensor:
    return torch.cat([summary.deltas[name].reshape(-1) for name in SHAPES]).double()  # type: ignore[union-attr]


def scaled(one: ClientSummary, delta: float = 1.0, fisher: float = 1.0) -> ClientSummary:
    return replace(
        one,
        deltas={name: value * delta for name, value in one.deltas.items()},  # type: ignore[operator]
        fisher={name: value * fisher for name, value in one.fisher.items()},  # type: ignore[operator]
    )


def test_scales_are_norms(tmp_path: Path) -> None:
    one = federation()[0]
    A, B = torch.randn(2, 7), torch.randn(5, 2)
    one = replace(one, deltas={**one.deltas, "a.weight": LoraFactors(A, B, 0.5)})
    one.save(tmp_path / "one")
    found = measure([ClientSummary.load(tmp_path / "one")])[one.client_id]
    delta, fisher = 0.5 * B.double() @ A.double(), one.fisher["a.weight"].double()  # type: ignore[union-attr]
    assert found["a.weight"].delta == pytest.approx(float(delta.norm()), rel=1e-6)
    assert found["a.weight"].fisher == pytest.approx(float(fisher.norm()))
    assert found["a.weight"].peak == pytest.approx(float(fisher.max() / fisher.norm()))
    assert found[ALL].delta == pytest.approx(math.hypot(*(found[name].delta for name in SHAPES)))


def test_robust_scores_by_hand() -> None:
    # Logs 0, 1, 2, 3, 20: median 2, deviations 2 1 0 1 18, MAD 1.
    scores = robust_scores([math.exp(x) for x in (0, 1, 2, 3, 20)])
    assert scores == pytest.approx([-2 / 1.4826, -1 / 1.4826, 0, 1 / 1.4826, 18 / 1.4826])
    # Equal values but one: the floor 0.2 stands for the spread, so twice the median is not told at 3.5.
    assert robust_scores([1.0, 1.0, 2.0])[2] == pytest.approx(math.log(2) / 0.2)
    assert robust_scores([0.0, 0.0, 0.0]) == [0.0, 0.0, 0.0]


def test_honest_clients_are_not_accused_and_poisoned_ones_are_named() -> None:
    honest = federation()
    assert judge(honest, measure(honest), 3.5).findings == []
    bad = [scaled(honest[0], fisher=1e6), scaled(honest[1], delta=100.0), *honest[2:]]
    spiked = honest[5].fisher["b.weight"].clone()  # type: ignore[union-attr]
    spiked[0, 0] = 1e9
    bad[5] = replace(honest[5], fisher={**honest[5].fisher, "b.weight": spiked})
    found = judge(bad, measure(bad), 3.5).findings
    told = {(one.client, one.quantity) for one in found}
    assert told >= {("forget-bio-0", "fisher"), ("forget-bio-1", "delta"), ("retain-general-0", "fisher")}
    assert {client for client, _ in told} == {"forget-bio-0", "forget-bio-1", "retain-general-0"}
    sentence = next(one.sentence() for one in found if one.client == "forget-bio-1")
    assert "client 'forget-bio-1': norm of the task vector at" in sentence
    assert "the median of" in sentence


def test_cohorts_of_two_are_said_to_be_unjudgeable() -> None:
    few = federation(members=2, retain=1)
    few[0] = scaled(few[0], delta=1e6)
    judged = judge(few, measure(few), 3.5)
    assert judged.findings == []
    assert any("domain 'bio': 2 clients, too few to judge" in one for one in judged.unjudgeable)


def test_the_check_refuses_or_warns(tmp_path: Path) -> None:
    bad = federation()
    bad[0] = scaled(bad[0], delta=100.0)
    with pytest.raises(
        SummaryError, match=r"refuses the round: client 'forget-bio-0': norm of the task vector"
    ):
        merge_to(tmp_path, MergeConfig(), bad, robust=RobustConfig(check="refuse"))
    record = merge_to(tmp_path, MergeConfig(), bad, robust=RobustConfig())
    assert {one["client"] for one in record["robust"]["scale"]["findings"]} == {"forget-bio-0"}


def test_nothing_asked_changes_no_bit() -> None:
    summaries = federation()
    seen = Hardening(summaries, RobustConfig(check="off")).for_method("firm")
    assert [id(one) for one in seen] == [id(one) for one in sorted(summaries, key=lambda s: s.client_id)]


@pytest.mark.parametrize("factors", [False, True])
def test_clipping_scales_to_the_median(factors: bool) -> None:
    summaries = federation()
    if factors:
        torch.manual_seed(0)
        for i, one in enumerate(summaries):
            pairs = {
                n: LoraFactors(torch.randn(2, s[1]), torch.randn(s[0], 2), 1.0) for n, s in SHAPES.items()
            }
            summaries[i] = replace(one, deltas=pairs)
    norms = [measure([one])[one.client_id][ALL].delta for one in summaries[:5]]
    first = summaries[0].deltas
    bigger = {
        name: LoraFactors(one.A, one.B, one.scale * 1e3) if isinstance(one, LoraFactors) else one * 1e3
        for name, one in first.items()
    }
    summaries[0] = replace(summaries[0], deltas=bigger)
    limit = 1.2 * float(np.median([norms[0] * 1e3, *norms[1:]]))
    hardening = Hardening(summaries, RobustConfig(check="off", clip="median", clip_factor=1.2))
    seen = hardening.for_method("avg")
    assert measure(seen)["forget-bio-0"][ALL].delta == pytest.approx(limit, rel=1e-6)
    effect = hardening.report["clip_effect"]["clients"]
    assert effect["forget-bio-0"]["clipped_share"] == pytest.approx(1 - limit / (norms[0] * 1e3))
    assert [id(one) for one in seen][1:] == [id(one) for one in summaries][1:] or factors
    assert merge(seen, "avg").deltas["a.weight"].norm() < 1e2


def test_two_clients_are_not_clipped() -> None:
    hardening = Hardening(federation(members=2), RobustConfig(check="off", clip="median", clip_factor=0.1))
    hardening.for_method("avg")
    effect = hardening.report["clip_effect"]["clients"]
    assert effect["forget-bio-0"] | {"norm": 0} == {
        "norm": 0,
        "clipped_share": 0.0,
        "why_not": "2 in its domain",
    }
    assert effect["retain-general-0"]["clipped_share"] > 0.5


def test_the_trimmed_mean_drops_exactly_trim_at_each_end() -> None:
    blocks = torch.tensor([[1.0, 9.0], [5.0, 9.0], [-100.0, 9.0], [3.0, 9.0], [1e9, 0.0]])
    assert trimmed_mean(blocks, 1).tolist() == [3.0, 9.0]
    assert trimmed_mean(blocks, 2).tolist() == [3.0, 9.0]
    assert torch.equal(trimmed_mean(blocks.flip(0), 1), trimmed_mean(blocks, 1))


def test_the_geometric_median_is_where_the_unit_vectors_balance() -> None:
    # Optimality: the unit vectors from the median to the members sum to zero.
    members = federation()[:5]
    squared, _ = squared_distances(members, of_fisher=False)
    points = torch.stack([flat(one) for one in members])
    assert np.allclose(np.sqrt(squared), torch.cdist(points, points).numpy(), atol=1e-5)
    found = geometric_median(squared)
    assert found.converged
    assert sum(found.weights) == pytest.approx(1.0)
    away = points - torch.tensor(found.weights, dtype=torch.float64) @ points
    units = away / away.norm(dim=1, keepdim=True)
    assert float(units.sum(dim=0).norm()) < 1e-5
    # Three on a line: the one in the middle.
    line = np.array([0.0, 1.0, 1e6])
    found = geometric_median((line[:, None] - line[None]) ** 2)
    assert found.weights @ line == pytest.approx(1.0, abs=1e-4)
    assert geometric_median(np.zeros((3, 3))).weights == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("pool", ["trimmed_mean", "geometric_median"])
def test_firm_with_a_robust_pool_is_firm_on_the_pooled_vectors(pool: str) -> None:
    summaries = federation()
    hardening = Hardening(summaries, RobustConfig(check="off", pool=pool))
    seen = pickle.loads(pickle.dumps(hardening.for_method("firm")))
    merged = merge(seen, "firm", alpha=0.3)
    stacks = {
        kind: {n: torch.stack([getattr(one, kind)[n] for one in summaries[:5]]) for n in SHAPES}
        for kind in ("deltas", "fisher")
    }
    if pool == "trimmed_mean":
        made = {
            kind: {n: x.sort(0).values[1:-1].mean(0) for n, x in one.items()} for kind, one in stacks.items()
        }
    else:
        effect = hardening.report["pool_effect"]["bio"]
        made = {}
        for kind, key in (("deltas", "delta_weights"), ("fisher", "fisher_weights")):
            w = torch.tensor(list(effect[key].values()))
            made[kind] = {n: torch.einsum("i,i...->...", w, x) for n, x in stacks[kind].items()}
    one = replace(summaries[0], deltas=made["deltas"], fisher=made["fisher"])
    wanted = merge([one, *summaries[5:]], "firm", alpha=0.3)
    for name in SHAPES:
        assert torch.allclose(merged.deltas[name], wanted.deltas[name], atol=1e-5)
    # In a wide sense the effect is there: the distance is that of the vectors themselves.
    mean = torch.cat([stacks["deltas"][n].mean(0).reshape(-1) for n in SHAPES])
    apart = torch.cat([made["deltas"][n].reshape(-1) for n in SHAPES]) - mean
    told = hardening.report["pool_effect"]["bio"]["delta_distance_from_mean"]
    assert told == pytest.approx(float(apart.norm() / mean.norm()), rel=1e-3)
    again = Hardening(summaries[::-1], RobustConfig(check="off", pool=pool)).for_method("firm")
    assert torch.equal(merge(again, "firm", alpha=0.3).deltas["a.weight"], merged.deltas["a.weight"])


def test_parts_of_fishers_and_small_domains_are_not_pooled() -> None:
    robust = RobustConfig(check="off", pool="trimmed_mean")
    with pytest.raises(SummaryError, match=r"domain 'bio': 2 clients, .* needs at least 3"):
        Hardening(federation(members=2), robust).for_method("firm")
    partly = [replace(one, coverage=Coverage("top", 0.1)) for one in federation()]
    with pytest.raises(SummaryError, match=r"client 'forget-bio-0': sent a part of its Fisher.*lossless"):
        Hardening(partly, robust).for_method("firm")
    alone = Hardening(federation(members=1), robust)
    alone.for_method("firm")
    assert alone.report["pool_effect"]["bio"]["note"] == "one client, nothing to pool"


def test_the_configuration_is_checked() -> None:
    groups = [ClientGroup("forget", "bio", 2), ClientGroup("retain", "general", 1)]

    def told(robust: RobustConfig, **more: object) -> str:
        return "\n".join(contradictions(RunConfig(clients=groups, robust=robust, **more)))  # type: ignore[arg-type]

    assert "robust.check: 'wran' is not one of" in told(RobustConfig(check="wran"))
    assert "robust.trim: 0 is less than 1" in told(RobustConfig(trim=0))
    pool = RobustConfig(pool="trimmed_mean")
    assert "needs at least 3 clients in a domain, and 'bio' has 2" in told(pool)
    assert "method 'ties' does not pool" in told(pool, merge=MergeConfig(method="ties"))
    assert "communication.fisher 'two-phase'" in told(pool, communication=CommunicationConfig("two-phase"))
