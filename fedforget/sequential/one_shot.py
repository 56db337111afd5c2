"""FedCIO's one-shot aggregation of parameters: the clusters' modules as one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedforget.errors import ModelError
from fedforget.sequential.modules import PrefixModule


def averaged_chain(modules: Sequence[PrefixModule], kind: str) -> list[PrefixModule]:
    """Return a chain of modules that is the classifier with the average of the modules' weights.

    What is averaged is what a module does to each weight, not its factors: LoRA's updates B A are kept
    side by side, each with 1/k of its B, which is their mean exactly; IA3's scales and the heads are
    averaged elementwise.

    Parameters
    ----------
    modules : sequence of PrefixModule
        k modules of depth 1, at least one.
    kind : {"lora", "ia3"}

    Returns
    -------
    list of PrefixModule
        The modules of a prefix, to be loaded together; its groups are numbered by position.

    Raises
    ------
    ModelError
        DoRA, whose magnitudes do not add up to those of an average, or no module.
    """
    if not modules:
        raise ModelError("there is no module to average")
    if kind not in ("lora", "ia3"):
        raise ModelError(f"module.kind: {kind} modules have no average that is a module; use lora or ia3")
    if kind == "ia3":
        return [PrefixModule((0,), {name: _mean(modules, name) for name in modules[0].tensors})]
    heads = {name: _mean(modules, name) for name in modules[0].tensors if ".lora_" not in name}
    return [
        PrefixModule(
            tuple(range(i + 1)),
            {
                name: value / len(modules) if ".lora_B." in name else value
                for name, value in one.tensors.items()
            }
            | heads,
        )
        for i, one in enumerate(modules)
    ]


def _mean(modules: Sequence[PrefixModule], name: str) -> Tensor:
    tensors = [one.tensors[name] for one in modules]
    return torch.stack([one.double() for one in tensors]).mean(dim=0).to(tensors[0].dtype)
