"""What a merged update loses when it is added to the backbone that a run's clients trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open

from fedforget.errors import FedForgetError
from fedforget.expert import starting_model
from fedforget.exports.checkpoint import entries
from fedforget.models import checkpoint_at_hand
from fedforget.runs import RunDirectory
from fedforget.survival import Survival, apply_delta, overall

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Rounding:
    """What is left of an update in a backbone's weights.

    Attributes
    ----------
    survival : Survival
        Of all tensors taken as one.
    dtypes : tuple of str
        The weights' own.
    checkpoint : Path
        Where the weights were read.
    """

    survival: Survival
    dtypes: tuple[str, ...]
    checkpoint: Path

    def sentence(self) -> str:
        """Say it."""
        one = self.survival
        return (
            f"Added to the backbone's {' and '.join(self.dtypes)} weights, rounding loses "
            f"{one.relative_error:.2%} of the update and undoes it in {one.unchanged_share:.2%} of its "
            "coordinates"
        )


def measure(update: Path, run: RunDirectory) -> Rounding:
    """Add an update to the run's backbone, one tensor at a time, and measure what survives.

    Weights are taken in the precision that the run trained and measured in; NF4 weights take no update,
    so there those of the checkpoint that they were quantised from are.

    Parameters
    ----------
    update : Path
        A safetensors file.
    run : RunDirectory

    Raises
    ------
    FedForgetError
        The backbone is not on this machine, is not the run's, or does not store the weights.
    """
    config = run.config
    where, fingerprint = checkpoint_at_hand(starting_model(config), config.seeds.model)
    if fingerprint is not None:
        run.check_backbone(fingerprint)
    stored, dtypes = entries(where), set()
    wanted = _DTYPES.get(config.model.precision)

    def survivals() -> Iterator[Survival]:
        with safe_open(update, framework="pt") as file:
            for name in sorted(file.keys()):
                if name not in stored:
                    raise FedForgetError(f"{where}: stores no weight {name!r}")
                weight = stored[name].read(name)
                weight = weight.to(wanted or weight.dtype)
                dtypes.add(str(weight.dtype).removeprefix("torch."))
                yield apply_delta(weight, file.get_tensor(name))[1]

    survival = overall(survivals())
    return Rounding(survival, tuple(sorted(dtypes)), where)


def said(update: Path, run: RunDirectory | None) -> str:
    """Return the sentence, or one that says why there is none."""
    if run is None:
        return "What rounding leaves of the update in the backbone was not measured: it lies in no run."
    try:
        return measure(update, run).sentence() + "."
    except FedForgetError as error:
        return f"What rounding leaves of the update in the backbone was not measured: {error}."
