"""A backbone's fingerprint: what the server compares before it merges updates of different clients."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import Tensor, nn

from fedforget.seeds import derive_seed

# Backbones up to this size are hashed whole.
WHOLE_BYTES = 2 * 1024**3
# Above it, this many elements of every tensor are.
SAMPLE_SIZE = 65_536

_FORMAT = 1
_DIMENSIONS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "tie_word_embeddings",
)


def fingerprint(model: nn.Module) -> str:
    """Hash a model's type, dimensions, parameter names, shapes, dtypes and weights.

    Up to 2 GiB of weights, every byte is hashed. Above, a sample of 65,536 elements of every
    tensor, at positions that depend on the tensor's name and size alone: two different
    checkpoints differ in it for all practical purposes, one edited weight may go unnoticed.

    Parameters
    ----------
    model : nn.Module
        A transformers model. The dtype counts: fp32 and bf16 copies of one checkpoint differ.
        NF4 weights are hashed in their packed form.

    Returns
    -------
    str
        64 hexadecimal digits; the same on every device.
    """
    config: Any = getattr(model, "config", None)
    header = {
        "format": _FORMAT,
        "model_type": getattr(config, "model_type", type(model).__name__),
        "dimensions": {name: getattr(config, name, None) for name in _DIMENSIONS},
    }
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    parameters = sorted(model.named_parameters())
    whole = sum(p.numel() * p.element_size() for _, p in parameters) <= WHOLE_BYTES
    for name, parameter in parameters:
        digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}\n".encode())
        digest.update(_bytes(parameter.detach() if whole else _sample(name, parameter.detach())))
    return digest.hexdigest()


def _sample(name: str, tensor: Tensor) -> Tensor:
    flat = tensor.reshape(-1)
    if flat.numel() <= SAMPLE_SIZE:
        return flat
    generator = torch.Generator().manual_seed(derive_seed(0, "fingerprint", name))
    positions = torch.randint(flat.numel(), (SAMPLE_SIZE,), generator=generator)
    return flat[positions.to(flat.device)]


def _bytes(tensor: Tensor) -> Any:
    return tensor.contiguous().cpu().reshape(-1).view(torch.uint8).numpy()
