"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

Preset = Annotated[
    str,
    typer.Argument(help="A preset's name (see `fedforget config list`) or a YAML file.", show_default=False),
]
Run = Annotated[Path, typer.Argument(help="A run's directory.", show_default=False)]
Runs = Annotated[
    Path, typer.Argument(help="A run's directory, or a folder of one run per seed.", show_default=False)
]
SequentialRun = Annotated[Path, typer.Argument(help="A FedSGT run's directory.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]


def overriding(example: str) -> Any:
    """Return the argument that takes overrides of a preset."""
    return typer.Argument(help=f"key=value pairs over the preset, e.g. {example}", show_default=False)


Overrides = Annotated[list[str] | None, overriding("merge.gamma=1.2")]
