"""Squares of per-sequence gradients from one pass over a batch of sequences (linear layers, fp32).

For ``y = x W^T`` the gradient of one sequence's loss is ``g^T x``, summed over its tokens, with ``g``
the loss's gradient at ``y``. Sequences of a batch do not meet inside the model, so one backward pass
to the layers' *outputs* gives every sequence's ``g``, and the gradient of the batch is never formed.

Padding and larger products round differently, so this is equal to one sequence at a time up to
rounding in fp32, not to the bit; in bf16 it would be off by percents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from fedforget.errors import ModelError

_IGNORED = -100


def add_squares(
    model: nn.Module,
    weights: Mapping[str, nn.Parameter],
    sequences: Sequence[Mapping[str, Tensor]],
    sums: Mapping[str, Tensor],
) -> None:
    """Add every sequence's squared gradient to ``sums``, in the order of the sequences.

    Parameters
    ----------
    model : nn.Module
        A causal language model in evaluation mode.
    weights : mapping of str to Parameter
        Of linear layers, fp32, requiring a gradient.
    sequences : sequence of mapping
        ``input_ids``, ``attention_mask`` and ``labels`` of shape ``[1, tokens]``, without padding,
        each with a target.
    sums : mapping of str to Tensor
        fp32, of the weights' shapes; changed.

    Raises
    ------
    ModelError
        A weight that is not a linear layer's own, is not fp32, or does not see whole sequences.
    """
    modules = _linear(model, weights)
    calls: list[tuple[str, Tensor, Tensor]] = []
    hooks = [module.register_forward_hook(_keep(calls, name)) for name, module in modules.items()]
    try:
        loss = _loss(model, sequences, next(iter(weights.values())).device)
    finally:
        for hook in hooks:
            hook.remove()
    missing = sorted(set(weights) - {name for name, _, _ in calls})
    gradients = torch.autograd.grad(loss, [output for _, _, output in calls], allow_unused=True)
    found: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in weights}
    for (name, inputs, _), gradient in zip(calls, gradients, strict=True):
        if gradient is None:
            missing.append(name)
        elif inputs.ndim != 3 or inputs.shape[0] != len(sequences):
            raise ModelError(
                f"weight {name!r} does not see whole sequences, so a batch cannot be told apart; "
                "set fisher.batch to 1"
            )
        else:
            found[name].append((inputs, gradient))
    if missing:
        raise ModelError(f"weight {missing[0]!r} takes no part in the model's output, so it has no Fisher")
    for name, parts in found.items():
        for i in range(len(sequences)):
            one = sum((gradient[i].T @ inputs[i] for inputs, gradient in parts[1:]), _product(parts[0], i))
            sums[name].add_(one.square_())


def _product(part: tuple[Tensor, Tensor], i: int) -> Tensor:
    inputs, gradient = part
    return gradient[i].T @ inputs[i]


def _keep(calls: list[tuple[str, Tensor, Tensor]], name: str) -> Any:
    def hook(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        calls.append((name, inputs[0].detach(), output))

    return hook


def _linear(model: nn.Module, weights: Mapping[str, nn.Parameter]) -> dict[str, nn.Linear]:
    modules = dict(model.named_modules())
    found: dict[str, nn.Linear] = {}
    for name, weight in weights.items():
        module = modules.get(name.removesuffix(".weight"))
        users = [one for one in modules.values() if getattr(one, "weight", None) is weight]
        if not isinstance(module, nn.Linear) or users != [module]:
            raise ModelError(
                f"weight {name!r} is not a linear layer's own, so a batch cannot be told apart; "
                "set fisher.batch to 1"
            )
        if weight.dtype != torch.float32:
            raise ModelError(
                f"weight {name!r} is {str(weight.dtype).removeprefix('torch.')}, and a batch is told apart "
                "in fp32 alone; set fisher.batch to 1, or model.fisher_precision to fp32"
            )
        found[name] = module
    return found


def _loss(model: nn.Module, sequences: Sequence[Mapping[str, Tensor]], device: torch.device) -> Tensor:
    """Return the sum over sequences of the mean loss over each one's targets."""
    ids, mask, labels = (
        pad_sequence([one[key][0] for one in sequences], batch_first=True, padding_value=value).to(device)
        for key, value in (("input_ids", 0), ("attention_mask", 0), ("labels", _IGNORED))
    )
    targets = functional.pad(labels, (0, 1), value=_IGNORED)[:, 1:]
    logits: Tensor = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    losses = functional.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten(), ignore_index=_IGNORED, reduction="none"
    )
    return (losses.view_as(targets).sum(1) / (targets != _IGNORED).sum(1)).sum()
