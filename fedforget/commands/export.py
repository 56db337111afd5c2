"""The command ``fedforget export``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedforget.errors import ConfigError


class Format(StrEnum):
    """What an export is."""

    DELTA = "delta"
    MODEL = "model"
    LORA = "lora"


_RANK = 64


def register(app: typer.Typer) -> None:
    """Attach the command to the ``fedforget`` command line."""
    app.command()(export)


def export(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_OR_MERGED", help="A run's directory, or one that a merge wrote.", show_default=False
        ),
    ],
    format: Annotated[Format, typer.Option(help="What to write.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option(
            help="New directory; by default one in the run's exports/. That of a LoRA adapter is "
            "given a name that says approximate.",
            show_default=False,
        ),
    ] = None,
    rank: Annotated[
        int | None, typer.Option(help=f"lora: the adapter's rank; {_RANK} by default.", show_default=False)
    ] = None,
    error: Annotated[
        float | None,
        typer.Option(
            help="lora: instead of a rank, the relative error allowed per tensor.", show_default=False
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="model: fp32, bf16 or fp16; by default the checkpoint's own.", show_default=False),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(help="The run that a merge written elsewhere belongs to.", show_default=False),
    ] = None,
) -> None:
    """Export a merged update: as it is, added to the backbone, or as a LoRA adapter.

    delta keeps the merged bits and their certificates. model is a directory that transformers
    loads; its report says how much of the update survived rounding. lora is an approximation that
    PEFT loads; its report says how far it is from the update.
    """
    _check(format, rank, error, dtype)
    from fedforget.exports.source import open_source

    source = open_source(path, run)
    rounding = ""
    folder = source.run.path / "exports"
    if format is Format.DELTA:
        from fedforget.exports.delta import export_delta
        from fedforget.rounding import said as rounding_said

        target = out or folder / f"{source.label}-delta"
        export_delta(source, _resolved(target))
        said = "exact"
        rounding = f"\n{rounding_said(source.file, source.run)}"
    elif format is Format.MODEL:
        from fedforget.exports.model import export_model

        target = out or folder / f"{source.label}-model{f'-{dtype}' if dtype else ''}"
        report = export_model(source, _resolved(target), dtype)["overall"]
        said = (
            f"rounding lost {report['relative_error']:.2%} of the update and undid it in "
            f"{report['unchanged_share']:.2%} of its coordinates"
        )
    else:
        from fedforget.exports.lora import export_lora, lora_name

        rank = _RANK if rank is None and error is None else rank
        name = lora_name(rank, error)
        target = out or folder / f"{source.label}-{name}"
        if "approximate" not in target.name:
            target = target.with_name(f"{target.name}-{name}")
        report = export_lora(source, _resolved(target), rank, error)["overall"]
        said = f"approximate, relative error {report['relative_error']:.3g}"
    typer.echo(f"Exported: {_resolved(target)} ({said}){rounding}")


def _check(format: Format, rank: int | None, error: float | None, dtype: str | None) -> None:
    problems = []
    if format is not Format.LORA and (rank is not None or error is not None):
        problems.append("--rank and --error are for --format lora")
    if rank is not None and error is not None:
        problems.append("--rank and --error exclude each other; give one")
    if format is not Format.MODEL and dtype is not None:
        problems.append("--dtype is for --format model")
    if problems:
        raise ConfigError(problems)


def _resolved(path: Path) -> Path:
    return path.expanduser().resolve()
