"""Finding a transformer's decoder blocks, whatever the architecture calls them."""

from __future__ import annotations

from typing import Any

from torch import nn

from fedforget.errors import ModelError


def decoder_blocks(model: nn.Module) -> tuple[str, nn.ModuleList]:
    """Return the name and the list of a model's decoder blocks.

    It is the first ``nn.ModuleList`` with as many members as ``config.num_hidden_layers``, which
    holds with and without an adapter.

    Raises
    ------
    ModelError
        The model has no such list.
    """
    config: Any = getattr(model, "config", None)
    count = getattr(config, "num_hidden_layers", None)
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return name, module
    raise ModelError(f"{type(model).__name__} has no list of {count} decoder blocks")


def block_number(name: str, blocks: str) -> int | None:
    """Return the number of the block that a module lies in, or None if it lies in none.

    Parameters
    ----------
    name : str
        The module's name.
    blocks : str
        The name of the list of blocks.
    """
    if not name.startswith(f"{blocks}."):
        return None
    return int(name[len(blocks) + 1 :].partition(".")[0])
