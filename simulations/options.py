"""Options that several commands of this package share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Backend(StrEnum):
    """Where simulated clients run."""

    RAY = "ray"
    INLINE = "inline"


SequentialRun = Annotated[Path, typer.Argument(help="A FedSGT run's directory.", show_default=False)]
Where = Annotated[
    Backend,
    typer.Option(
        help="ray: Flower's simulation, clients in parallel; inline: in this process, one after another."
    ),
]
