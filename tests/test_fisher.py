"""The empirical Fisher diagonal against a full backward pass, and what it refuses."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedforget.errors import DataError, ModelError
from fedforget.fisher import empirical_fisher
from fedforget.models import Backbone

NAMES = ["model.layers.1.mlp.down_proj.weight", "model.layers.0.self_attn.q_proj.weight"]


def sequence(seed: int, length: int) -> Tensor:
    return torch.randint(3, 500, (1, length), generator=torch.Generator().manual_seed(seed))


SEQUENCES = [sequence(seed, length) for seed, length in enumerate((7, 12, 5, 9))]


def naive(model: Any, sequences: list[Tensor], count: int) -> dict[str, Tensor]:
    """One full backward pass per sequence, through every parameter, with transformers' own loss."""
    sums = {name: torch.zeros(()) for name in NAMES}
    parameters = dict(model.named_parameters())
    try:
        model.requires_grad_(True)
        for i in range(count):
            ids = sequences[i % len(sequences)]
            model.zero_grad()
            model(input_ids=ids, labels=ids).loss.backward()
            sums = {name: sums[name] + parameters[name].grad ** 2 for name in NAMES}
    finally:
        model.zero_grad(set_to_none=True)
        model.requires_grad_(False)
    return {name: total / count for name, total in sums.items()}


def fisher(model: Any, batches: Any, count: int, **options: Any) -> dict[str, Tensor]:
    return empirical_fisher(model, batches, NAMES, count, **{"dtype": torch.float32, **options})


