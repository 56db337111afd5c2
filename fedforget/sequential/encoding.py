"""How inputs become tensors: images are resized and normalised, texts are tokenised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedforget.errors import DataError, ModelError
from fedforget.progress import no_progress_bars

Encode = Callable[[Any], dict[str, Tensor]]


def image_encoder(where: str, model: Any, size: int, device: torch.device) -> Encode:
    """Return the preparation of images for a model.

    Parameters
    ----------
    where : str
        Directory or hub id; mean and standard deviation come from its preprocessor, and are 0.5 each
        where it has none.
    model : nn.Module
        ``config.num_channels`` and ``config.image_size``.
    size : int
        Pixels per side instead of the model's; 0 for the model's.
    device : torch.device
    """
    channels = int(getattr(model.config, "num_channels", 3))
    side = size or int(getattr(model.config, "image_size", 224))
    stored = _preprocessor(where)
    mean = torch.tensor(stored.get("image_mean") or [0.5] * channels, dtype=torch.float32).view(-1, 1, 1)
    std = torch.tensor(stored.get("image_std") or [0.5] * channels, dtype=torch.float32).view(-1, 1, 1)
    if len(mean) != channels or len(std) != channels:
        raise ModelError(
            f"{where}: its preprocessor normalises {len(mean)} channels and the model has {channels}"
        )

    def encode(inputs: Any) -> dict[str, Tensor]:
        if isinstance(inputs, np.ndarray):
            pixels = _resized(_channels_first(torch.from_numpy(inputs), channels), side)
        else:
            one_by_one = [
                _channels_first(torch.from_numpy(np.asarray(one))[None], channels) for one in inputs
            ]
            pixels = torch.cat([_resized(one, side) for one in one_by_one])
        return {"pixel_values": ((pixels - mean) / std).to(device)}

    return encode


def text_encoder(where: str, revision: str | None, max_length: int, device: torch.device) -> Encode:
    """Return the tokenisation of texts, or pairs of texts, padded to the longest of a batch.

    Raises
    ------
    ModelError
        There is no tokenizer.
    """
    from transformers import AutoTokenizer

    try:
        with no_progress_bars():
            tokenizer: Any = AutoTokenizer.from_pretrained(where, revision=revision)
    except (OSError, ValueError) as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(f"model.path: {where} has no tokenizer that can be loaded ({why})") from error
    if tokenizer.pad_token_id is None:
        raise ModelError(f"model.path: the tokenizer of {where} has no padding token, which batches need")

    def encode(inputs: Sequence[Any]) -> dict[str, Tensor]:
        texts: tuple[list[str], ...]
        if inputs and not isinstance(inputs[0], str):
            texts = ([one[0] for one in inputs], [one[1] for one in inputs])
        else:
            texts = (list(inputs),)
        tokens = tokenizer(*texts, padding=True, truncation=True, max_length=max_length, return_tensors="pt")
        return {name: value.to(device) for name, value in tokens.items()}

    return encode


def _preprocessor(where: str) -> dict[str, Any]:
    from transformers.image_processing_base import ImageProcessingMixin

    mixin: Any = ImageProcessingMixin
    try:
        return dict(mixin.get_image_processor_dict(where)[0])
    except OSError:
        return {}


def _channels_first(images: Tensor, channels: int) -> Tensor:
    """Return float images in [0, 1] of shape ``[n, channels, height, width]``."""
    scaled = images.float() / 255.0 if images.dtype == torch.uint8 else images.float()
    if scaled.dim() == 3:
        scaled = scaled[..., None]
    if scaled.dim() != 4 or scaled.shape[-1] not in (1, 3):
        raise DataError(
            f"images have shape {tuple(images.shape)}; give [n, height, width] with 1 or 3 channels"
        )
    scaled = scaled.permute(0, 3, 1, 2)
    if scaled.shape[1] == channels:
        return scaled
    return scaled.expand(-1, channels, -1, -1) if scaled.shape[1] == 1 else scaled.mean(1, keepdim=True)


def _resized(images: Tensor, side: int) -> Tensor:
    if tuple(images.shape[-2:]) == (side, side):
        return images
    return functional.interpolate(images, (side, side), mode="bilinear", antialias=True)
