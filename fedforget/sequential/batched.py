"""Several prefixes of one classifier in a single pass: the models that serve, side by side.

A batch of n inputs passes the embedding and the blocks below the first adapted one once. There it
is repeated once per prefix, and from there on each copy is adapted by its own prefix: low-rank
updates are one batched product per layer for all prefixes, whatever their depths. Each copy ends
in its own head.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedforget.errors import ModelError
from fedforget.sequential.classifiers import Classifier
from fedforget.sequential.config import ModuleConfig
from fedforget.sequential.modules import PrefixModule

_BLOCK = re.compile(r"^(.*\.layers?)\.(\d+)\.")
KINDS = ("lora", "ia3")
"""Kinds that can be batched; the others are run one prefix after the other."""


class BatchedPrefixes:
    """Prefixes over one classifier, evaluated together.

    Parameters
    ----------
    classifier : Classifier
        Bare: no adapter is in its model. It is hooked only while :meth:`logits` runs.
    cfg : ModuleConfig
        ``kind`` one of :data:`KINDS`.
    chains : sequence of sequences of PrefixModule
        Per prefix, its modules of depth 1, 2, ...; at least one prefix.

    Raises
    ------
    ModelError
        A kind that cannot be batched, or modules that do not fit the classifier.
    """

    def __init__(
        self, classifier: Classifier, cfg: ModuleConfig, chains: Sequence[Sequence[PrefixModule]]
    ) -> None:
        if cfg.kind not in KINDS:
            raise ModelError(f"module.kind: {cfg.kind} cannot be batched; only {' and '.join(KINDS)} can")
        self._classifier = classifier
        self._count = len(chains)
        self._layers = {name: self._adapter(name, cfg, chains) for name in _adapted(chains)}
        self._blocks = _blocks_from(classifier.model, self._layers)
        self._heads = [_head_tensors(classifier, chain[-1].tensors) for chain in chains]

    def logits(self, inputs: Any) -> Tensor:
        """Return the logits of every prefix, shape ``[prefixes, n, labels]``, fp32."""
        model, size = self._classifier.model, len(inputs)
        modules = dict(model.named_modules())
        handles = [
            modules[name].register_forward_pre_hook(self._repeat(size), with_kwargs=True)
            for name in self._blocks
        ]
        handles += [adapter.attach(modules[name]) for name, adapter in self._layers.items()]
        head = self._classifier.head_module()
        handles += [head.register_forward_hook(self._all_heads(head))]
        try:
            model.eval()
            with torch.inference_mode(), self._classifier.autocast():
                found = model(**self._classifier.encode(inputs)).logits
        finally:
            for handle in handles:
                handle.remove()
        by_prefix: Tensor = found.float().view(self._count, size, -1)
        return by_prefix

    def _repeat(self, size: int) -> Any:
        """Repeat what a block is given once per prefix: hidden states at the first block, masks at all."""

        def again(value: Any) -> Any:
            if isinstance(value, Tensor) and value.dim() and value.shape[0] == size:
                return value.repeat(self._count, *([1] * (value.dim() - 1)))
            return value

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return tuple(map(again, args)), {name: again(value) for name, value in kwargs.items()}

        return hook

    def _all_heads(self, head: nn.Module) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            # The hook calls the head's forward itself, so that it is not called again.
            parts = args[0].chunk(self._count)
            own = dict(head.named_parameters())
            found = []
            try:
                for tensors, part in zip(self._heads, parts, strict=True):
                    _swap(head, tensors)
                    found.append(head.forward(part))
            finally:
                _swap(head, own)
            return torch.cat(found)

        return hook

    def _adapter(self, name: str, cfg: ModuleConfig, chains: Sequence[Sequence[PrefixModule]]) -> Any:
        layer = self._classifier.model.get_submodule(name)
        if cfg.kind == "lora":
            return _LowRank(layer, name, cfg.alpha / cfg.r, chains)
        scales_input = any(name == one or name.endswith(f".{one}") for one in cfg.feedforward)
        return _Scales(layer, name, chains, scales_input)


def _swap(head: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    for name, value in tensors.items():
        owner, _, attribute = name.rpartition(".")
        module = head.get_submodule(owner)
        module._parameters[attribute] = (
            value if isinstance(value, nn.Parameter) else nn.Parameter(value, False)
        )


class _LowRank:
    """LoRA of every prefix on one layer; ranks are padded with zeros to the longest stack."""

    def __init__(self, layer: Any, name: str, scale: float, chains: Sequence[Sequence[PrefixModule]]) -> None:
        stacked = [
            (
                torch.cat([one.tensors[f"{name}.lora_A.weight"] for one in chain], dim=0),
                torch.cat([one.tensors[f"{name}.lora_B.weight"] for one in chain], dim=1) * scale,
            )
            for chain in chains
        ]
        rank = max(len(A) for A, _ in stacked)
        device = layer.weight.device
        # Shapes [prefixes, d_in, rank] and [prefixes, rank, d_out].
        down = torch.stack([nn.functional.pad(A, (0, 0, 0, rank - len(A))).T for A, _ in stacked])
        up = torch.stack([nn.functional.pad(B, (0, rank - B.shape[1])).T for _, B in stacked])
        d_in, d_out = down.shape[1], up.shape[2]
        # In narrow layers the dense updates cost less than their factors.
        dense = rank * (d_in + d_out) >= d_in * d_out
        self._down: Tensor = (torch.bmm(down, up) if dense else down).to(device)
        self._up: Tensor | None = None if dense else up.to(device)

    def attach(self, module: nn.Module) -> Any:
        def hook(layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
            rows = args[0].reshape(len(self._down), -1, args[0].shape[-1])
            update = torch.bmm(rows, self._down.to(rows.dtype))
            if self._up is not None:
                update = torch.bmm(update, self._up.to(rows.dtype))
            return output + update.view(output.shape)

        return module.register_forward_hook(hook)


class _Scales:
    """IA3 of every prefix on one layer: the scales of a stack multiply to one vector."""

    def __init__(
        self, layer: Any, name: str, chains: Sequence[Sequence[PrefixModule]], scales_input: bool
    ) -> None:
        products = []
        for chain in chains:
            scale = torch.ones(())
            for one in chain:
                scale = scale * one.tensors[f"{name}.ia3_l"].flatten()
            products.append(scale)
        self._scale = torch.stack(products).to(layer.weight.device)
        self._input = scales_input

    def attach(self, module: nn.Module) -> Any:
        def scaled(value: Tensor) -> Tensor:
            rows = value.reshape(len(self._scale), -1, value.shape[-1])
            return (rows * self._scale[:, None].to(rows.dtype)).view(value.shape)

        if self._input:
            return module.register_forward_pre_hook(lambda layer, args: (scaled(args[0]), *args[1:]))
        return module.register_forward_hook(lambda layer, args, output: scaled(output))


def _adapted(chains: Sequence[Sequence[PrefixModule]]) -> list[str]:
    marks = (".lora_A.weight", ".ia3_l")
    names = chains[0][0].tensors
    return [name.removesuffix(mark) for name in sorted(names) for mark in marks if name.endswith(mark)]


def _blocks_from(model: nn.Module, layers: Mapping[str, Any]) -> list[str]:
    """Return the names of the encoder's blocks from the first that holds an adapted layer."""
    found = [_BLOCK.match(name) for name in layers]
    if not found or not all(found) or len({one[1] for one in found if one}) != 1:
        raise ModelError(
            "module.targets: they lie outside one stack of encoder blocks, so prefixes cannot be batched"
        )
    stack = next(one[1] for one in found if one)
    first = min(int(one[2]) for one in found if one)
    blocks = model.get_submodule(stack)
    return [f"{stack}.{i}" for i in range(first, len(list(blocks.children())))]


def _head_tensors(classifier: Classifier, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    prefix = f"{classifier.head}."
    return {
        name.removeprefix(prefix): tensors[name].to(value.device)
        for name, value in classifier.head_parameters()
    }
