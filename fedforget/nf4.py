"""NF4: weights of four bits, by bitsandbytes."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch import nn

from fedforget.errors import ModelError


def options(device: torch.device) -> dict[str, Any]:
    """Return what transformers is to be told to quantise a model as it reads it.

    Raises
    ------
    ModelError
        bitsandbytes is missing, or the device is one that it does not run on.
    """
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ModelError(
            "model.precision: nf4 needs bitsandbytes; install it with: pip install 'fedforget[nf4]', "
            "or set model.precision to bf16"
        )
    if device.type == "mps":
        raise ModelError(
            "model.precision: nf4 does not run on MPS; set model.device to cpu or model.precision to bf16"
        )
    from transformers import BitsAndBytesConfig

    quantisation: Any = BitsAndBytesConfig
    # CPUs without native bf16 emulate it at a thirtieth of the speed of fp32.
    compute = torch.float32 if device.type == "cpu" else torch.bfloat16
    return {
        "quantization_config": quantisation(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=compute
        ),
        "dtype": compute,
        "device_map": {"": device},
    }


def keep_gradients_right_on_cpu(model: nn.Module) -> None:
    """Stop bitsandbytes from repacking NF4 weights on CPUs with AVX512-bf16.

    An evaluation-mode forward pass packs the weights for its own kernel, and later backward
    passes read the packed bytes as if they were not: the gradients come out silently wrong.
    """
    from bitsandbytes.nn.modules import Linear4bit

    for module in model.modules():
        if isinstance(module, Linear4bit):
            module.support_avx512bf16_for_cpu = False
