"""What a rounded backbone keeps of an update."""

from __future__ import annotations

import pytest
import torch

from fedforget.errors import ModelError
from fedforget.summaries import LoraFactors
from fedforget.survival import apply_delta, overall


def test_by_hand_what_bf16_keeps() -> None:
    # Next to 1, bf16 steps by 2^-7 upward: 2^-9 is lost, 2^-7 kept, 3 * 2^-8 becomes 2 * 2^-7 (ties to even).
    weight = torch.ones(1, 4, dtype=torch.bfloat16)
    update = torch.tensor([[2.0**-9, 2.0**-7, 3 * 2.0**-8, 0.0]])
    result, survival = apply_delta(weight, update)
    assert result.dtype == torch.bfloat16
    assert result.tolist() == [[1.0, 1.0 + 2.0**-7, 1.0 + 2.0**-6, 1.0]]
    assert weight.tolist() == [[1.0] * 4]
    assert survival.unchanged_share == 1 / 3
    error = (2.0**-9) ** 2 + (2.0**-8) ** 2
    norm = (2.0**-9) ** 2 + (2.0**-7) ** 2 + (3 * 2.0**-8) ** 2
    assert survival.relative_error == pytest.approx((error / norm) ** 0.5, rel=1e-15)


def test_a_wider_result_keeps_the_whole_update() -> None:
    weight, update = torch.ones(3, 5, dtype=torch.bfloat16), torch.full((3, 5), 2.0**-12)
    _, narrow = apply_delta(weight, update)
    result, wide = apply_delta(weight, update, torch.float32)
    assert (narrow.relative_error, narrow.unchanged_share) == (1.0, 1.0)
    assert (wide.relative_error, wide.unchanged_share) == (0.0, 0.0)
    assert result.dtype == torch.float32


def test_factors_blocks_and_the_whole() -> None:
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(700, 1000, generator=draw).bfloat16()  # more than one block of rows
    factors = LoraFactors(
        torch.randn(2, 1000, generator=draw), 1e-4 * torch.randn(700, 2, generator=draw), 2.0
    )
    result, survival = apply_delta(weight, factors)
    update = factors.dense()
    assert torch.equal(result, (weight.float() + update).bfloat16())
    lost = result.double() - weight.double() - update.double()
    assert survival.relative_error == pytest.approx(float(lost.norm() / update.double().norm()), rel=1e-9)
    assert survival.unchanged == int(((result == weight) & (update != 0)).sum())
    assert 0.1 < survival.unchanged_share < 1.0
    _, other = apply_delta(torch.ones(2), torch.ones(2))
    both = overall([survival, other])
    assert both.squared_norm == pytest.approx(survival.squared_norm + 2.0)
    assert both.relative_error < survival.relative_error
    assert overall([]).as_dict() == {"relative_error": 0.0, "unchanged_share": 0.0}


def test_wrong_weights_are_refused() -> None:
    with pytest.raises(ModelError, match=r"shape \(3,\), the weight \(2,\)"):
        apply_delta(torch.ones(2), torch.ones(3))
    with pytest.raises(ModelError, match=r"dtype torch\.uint8"):
        apply_delta(torch.ones(2, dtype=torch.uint8), torch.ones(2))