def padded(sequences: list[Tensor], left: bool = False) -> dict[str, Tensor]:
    length = max(ids.shape[1] for ids in sequences)
    ids = torch.zeros(len(sequences), length, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for i, one in enumerate(sequences):
        n = one.shape[1]
        place = slice(length - n, length) if left else slice(0, n)
        ids[i, place], mask[i, place] = one[0], 1
    return {"input_ids": ids, "attention_mask": mask}


def test_equals_a_full_backward_pass_to_the_bit(tiny_backbone: Backbone) -> None:
    batches = [{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in SEQUENCES]
    found = fisher(tiny_backbone.model, batches, 4)
    expected = naive(tiny_backbone.model, SEQUENCES, 4)
    assert list(found) == NAMES
    for name in NAMES:
        assert torch.equal(found[name], expected[name])
        assert found[name].max() > 0


def test_equals_a_full_backward_pass_of_a_bf16_model(tiny_backbone: Backbone) -> None:
    model = copy.deepcopy(tiny_backbone.model).bfloat16()
    found = fisher(model, [padded(SEQUENCES)], 3)
    sums = {name: torch.zeros(()) for name in NAMES}
    model.requires_grad_(True)
    parameters = dict(model.named_parameters())
    for ids in SEQUENCES[:3]:
        model.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        sums = {name: sums[name] + parameters[name].grad.float() ** 2 for name in NAMES}
    for name in NAMES:
        assert torch.equal(found[name], sums[name] / 3)


def test_gradients_are_let_go_of_one_by_one(tiny_backbone: Backbone) -> None:
    weights = [dict(tiny_backbone.model.named_parameters())[name] for name in NAMES]
    alive: list[int] = []

    def count(_weight: Tensor) -> None:
        alive.append(sum(weight.grad is not None for weight in weights))

    for weight in weights:
        weight.requires_grad_(True)
    hooks: list[Any] = [weight.register_post_accumulate_grad_hook(count) for weight in weights]
    try:
        fisher(tiny_backbone.model, [padded(SEQUENCES)], 2)
    finally:
        for hook, weight in zip(hooks, weights, strict=True):
            hook.remove()
            weight.requires_grad_(False)
    assert alive == [1, 1, 1, 1]


def test_a_tied_weight_has_one_fisher_under_both_names(tiny_backbone: Backbone) -> None:
    model = copy.deepcopy(tiny_backbone.model)
    model.lm_head.weight = model.model.embed_tokens.weight
    names = ["model.embed_tokens.weight", "lm_head.weight"]
    found = empirical_fisher(model, [padded(SEQUENCES)], names, 2)
    assert torch.equal(found[names[0]], found[names[1]])
    assert found[names[0]].max() > 0


def test_recomputed_activations_give_the_same_bits_and_are_not_kept(tiny_backbone: Backbone) -> None:
    model, kept = tiny_backbone.model, [0, 0]
    expected = fisher(model, [padded(SEQUENCES)], 3)

    def pack(tensor: Tensor, which: int) -> Tensor:
        kept[which] += tensor.numel()
        return tensor

    def measured(which: int, recompute: bool) -> dict[str, Tensor]:
        with torch.autograd.graph.saved_tensors_hooks(lambda one: pack(one, which), lambda one: one):
            return fisher(model, [padded(SEQUENCES)], 3, recompute=recompute)

    measured(0, False)
    found = measured(1, True)
    assert all(torch.equal(found[name], expected[name]) for name in NAMES)
    assert kept[1] < 0.5 * kept[0]
    assert not any("forward" in vars(block) for block in model.model.layers)
    with pytest.raises(DataError, match=r"fisher\.recompute: works on one sequence at a time"):
        fisher(model, [padded(SEQUENCES)], 3, recompute=True, batch=2)


def test_only_the_selected_weights_are_differentiated(tiny_backbone: Backbone) -> None:
    """Blocks below the lowest selected weight keep nothing for a backward pass."""
    graphs: list[bool] = []
    block = tiny_backbone.model.model.layers[0]
    hook = block.register_forward_hook(
        lambda _module, _inputs, output: graphs.append(
            (output if isinstance(output, Tensor) else output[0]).requires_grad
        )
    )
    try:
        empirical_fisher(tiny_backbone.model, [padded(SEQUENCES)], NAMES[:1], 2)
        empirical_fisher(tiny_backbone.model, [padded(SEQUENCES)], NAMES, 1)
    finally:
        hook.remove()
    assert graphs == [False, False, True]


@pytest.mark.parametrize("batch", [2, 3, 9])
def test_a_batch_in_one_pass_is_equal_up_to_rounding(tiny_backbone: Backbone, batch: int) -> None:
    labels = torch.where(padded(SEQUENCES)["attention_mask"] == 1, padded(SEQUENCES)["input_ids"], -100)
    labels[:, :3] = -100
    data = [{**padded(SEQUENCES), "labels": labels}]
    alone = fisher(tiny_backbone.model, data, 7)
    found = fisher(tiny_backbone.model, data, 7, batch=batch)
    for name in NAMES:
        assert float((found[name] - alone[name]).norm() / alone[name].norm()) < 1e-6
        torch.testing.assert_close(found[name], alone[name], rtol=1e-5, atol=1e-6 * float(alone[name].max()))


def test_what_a_batch_in_one_pass_cannot_be(tiny_backbone: Backbone) -> None:
    def refused(model: Any, name: str, message: str, **options: Any) -> None:
        with pytest.raises(ModelError, match=message):
            empirical_fisher(model, [padded(SEQUENCES)], [name], 2, batch=2, **options)

    refused(tiny_backbone.model, "model.norm.weight", "not a linear layer's own.*fisher.batch to 1")
    refused(tiny_backbone.model, "model.embed_tokens.weight", "not a linear layer's own")
    refused(copy.deepcopy(tiny_backbone.model).bfloat16(), NAMES[0], "is bfloat16.*in fp32 alone")
    with pytest.raises(DataError, match=r"fisher\.batch: 0"):
        fisher(tiny_backbone.model, [padded(SEQUENCES)], 2, batch=0)


@pytest.mark.parametrize("left", [False, True])
def test_a_batch_is_squared_sequence_by_sequence(tiny_backbone: Backbone, left: bool) -> None:
    together = fisher(tiny_backbone.model, [padded(SEQUENCES, left)], 4)
    alone = fisher(tiny_backbone.model, [{"input_ids": ids} for ids in SEQUENCES], 4)
    for name in NAMES:
        assert torch.equal(together[name], alone[name])


def test_fewer_sequences_are_cycled_in_order(tiny_backbone: Backbone) -> None:
    found = fisher(tiny_backbone.model, [padded(SEQUENCES[:3])], 7)
    expected = naive(tiny_backbone.model, SEQUENCES[:3], 7)
    for name in NAMES:
        assert torch.equal(found[name], expected[name])


def test_only_the_first_sequences_are_read(tiny_backbone: Backbone) -> None:
    def endless() -> Any:
        yield padded(SEQUENCES[:2])
        yield padded(SEQUENCES[2:])
        raise AssertionError("read on")

    found = fisher(tiny_backbone.model, endless(), 3)
    expected = naive(tiny_backbone.model, SEQUENCES[:3], 3)
    assert all(torch.equal(found[name], expected[name]) for name in NAMES)


def test_the_loss_is_the_mean_over_target_tokens(tiny_backbone: Backbone) -> None:
    # With one target the gradient is that of one token's loss; padding labels must not count.
    ids = SEQUENCES[0]
    labels = torch.full_like(ids, -100)
    labels[0, 4] = ids[0, 4]
    found = fisher(tiny_backbone.model, [{"input_ids": ids, "labels": labels}], 1)
    model = tiny_backbone.model
    parameter = dict(model.named_parameters())[NAMES[0]].requires_grad_(True)
    loss = -torch.log_softmax(model(input_ids=ids).logits[0, 3].float(), dim=-1)[ids[0, 4]]
    (gradient,) = torch.autograd.grad(loss, [parameter])
    parameter.requires_grad_(False)
    torch.testing.assert_close(found[NAMES[0]], gradient**2, rtol=1e-4, atol=1e-12)


def test_stored_as_bf16_by_default(tiny_backbone: Backbone) -> None:
    found = empirical_fisher(tiny_backbone.model, [padded(SEQUENCES)], NAMES, 4)
    wide = fisher(tiny_backbone.model, [padded(SEQUENCES)], 4)
    for name in NAMES:
        assert found[name].dtype == torch.bfloat16
        assert torch.equal(found[name], wide[name].to(torch.bfloat16))


def test_squares_accumulate_in_fp32_on_a_bf16_model() -> None:
    # The loss is log(1 + e^w) with w = 0, so the gradient is 1/2 in bf16 and each square 1/4. In bf16,
    # adding 1/4 stops at 64 (the next value is 64.5); in fp32 the mean of 400 squares is 1/4 exactly.
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))

        def forward(self, input_ids: Tensor, **_: Any) -> Any:
            logits = torch.cat([torch.zeros(1, dtype=torch.bfloat16), self.weight]).expand(
                1, input_ids.shape[1], 2
            )
            return type("Output", (), {"logits": logits})

    found = empirical_fisher(Two(), [{"input_ids": torch.zeros(1, 2, dtype=torch.int64)}], ["weight"], 400)
    assert found["weight"].tolist() == [0.25]


