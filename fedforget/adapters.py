"""LoRA on the shared backbone: which weights it adapts, how it comes and goes, what it amounts to."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedforget.blocks import block_number, decoder_blocks
from fedforget.config import LoraConfig
from fedforget.errors import ModelError, nearest
from fedforget.models import Backbone
from fedforget.rng import seeded
from fedforget.summaries import Delta, LoraFactors
from fedforget.survival import apply_delta

_ADAPTER = "default"
_PEFT_PREFIX = "base_model.model."


@torch.no_grad()
def weight_norms(model: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, float]:
    """Return the Frobenius norms of weights; those that are kept in another shape (NF4) are left out.

    Parameters
    ----------
    model : nn.Module
    shapes : mapping of str to tuple of int
        As :func:`adapted_weights` returns it.
    """
    own = dict(model.named_parameters())
    return {
        name: float(torch.linalg.vector_norm(own[name].float()))
        for name, shape in shapes.items()
        if name in own and tuple(own[name].shape) == tuple(shape)
    }


def adapted_weights(model: nn.Module, lora: LoraConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight that the adapter changes.

    Parameters
    ----------
    model : nn.Module
        The backbone, without an adapter.
    lora : LoraConfig
        ``targets`` are module names, or their last parts (``down_proj``, ``mlp.down_proj``);
        ``layers`` keeps those in the named decoder blocks alone, counted from 0.

    Returns
    -------
    dict
        Parameter name (``model.layers.5.mlp.down_proj.weight``) to ``(d_out, d_in)``, in the
        model's order. For NF4 the shape is that of the dense weight.

    Raises
    ------
    ModelError
        A target that matches no module, a block that does not exist, or a module that is not a
        linear map of its own.
    """
    return {
        f"{name}.weight": (int(module.out_features), int(module.in_features))
        for name, module in _targets(model, lora).items()
    }


def _targets(model: nn.Module, lora: LoraConfig) -> dict[str, Any]:
    blocks, count = "", 0
    if lora.layers:
        blocks, found = decoder_blocks(model)
        count = len(found)
    beyond = sorted(layer for layer in lora.layers if not 0 <= layer < count)
    if beyond:
        raise ModelError(f"lora.layers: there is no block {beyond[0]}; the model has blocks 0 to {count - 1}")
    modules = dict(model.named_modules())
    chosen: dict[str, Any] = {}
    for target in lora.targets:
        matches = [name for name in modules if name == target or name.endswith(f".{target}")]
        if not matches:
            known = sorted({n.rpartition(".")[2] for n, m in modules.items() if isinstance(m, nn.Linear)})
            raise ModelError(
                f"lora.targets: no module is called {target!r}{nearest(target, known)}; "
                f"the model's linear modules: {', '.join(known)}"
            )
        for name in matches:
            if not lora.layers or block_number(name, blocks) in lora.layers:
                _refuse_other_than_linear(model, name, modules[name])
                chosen[name] = modules[name]
    if not chosen:
        raise ModelError(
            f"lora.targets: {', '.join(lora.targets)} lie outside the decoder blocks that lora.layers names; "
            "leave lora.layers empty or choose other targets"
        )
    return {name: chosen[name] for name in modules if name in chosen}


def _refuse_other_than_linear(model: nn.Module, name: str, module: nn.Module) -> None:
    if not isinstance(module, nn.Linear):
        raise ModelError(
            f"lora.targets: {name!r} is a {type(module).__name__}; adapters are for linear modules "
            "(nn.Linear), whose update is a d_out x d_in matrix"
        )
    users = [other for other, one in model.named_modules() if getattr(one, "weight", None) is module.weight]
    if len(users) > 1:
        other = next(user for user in users if user != name)
        raise ModelError(
            f"lora.targets: {name!r} shares its weight with {other!r}; an update would change both, "
            "so it cannot be adapted"
        )


@contextlib.contextmanager
def lora_attached(backbone: Backbone, lora: LoraConfig, seed: int) -> Iterator[Any]:
    """Attach a fresh LoRA adapter for the length of a block.

    The update starts at zero: A is drawn from ``seed``, B is 0. Adapter weights are fp32 whatever
    the backbone's precision. On exit the backbone is what it was: the same modules, the same
    bits, the same ``requires_grad`` flags. Torch's global random state is left alone.

    Parameters
    ----------
    backbone : Backbone
        Must not have an adapter already.
    lora : LoraConfig
        Rank, scale, targets.
    seed : int
        Of the initialisation. All clients of a run share it, or their updates do not align.

    Yields
    ------
    peft.PeftModel
        In evaluation mode; only the adapter's weights require a gradient.

    Raises
    ------
    ModelError
        As :func:`adapted_weights`, or an adapter is attached already.
    """
    from peft import LoraConfig as PeftLoraConfig
    from peft import TaskType, get_peft_model

    model = backbone.model
    if hasattr(model, "peft_config"):
        raise ModelError("the backbone has an adapter already; attach one at a time")
    names = list(_targets(model, lora))
    _check_patterns(names, lora)
    flags = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    training = {name: module.training for name, module in model.named_modules()}
    make: Any = PeftLoraConfig  # declares an integer alpha, takes any number
    config = make(
        task_type=TaskType.CAUSAL_LM,
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        use_rslora=lora.rslora,
        target_modules=names,
        alpha_pattern=dict(lora.alpha_pattern),
    )
    with seeded(seed, backbone.device), warnings.catch_warnings():
        # PEFT's own use of a name that transformers renamed: one warning per client says nothing to anybody.
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
        attached = get_peft_model(model, config, adapter_name=_ADAPTER)
    try:
        yield attached.eval()
    finally:
        attached.unload()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(flags[name])
            parameter.grad = None
        for name, module in model.named_modules():
            module.training = training[name]


