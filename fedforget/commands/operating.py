"""The commands of whoever operates runs: ``doctor`` and ``runs``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedforget.commands.console import show
from fedforget.commands.options import Run
from fedforget.errors import ConfigError

Folder = Annotated[
    Path | None,
    typer.Option("--folder", help="Where the runs are; by default $FEDFORGET_HOME/runs.", show_default=False),
]
Status = Annotated[
    str, typer.Option(help="Without names: remove every run with this status (failed, completed, running).")
]

runs_app = typer.Typer(no_args_is_help=True, help="List, show and remove runs.")


def register(app: typer.Typer) -> None:
    """Attach the commands to the ``fedforget`` command line."""
    app.command()(doctor)
    app.add_typer(runs_app, name="runs")


def doctor(
    preset: Annotated[
        str, typer.Argument(help="A preset whose data are checked too.", show_default=False)
    ] = "",
    overrides: Annotated[
        list[str] | None, typer.Argument(help="key=value pairs over it.", show_default=False)
    ] = None,
    port: Annotated[
        list[int] | None,
        typer.Option(help="A port that has to be free here; may be repeated.", min=1, max=65535),
    ] = None,
) -> None:
    """Check the installation, this machine, ports, disk, and a preset's configuration and data.

    Ends with status 1 if anything failed.
    """
    from fedforget.doctor import FAIL, examine, table

    checks = examine(preset, overrides or [], port or [])
    show(table(checks))
    if any(check.status == FAIL for check in checks):
        raise typer.Exit(1)


@runs_app.command("list")
def runs_list(folder: Folder = None) -> None:
    """List the runs in a folder, oldest first."""
    from fedforget.run_listing import find, listing

    show(listing(find(folder)))


@runs_app.command("show")
def runs_show(run: Run) -> None:
    """Show what a run's run.json says."""
    from fedforget.run_listing import details
    from fedforget.runs import RunDirectory

    for table in details(RunDirectory(run)):
        show(table)


@runs_app.command("clean")
def runs_clean(
    names: Annotated[list[str] | None, typer.Argument(help="Runs to remove.", show_default=False)] = None,
    status: Status = "failed",
    folder: Folder = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove runs: those named, or all with a status. Asks before it does."""
    from fedforget.run_listing import choose, find, listing, remove

    if status not in ("failed", "completed", "running", "unreadable"):
        raise ConfigError([f"--status: {status!r} is none of failed, completed, running, unreadable"])
    chosen = choose(find(folder), names or [], status)
    if not chosen:
        typer.echo(f"No run with status {status!r}.")
        return
    show(listing(chosen))
    if not yes and not typer.confirm(f"Remove {len(chosen)} run(s) for good?"):
        raise typer.Exit(1)
    typer.echo(f"Removed {len(chosen)} run(s), {remove(chosen) / 2**20:.1f} MiB.")
