"""RMU against the same loss written out in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedforget.adapters import lora_attached
from fedforget.config import LoraConfig
from fedforget.errors import ModelError
from fedforget.models import Backbone
from fedforget.objectives import objective
from fedforget.objectives.rmu import RMU, block_output

IDS = torch.arange(3, 17).reshape(2, 7)
MASK = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0]])
BATCH = {"input_ids": IDS, "attention_mask": MASK, "labels": IDS}


def hidden(model: Any, layer: int) -> np.ndarray:
    """The output of a block by another route: transformers' own record of hidden states."""
    with torch.no_grad():
        states = model(input_ids=IDS, attention_mask=MASK, output_hidden_states=True).hidden_states
    # hidden_states[0] is the embedding, so block i's output is at i + 1.
    return states[layer + 1].numpy().astype(np.float64)


@pytest.mark.parametrize("mask_padding", [True, False])
def test_the_loss_is_that_of_numpy(tiny_backbone: Backbone, mask_padding: bool) -> None:
    model = tiny_backbone.model
    rmu = objective("rmu", layer=0, c=2, mask_padding=mask_padding)
    found = float(rmu.prepare(model, 3, "herbs")(BATCH))
    v = RMU(layer=0, c=2.0).control_vector(32, 3, "herbs").numpy().astype(np.float64)
    squares = ((hidden(model, 0) - v) ** 2).mean(axis=-1)
    expected = squares[MASK.numpy() == 1].mean() if mask_padding else squares.mean()
    assert found == pytest.approx(expected, rel=1e-5)


def test_the_control_vector_is_uniform_and_scaled() -> None:
    v = RMU(c=6.5).control_vector(10_000, 0, "herbs")
    assert float(torch.linalg.vector_norm(v)) == pytest.approx(6.5, rel=1e-5)
    # u is uniform on [0, 1): v / max(v) has no negative entry and its mean is 1/2, with a standard
    # error of sqrt(1/12) / 100 = 0.003.
    u = v / v.max()
    assert float(u.min()) >= 0.0
    assert float(u.mean()) == pytest.approx(0.5, abs=0.015)


def test_clients_of_a_domain_share_the_control_vector() -> None:
    rmu = RMU()
    assert torch.equal(rmu.control_vector(32, 0, "herbs"), rmu.control_vector(32, 0, "herbs"))
    assert not torch.equal(rmu.control_vector(32, 0, "herbs"), rmu.control_vector(32, 0, "stars"))
    assert not torch.equal(rmu.control_vector(32, 0, "herbs"), rmu.control_vector(32, 1, "herbs"))


def test_the_gradient_reaches_the_blocks_up_to_the_one_that_is_read(tiny_backbone: Backbone) -> None:
    with lora_attached(tiny_backbone, LoraConfig(r=4), seed=0) as attached:
        objective("rmu", layer=0, c=5).prepare(attached, 0, "herbs")(BATCH).backward()
        norms = {
            name: None if p.grad is None else float(p.grad.norm())
            for name, p in attached.named_parameters()
            if "lora_B" in name
        }
    below, above = (norms[next(name for name in norms if f"layers.{i}." in name)] for i in (0, 1))
    assert below is not None
    assert below > 0.0
    assert above is None


def test_the_blocks_above_are_not_run(tiny_backbone: Backbone) -> None:
    model = tiny_backbone.model
    # transformers leaves hooks of its own behind once hidden states were asked for.
    hooks = dict(model.model.layers[0]._forward_hooks)
    ran: list[int] = []
    handles = [
        block.register_forward_pre_hook(lambda *_, i=i: ran.append(i))
        for i, block in enumerate(model.model.layers)
    ]
    try:
        output = block_output(model, model.model.layers[0], BATCH)
    finally:
        for handle in handles:
            handle.remove()
    assert ran == [0]
    assert output.shape == (2, 7, 32)
    assert model.model.layers[0]._forward_hooks == hooks


def test_a_block_that_does_not_exist_is_refused(tiny_backbone: Backbone) -> None:
    with pytest.raises(ModelError, match="layer 7; the model has blocks 0 to 1"):
        objective("rmu").prepare(tiny_backbone.model, 0, "herbs")