def _check_patterns(names: list[str], lora: LoraConfig) -> None:
    from peft.utils.other import get_pattern_key

    for pattern in lora.alpha_pattern:
        if all(get_pattern_key([pattern], name) != pattern for name in names):
            raise ModelError(
                f"lora.alpha_pattern: {pattern!r} matches no adapted module; the first is {names[0]!r}"
            )


def lora_factors(peft_model: Any) -> dict[str, LoraFactors]:
    """Return the adapter's task vectors as factors: ``delta = scale * B @ A``.

    Parameters
    ----------
    peft_model : peft.PeftModel
        With one LoRA adapter.

    Returns
    -------
    dict
        The backbone's own parameter name to factors: copies on the CPU, in the adapter's dtype.
        ``scale`` is PEFT's own, so rank-stabilised scaling and alpha patterns are honoured.

    Raises
    ------
    ModelError
        The model has no LoRA adapter.
    """
    from peft.tuners.lora import LoraLayer

    factors = {}
    for name, module in peft_model.named_modules():
        if isinstance(module, LoraLayer) and _ADAPTER in module.lora_A:
            factors[name.removeprefix(_PEFT_PREFIX) + ".weight"] = LoraFactors(
                A=_copy(module.lora_A[_ADAPTER].weight),
                B=_copy(module.lora_B[_ADAPTER].weight),
                scale=float(module.scaling[_ADAPTER]),
            )
    if not factors:
        raise ModelError("the model has no LoRA adapter; attach one with lora_attached")
    return factors


def _copy(weight: Any) -> Tensor:
    copied: Tensor = weight.detach().to("cpu", copy=True)
    return copied


@contextlib.contextmanager
def deltas_applied(model: nn.Module, deltas: Mapping[str, Delta]) -> Iterator[dict[str, float]]:
    """Add updates to a model's weights for the length of a block; the exact bits return after it.

    The sum is formed in fp32 and rounded once to the weight's dtype, which for a bf16 backbone
    loses part of a small update. NF4 weights have no grid point for the sum: there the update is
    applied to the module's input beside the quantised weight, unrounded.

    Parameters
    ----------
    model : nn.Module
        The backbone.
    deltas : mapping of str to Tensor or LoraFactors
        Parameter name to update. May be empty.

    Yields
    ------
    dict
        Per tensor, how far the applied update is from the one given, relative to its l2 norm:
        0 is all of it, 1 none of it.

    Raises
    ------
    ModelError
        A name or shape that is not the model's.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    modules = dict(model.named_modules())
    kept: list[tuple[nn.Parameter, Tensor]] = []
    hooks: list[Any] = []
    lost: dict[str, float] = {}
    try:
        with torch.no_grad():
            for name, delta in deltas.items():
                if name not in parameters:
                    raise ModelError(f"the model has no weight {name!r}{nearest(name, parameters)}")
                weight, module = parameters[name], modules[name.rpartition(".")[0]]
                shape = tuple(weight.shape)
                if not weight.is_floating_point() and isinstance(module, nn.Linear):
                    shape = (module.out_features, module.in_features)
                if tuple(delta.shape) != shape:
                    raise ModelError(
                        f"update {name!r} has shape {tuple(delta.shape)}, the weight has {shape}"
                    )
                if not weight.is_floating_point():
                    hooks.append(module.register_forward_hook(_beside(delta, weight.device)))
                    lost[name] = 0.0
                    continue
                total, survival = apply_delta(weight, delta)
                lost[name] = survival.relative_error
                # The old tensor is put aside, not subtracted back: floating-point sums do not undo.
                kept.append((weight, weight.data))
                weight.data = total
        yield lost
    finally:
        for weight, old in reversed(kept):
            weight.data = old
        for hook in hooks:
            hook.remove()


def _beside(delta: Delta, device: torch.device) -> Any:
    parts = (delta.A, delta.B) if isinstance(delta, LoraFactors) else (delta,)
    matrices = [part.to(device, torch.float32) for part in parts]
    scale = delta.scale if isinstance(delta, LoraFactors) else 1.0

    def hook(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        x = inputs[0].float()
        for matrix in matrices:
            x = x @ matrix.T
        return (output.float() + scale * x).to(output.dtype)

    return hook
