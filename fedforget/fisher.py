"""The empirical Fisher diagonal (FIRM, equation 1 and appendix C).

For a weight tensor W and a client's sequences x_1 .. x_n, entry j is the mean over sequences of
``(d l(x_i) / d W_j)^2``, with l the causal language-modelling loss averaged over the sequence's
target tokens, at the pretrained reference weights (no adapter). Clients that train with RMU
take the language-modelling loss here as well.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedforget.errors import DataError, ModelError, nearest
from fedforget.fisher_batch import add_squares
from fedforget.recompute import blocks_recomputed

_IGNORED = -100


def empirical_fisher(
    model: nn.Module,
    batches: Iterable[Mapping[str, Tensor]],
    names: Iterable[str],
    num_sequences: int = 20,
    *,
    dtype: torch.dtype = torch.bfloat16,
    batch: int = 1,
    recompute: bool = False,
) -> dict[str, Tensor]:
    """Compute the empirical Fisher diagonal of a few weight tensors.

    Each sequence is squared on its own, whatever the batches: the square of a batch's mean
    gradient is another number. Padding is cut off first, so the batching makes no difference. Only
    the selected weights are differentiated, so the backward pass ends at the lowest of them.

    Parameters
    ----------
    model : nn.Module
        A causal language model of transformers at the reference weights. Its ``requires_grad``
        flags, gradients and training mode are left as they were.
    batches : iterable of mapping
        ``input_ids`` of shape ``[sequences, tokens]``; optional ``attention_mask`` and ``labels``
        (-100 where a token is no target; without labels every token but padding is one). Read in
        order up to ``num_sequences`` sequences, from the beginning again if there are fewer.
    names : iterable of str
        Parameter names.
    num_sequences : int
        Sequences in the mean.
    dtype : torch.dtype
        Of the result; squares are accumulated in fp32.
    batch : int
        Sequences in one pass. With 1, the result is that of a full backward pass per sequence, to
        the bit. Above, it is so up to rounding, for fp32 weights of linear layers alone, and
        meant for GPUs; see :mod:`fedforget.fisher_batch`.
    recompute : bool
        Keep the inputs of decoder blocks alone, and compute the rest again on the way back: the same bits
        with less memory, in more time. For one sequence in a pass.

    Returns
    -------
    dict
        Name to a non-negative tensor of the weight's shape, on the CPU.

    Raises
    ------
    ModelError
        A name that the model does not have, or a weight without a gradient (NF4, or unused); with
        ``batch`` above 1, a weight that is not a linear layer's in fp32.
    DataError
        No sequences, a sequence without a target, or gradients that are not finite.
    """
    weights = _select(model, names)
    if num_sequences < 1:
        raise DataError(
            f"the Fisher diagonal over {num_sequences} sequences is not defined; take at least one"
        )
    if batch < 1:
        raise DataError(f"fisher.batch: {batch} sequences in one pass; take at least one")
    if batch > 1 and recompute:
        raise DataError("fisher.recompute: works on one sequence at a time; set fisher.batch to 1")
    device = next(iter(weights.values())).device
    sums = {
        name: torch.zeros(weight.shape, dtype=torch.float32, device=device)
        for name, weight in weights.items()
    }
    sparing = blocks_recomputed(model) if recompute else contextlib.nullcontext()
    with _only_differentiable(model, weights), sparing:
        sequences = _with_targets(_cycle(batches, num_sequences))
        while batch > 1 and (group := list(itertools.islice(sequences, batch))):
            add_squares(model, weights, group, sums)
        for sequence in sequences:
            missing = _add_squares(_sequence_loss(model, sequence, device), weights, sums)
            if missing:
                raise ModelError(
                    f"weight {missing[0]!r} takes no part in the model's output, so it has no Fisher"
                )
    return {name: _finished(name, total, num_sequences, dtype) for name, total in sums.items()}


def _add_squares(loss: Tensor, weights: Mapping[str, nn.Parameter], sums: Mapping[str, Tensor]) -> list[str]:
    """Add each weight's squared gradient to its sum; return the names of weights that got none.

    A gradient is squared and let go of as soon as the backward pass has it whole: two never are in
    memory at once, however many weights are selected.
    """
    missing = dict.fromkeys(weights)
    shared: dict[Tensor, list[str]] = {}  # a tied weight has several names
    for name, weight in weights.items():
        shared.setdefault(weight, []).append(name)

    def square(weight: Tensor) -> None:
        gradient, weight.grad = weight.grad, None
        assert gradient is not None  # the hook runs because there is one
        squares = gradient.to(torch.float32).square_()  # the gradient is ours: nobody reads it after this
        for name in shared[weight]:
            sums[name].add_(squares)
            missing.pop(name)

    weights_once: list[Any] = list(shared)
    hooks = [weight.register_post_accumulate_grad_hook(square) for weight in weights_once]
    try:
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
    finally:
        for hook in hooks:
            hook.remove()
    return list(missing)


def _finished(name: str, total: Tensor, num_sequences: int, dtype: torch.dtype) -> Tensor:
    mean = total.div_(num_sequences).to("cpu", dtype)
    if mean.numel() and not bool(torch.isfinite(mean.max())):
        raise DataError(f"the Fisher diagonal of {name!r} is not finite; take the reference copy in fp32")
    return mean


def _select(model: nn.Module, names: Iterable[str]) -> dict[str, nn.Parameter]:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    weights: dict[str, nn.Parameter] = {}
    for name in names:
        if name not in parameters:
            raise ModelError(f"the model has no weight {name!r}{nearest(name, parameters)}")
        if not parameters[name].is_floating_point():
            raise ModelError(
                f"weight {name!r} is quantised and has no gradient; take the Fisher at a bf16 or fp32 copy "
                "(model.fisher_precision)"
            )
        weights[name] = parameters[name]
    if not weights:
        raise ModelError("the Fisher diagonal of no weights was asked for; name at least one")
    return weights


@contextlib.contextmanager
def _only_differentiable(model: nn.Module, weights: Mapping[str, nn.Parameter]) -> Iterator[None]:
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    gradients = [(weight, weight.grad) for weight in weights.values()]
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval().requires_grad_(False)
        for weight in weights.values():
            weight.requires_grad_(True)
            weight.grad = None
        with torch.enable_grad():
            yield
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
        for weight, gradient in gradients:
            weight.grad = gradient
        for module, mode in modes:
            module.training = mode


def _cycle(batches: Iterable[Mapping[str, Tensor]], count: int) -> Iterator[dict[str, Tensor]]:
    seen: list[dict[str, Tensor]] = []
    for batch in batches:
        for sequence in _split(batch):
            seen.append(sequence)
            yield sequence
            if len(seen) == count:
                return
    if not seen:
        raise DataError("there are no sequences to take the Fisher diagonal over")
    for number in range(len(seen), count):
        yield seen[number % len(seen)]


def _split(batch: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Yield each sequence of a batch as a batch of one, without the padding at its ends."""
    ids = _two_dimensional(batch["input_ids"])
    given_mask, given_labels = batch.get("attention_mask"), batch.get("labels")
    mask = torch.ones_like(ids) if given_mask is None else _two_dimensional(given_mask)
    labels = ids if given_labels is None else _two_dimensional(given_labels)
    labels = labels.masked_fill(mask == 0, _IGNORED)
    for i in range(ids.shape[0]):
        present: Sequence[int] = mask[i].nonzero().flatten().tolist()
        cut = slice(present[0], present[-1] + 1) if present else slice(0, 0)
        yield {
            "input_ids": ids[i : i + 1, cut],
            "attention_mask": mask[i : i + 1, cut],
            "labels": labels[i : i + 1, cut],
        }


def _with_targets(sequences: Iterable[dict[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    for number, sequence in enumerate(sequences):
        # The first token is predicted from nothing.
        if not bool((sequence["labels"][:, 1:] != _IGNORED).any()):
            raise DataError(
                f"sequence {number} has no target token, so its Fisher is not defined; leave it out"
            )
        yield sequence


def _sequence_loss(model: nn.Module, sequence: Mapping[str, Tensor], device: torch.device) -> Tensor:
    targets = functional.pad(sequence["labels"], (0, 1), value=_IGNORED)[:, 1:].to(device)
    inputs: dict[str, Any] = {name: sequence[name].to(device) for name in ("input_ids", "attention_mask")}
    logits: Tensor = model(**inputs, use_cache=False).logits
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=_IGNORED)


def _two_dimensional(tensor: Tensor) -> Tensor:
    return tensor if tensor.ndim > 1 else tensor.unsqueeze(0)
