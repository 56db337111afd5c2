"""Which codec is exact for whom: the server's output from sparse Fishers is that from whole ones."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from codecs_fakes import log_normal
from torch import Tensor

from fedforget.client_specs import expand_clients
from fedforget.codecs import Instruction, instructions, needed_share, pack, unpack
from fedforget.config import ClientGroup, CommunicationConfig, MergeConfig, RunConfig
from fedforget.errors import SummaryError
from fedforget.merging import calibrate_epsilon, merge
from fedforget.summaries import ClientSummary, Coverage, LoraFactors

GROUPS = [
    ClientGroup(role="forget", domain="a", count=2),
    ClientGroup(role="forget", domain="b", count=1),
    ClientGroup(role="retain", domain="c", count=1),
    ClientGroup(role="retain", domain="d", count=1),
]


def clients(kind: str = "log-normal") -> list[ClientSummary]:
    found = []
    for i, spec in enumerate(expand_clients(GROUPS)):
        draw = torch.Generator().manual_seed(i)

        def fisher(size: int, i: int = i, draw: torch.Generator = draw) -> Tensor:
            if kind == "tied":  # a handful of values, many zeros
                return torch.randint(0, 5, (size,), generator=draw).sub_(1).clamp_(min=0).bfloat16()
            if kind == "sparse":  # fewer entries than alpha keeps
                return log_normal(size, i) * (torch.rand(size, generator=draw) < 0.05)
            return log_normal(size, i)

        found.append(
            ClientSummary(
                client_id=spec.id,
                role=spec.role,  # type: ignore[arg-type]
                domain=spec.domain,
                num_examples=3,
                deltas={
                    "w": LoraFactors(
                        torch.randn(2, 30, generator=draw).bfloat16(),
                        torch.randn(20, 2, generator=draw).bfloat16(),
                        2.0,
                    ),
                    "v": torch.randn(50, generator=draw).bfloat16(),
                },
                fisher={"w": fisher(600).reshape(20, 30), "v": fisher(50)},
            )
        )
    return found


def sent(share: float, path: Path, kind: str = "log-normal", mode: str = "exact") -> list[ClientSummary]:
    """The same clients after the wire and the disk."""
    config = RunConfig(
        clients=GROUPS,
        merge=MergeConfig(alpha=share),
        communication=CommunicationConfig(fisher=mode, local_share=share),
    )
    told = instructions(config, expand_clients(GROUPS))
    back = []
    for one in clients(kind):
        unpack(*pack(one, fisher=told[one.client_id])).save(path / one.client_id)
        back.append(ClientSummary.load(path / one.client_id))
    return back


def same(a: list[ClientSummary], b: list[ClientSummary], method: str, **parameters: float) -> None:
    one, other = (merge(clients, method, **parameters) for clients in (a, b))
    for name, tensor in one.deltas.items():
        assert torch.equal(tensor.view(torch.int16), other.deltas[name].view(torch.int16))
    assert one.report == other.report


@pytest.mark.parametrize("kind", ["log-normal", "tied", "sparse"])
def test_exact_codecs_change_no_bit_at_any_smaller_alpha(tmp_path: Path, kind: str) -> None:
    whole, sparse = clients(kind), sent(0.3, tmp_path, kind)
    assert [one.coverage.kind for one in sparse] == ["whole", "whole", "top", "top", "top"]
    for alpha in (0.3, 0.29, 0.1, 0.002):
        same(whole, sparse, "firm", gamma=1.3, alpha=alpha)
        epsilon = calibrate_epsilon(whole, 0.3, 1.0, alpha=alpha)
        assert calibrate_epsilon(sparse, 0.3, 1.0, alpha=alpha) == epsilon
        same(whole, sparse, "firm", gamma=1.3, alpha=alpha, epsilon=epsilon)
        same(whole, sparse, "support_matched", alpha=alpha)
        same(whole, sparse, "firm_unnormalised", keep=alpha)
    same(whole, sparse, "avg")


def test_more_than_was_sent_is_refused(tmp_path: Path) -> None:
    sparse = sent(0.2, tmp_path)
    says = r"client 'forget-b-0': sent the largest 0\.2 .* method 'firm' reads the largest 0\.3"
    with pytest.raises(SummaryError, match=rf"{says}.*communication\.alpha=0\.3"):
        merge(sparse, "firm", alpha=0.3)
    with pytest.raises(SummaryError, match=r"sent the largest 0\.2"):
        calibrate_epsilon(sparse, 0.3, 1.0, alpha=0.3)
    for method in ("fisher_average", "firm_unnormalised"):
        with pytest.raises(SummaryError, match="reads the whole Fisher"):
            merge(sparse, method)


def test_the_top_of_a_pooled_client_is_refused(tmp_path: Path) -> None:
    found = sent(0.2, tmp_path)
    found[0] = unpack(*pack(clients()[0], fisher=Instruction("top", 0.2)))
    with pytest.raises(SummaryError, match=r"'forget-a-0': sent its own .* pools it with 'forget-a-1'"):
        merge(found, "firm")
    found[0].coverage = Coverage("pooled-top", 0.2, ("forget-a-0", "forget-a-2"))
    with pytest.raises(SummaryError, match="what the mean over forget-a-0, forget-a-2 needs"):
        merge(found, "firm")
    merge(found, "avg")


def test_why_a_pooled_client_may_not_sparsify() -> None:
    """Two clients whose mean is largest where neither is: by hand, at alpha 1/3 of three entries."""
    a, b = torch.tensor([5.0, 0.0, 4.0]), torch.tensor([0.0, 5.0, 4.0])

    def two(*fishers: Tensor) -> list[ClientSummary]:
        return [
            ClientSummary(f"forget-a-{i}", "forget", "a", 1, {"w": torch.ones(3)}, {"w": fisher})
            for i, fisher in enumerate(fishers)
        ]

    # The means are 2.5, 2.5 and 4: the third entry wins, which neither client has among its largest.
    update = merge(two(a, b), "firm", alpha=0.34).deltas["w"]
    assert (update != 0).tolist() == [False, False, True]
    approximate = Instruction("top", 0.34, approximate=True)
    lossy = [unpack(*pack(one, fisher=approximate)) for one in two(a, b)]
    assert [one.coverage.kind for one in lossy] == ["approximate"] * 2
    assert (merge(lossy, "firm", alpha=0.34).deltas["w"] != 0).tolist() == [True, True, False]


def codecs(**changes: object) -> dict[str, Instruction]:
    config = RunConfig(clients=GROUPS)
    for key, value in changes.items():
        section, _, name = key.partition("__")
        setattr(getattr(config, section), name, value)
    return instructions(config, expand_clients(GROUPS))


def test_the_default_is_exact_for_every_client() -> None:
    told = codecs()
    assert {name: (one.codec, one.share, one.approximate) for name, one in told.items()} == {
        "forget-a-0": ("planes", 1.0, False),
        "forget-a-1": ("planes", 1.0, False),
        "forget-b-0": ("top", 0.1, False),
        "retain-c-0": ("top", 0.1, False),
        "retain-d-0": ("top", 0.1, False),
    }
    assert {one.codec for one in codecs(communication__fisher="lossless").values()} == {"planes"}
    assert {one.codec for one in codecs(communication__fisher="raw").values()} == {"raw"}


def test_approximate_codecs_say_so() -> None:
    told = codecs(communication__fisher="approximate-top")
    assert told["forget-a-0"].name == "approximate: top 0.15"
    assert told["retain-c-0"].name == "top 0.1"
    told = codecs(communication__fisher="approximate-log8")
    assert {one.name for one in told.values()} == {"approximate: log 8 bit"}


def test_the_share_is_what_merge_and_comparison_need() -> None:
    config = RunConfig(clients=GROUPS)
    assert needed_share(config) == 0.1
    config.merge.alpha = 0.2
    assert needed_share(config) == 0.2
    config.evaluation.compare.parameters = {"firm-qp": {"alpha": 0.25}, "ties": {"density": 0.3}}
    assert needed_share(config) == 0.25
    config.communication.alpha = 0.4
    assert needed_share(config) == 0.4
    config.evaluation.compare.methods = ["firm", "fisher_average"]
    assert needed_share(config) == 1.0
    assert {one.codec for one in instructions(config, expand_clients(GROUPS)).values()} == {"planes"}
    config.evaluation.compare.methods = []
    config.merge = MergeConfig(method="firm_unnormalised")
    assert math.isclose(needed_share(config), 1.0)


def test_an_instruction_travels() -> None:
    one = Instruction("top", 0.25, True, 0.2)
    assert Instruction.from_json(one.to_json()) == one
