"""``fedforget federate``: a run over the clients that are connected to a SuperLink."""

from __future__ import annotations

from typing import Annotated

import typer

from fedforget.commands.options import Overrides, Preset
from simulations.options import INSECURE, ROOT_CERTIFICATES, SUPERLINK


def federate(
    preset: Preset,
    superlink: Annotated[str, SUPERLINK],
    overrides: Overrides = None,
    root_certificates: Annotated[str, ROOT_CERTIFICATES] = "",
    insecure: Annotated[bool, INSECURE] = False,
    out: Annotated[
        str,
        typer.Option(
            help="The run's directory on the ServerApp's machine, absolute; by default a new one in its "
            "$FEDFORGET_HOME/runs.",
            show_default=False,
        ),
    ] = "",
    stream: Annotated[bool, typer.Option(help="Show the run's log.")] = True,
) -> None:
    """Run a preset over deployed clients: a FIRM round, or the training of a FedSGT plan.

    The ServerApp runs on the SuperLink's machine, and the run's directory is there. Ends with status 1
    if the run failed. A run that was cut short is carried on with when it is started again with the
    same --out: what is there is not asked for again.
    """
    from fedforget.presets import join_overrides
    from simulations.federate import Superlink
    from simulations.federate import federate as send

    link = Superlink(superlink, root_certificates, insecure)
    path = send(link, preset, join_overrides(overrides or []), out, stream=stream, say=typer.echo)
    typer.echo(f"Run, on the ServerApp's machine: {path}")
