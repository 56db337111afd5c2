"""A long training that goes on after an interruption as if there had been none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedforget.errors import TrainingError
from fedforget.files import atomic_path


@dataclass(frozen=True)
class Checkpoint:
    """A file that holds everything a training has changed: weights, optimiser, generators, losses.

    Attributes
    ----------
    file : Path
        Its name must tell trainings apart: what is there is gone on with.
    every : int
        Steps between two writes.
    """

    file: Path
    every: int

    def due(self, done: int, steps: int) -> bool:
        """Whether to write after so many steps; not after the last, whose result is kept otherwise."""
        return done % self.every == 0 and done < steps

    def save(
        self,
        parameters: Sequence[torch.nn.Parameter],
        optimizer: torch.optim.Optimizer,
        losses: Sequence[float],
        tokens: int,
    ) -> None:
        """Write the state after ``len(losses)`` steps, in place of the one before."""
        state = {
            "parameters": [parameter.detach() for parameter in parameters],
            "optimizer": optimizer.state_dict(),
            "losses": list(losses),
            "tokens": tokens,
            "cpu": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }
        with atomic_path(self.file) as temporary:
            torch.save(state, temporary)

    def restore(
        self, parameters: Sequence[torch.nn.Parameter], optimizer: torch.optim.Optimizer
    ) -> tuple[list[float], int]:
        """Set everything to the stored state; return the losses so far and the tokens read.

        Raises
        ------
        TrainingError
            The file cannot be read, or is of another model.
        """
        if not self.file.is_file():
            return [], 0
        try:
            state: dict[str, Any] = torch.load(self.file, map_location="cpu", weights_only=True)
            with torch.no_grad():
                for parameter, stored in zip(parameters, state["parameters"], strict=True):
                    parameter.copy_(stored)
            optimizer.load_state_dict(state["optimizer"])
        except Exception as error:  # torch raises many kinds for a file that is cut off
            raise TrainingError(
                f"{self.file}: cannot be gone on with ({' '.join(str(error).split())[:200]}); remove it to "
                "start anew"
            ) from error
        torch.set_rng_state(state["cpu"])
        if state["cuda"]:
            torch.cuda.set_rng_state_all(state["cuda"])
        return list(state["losses"]), int(state["tokens"])