def test_the_model_is_left_as_it_was(tiny_backbone: Backbone) -> None:
    model = tiny_backbone.model
    weight = dict(model.named_parameters())["model.norm.weight"].requires_grad_(True)
    selected = dict(model.named_parameters())[NAMES[0]]
    gradient = selected.grad = torch.ones_like(selected)
    model.train()
    flags = {name: p.requires_grad for name, p in model.named_parameters()}
    try:
        fisher(model, [padded(SEQUENCES)], 2)
        assert {name: p.requires_grad for name, p in model.named_parameters()} == flags
        assert selected.grad is gradient
        assert gradient.eq(1).all()
        selected.grad = None
        assert all(p.grad is None for p in model.parameters())
        assert all(module.training for module in model.modules())
    finally:
        model.eval()
        selected.grad = None
        weight.requires_grad_(False)


def test_errors(tiny_backbone: Backbone) -> None:
    model, batch = tiny_backbone.model, padded(SEQUENCES)
    with pytest.raises(ModelError, match=r"no weight 'model.layers.1.mlp.down_prj.weight' \(did you mean"):
        empirical_fisher(model, [batch], ["model.layers.1.mlp.down_prj.weight"])
    with pytest.raises(ModelError, match="at least one"):
        empirical_fisher(model, [batch], [])
    with pytest.raises(DataError, match="no sequences"):
        fisher(model, [], 3)
    with pytest.raises(DataError, match="over 0 sequences"):
        fisher(model, [batch], 0)
    nothing = {**batch, "labels": torch.full_like(batch["input_ids"], -100)}
    with pytest.raises(DataError, match="sequence 0 has no target token"):
        fisher(model, [nothing], 3)
    with pytest.raises(DataError, match="sequence 1 has no target token"):
        fisher(model, [{"input_ids": SEQUENCES[0]}, {"input_ids": torch.ones(1, 1, dtype=torch.int64)}], 3)
