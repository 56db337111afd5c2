"""A client's loss on its own examples: the update to measure, and the measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedforget.codecs import Bucket
from fedforget.data import Example
from fedforget.encoding import batches, encode, pad_id
from fedforget.errors import ModelError
from fedforget.models import Backbone


@torch.no_grad()
def mean_loss(
    backbone: Backbone, examples: Sequence[Example], max_length: int, batch_size: int
) -> tuple[float, int]:
    """Return the mean negative log-likelihood per target token, in nats, and the number of those tokens."""
    sequences = encode(backbone.tokenizer, examples, max_length)
    total, count = 0.0, 0
    for batch in batches(sequences, pad_id(backbone.tokenizer), batch_size):
        inputs = {key: batch[key].to(backbone.device) for key in ("input_ids", "attention_mask")}
        logits = backbone.model(**inputs, use_cache=False).logits[:, :-1].float()
        labels = batch["labels"][:, 1:].to(backbone.device)
        total += float(functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum"))
        count += int((labels != -100).sum())
    return total / count, count


def read_update(
    arrays: Sequence[Bucket], config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], who: str
) -> dict[str, Tensor]:
    """Read a merged update from a message.

    Parameters
    ----------
    arrays : sequence of 1-D uint8 arrays
        One per weight; none for no update.
    config : mapping
        ``tensors`` (weight names) and ``dtypes``, in the order of the arrays.
    shapes : mapping of str to tuple of int
        The backbone's adapted weights.
    who : str
        Begins the text of an error.

    Raises
    ------
    ModelError
        The update does not fit the backbone.
    """
    if not arrays:
        return {}
    names, dtypes = list(config.get("tensors", [])), list(config.get("dtypes", []))
    if sorted(names) != sorted(shapes) or len(names) != len(arrays) or len(dtypes) != len(arrays):
        raise ModelError(f"{who}: the update to evaluate does not fit the backbone's adapted weights")
    update = {}
    for name, dtype, raw in zip(names, dtypes, arrays, strict=True):
        kind = getattr(torch, str(dtype), None)
        if (
            not isinstance(kind, torch.dtype)
            or raw.nbytes != kind.itemsize * torch.Size(shapes[name]).numel()
        ):
            raise ModelError(f"{who}: tensor {name!r} of the update has the wrong size")
        update[name] = torch.from_numpy(raw.copy()).view(kind).reshape(shapes[name])
    return update
