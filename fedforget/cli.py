"""The ``fedforget`` command: its own commands, and those of :mod:`fedforget.commands` and other packages.

Other packages attach commands through the entry-point group ``fedforget.commands``: each entry is
a callable ``register(app: typer.Typer)``. Torch and transformers are imported inside commands, so
that help and wrong usage are answered at once.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Annotated, Any

import click
import typer

from fedforget.commands import data, export, operating, presets, score, sequential, sweep
from fedforget.commands.options import Run, Runs
from fedforget.commands.sweep import Set, over_seeds, pairs
from fedforget.errors import FedForgetError, RunError
from fedforget.progress import quiet_bitsandbytes

GROUP = "fedforget.commands"
_DISK = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)  # the disk's fault, not ours
_INTERRUPTED = 130


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"fedforget {version('fedforget')}")
        raise typer.Exit


def _root(
    asked: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Federated unlearning of language models: run it, merge it, measure it."""


def methods() -> None:
    """List the merge methods, their parameters and where they come from."""
    from fedforget.merging import methods as known

    _describe(known().values())


def objectives() -> None:
    """List the client objectives, their parameters and where they come from."""
    from fedforget.objectives import objectives as known

    _describe(known().values())


def _describe(known: Any) -> None:
    for one in sorted(known, key=lambda one: one.name):
        typer.echo(f"{one.name}  ({one.pretty}; {one.reference})\n    {one.summary}")
        for parameter in one.parameters:
            kind = "|".join(parameter.choices) or parameter.type.__name__
            typer.echo(f"    {parameter.name}: {kind} = {parameter.default}  {parameter.help}")


def merge(
    run: Run,
    method: Annotated[
        str | None, typer.Option(help="Merge method; by default the run's.", show_default=False)
    ] = None,
    gamma: Annotated[float | None, typer.Option(help="Global scale.", show_default=False)] = None,
    epsilon: Annotated[float | None, typer.Option(help="Budget, or inf.", show_default=False)] = None,
    alpha: Annotated[float | None, typer.Option(help="Share of the Fisher kept.", show_default=False)] = None,
    parameters: Set = None,
    out: Annotated[
        Path | None,
        typer.Option(help="New directory; by default one in the run's merges/.", show_default=False),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(
            help="Merge over this Ray cluster, a task per weight; its nodes must see the run's directory.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Merge a run's stored summaries again, with no client taking part.

    Writes update.safetensors and merge.json.
    """
    from fedforget.rounding import said
    from fedforget.runs import RunDirectory
    from fedforget.sweeps.remerge import merge_again
    from fedforget.updates import locate_update

    given = {"gamma": gamma, "epsilon": epsilon, "alpha": alpha}
    texts = {name: str(value) for name, value in given.items() if value is not None} | pairs(parameters)
    target = merge_again(RunDirectory(run), method, texts, out, ray_address)
    typer.echo(f"Merged: {target}\n{said(locate_update(target), RunDirectory(run))}")


def report(
    run: Runs,
    page: Annotated[
        Path | None,
        typer.Option(
            help="Of a folder of seeds: a Markdown page whose tables are made anew, such as docs/results.md.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write report.html again from what the run, or every run of a folder of seeds, has stored."""
    from fedforget.pooling import seed_runs
    from fedforget.reporting import write_report
    from fedforget.runs import RunDirectory

    if page is not None and not seed_runs(run):
        raise RunError(f"--page: {run} holds no runs of seeds (seed-0, seed-1, ...)")
    if seed_runs(run):
        over_seeds(run, page)
        typer.echo(f"Report: {run / 'report.html'}")
        return
    typer.echo(f"Report: {write_report(RunDirectory(run))}")


def certify(
    path: Annotated[
        Path, typer.Argument(help="A merged update, or the run or folder with it.", show_default=False)
    ],
    fishers: Annotated[
        Path | None,
        typer.Option(help="Folder with the retain clients' Fishers; by default the run's summaries."),
    ] = None,
) -> None:
    """Recompute an update's certificate from its bytes, the Fishers and the run's summaries.

    From the bytes and the retain clients' Fishers: every damage, in fp64, and the multipliers' signs. Where
    the folder holds the summaries of the whole run, the base update is merged again, and stationarity and
    duality gap are recomputed too. That the summaries are what the clients computed is believed.
    Ends with status 1 where a budget is broken, the file or a Fisher was changed, or nothing is certified.
    """
    from fedforget.certification import certify as recompute
    from fedforget.exports.source import run_above
    from fedforget.rounding import said as rounding
    from fedforget.runs import RunDirectory
    from fedforget.stored_fishers import find_fishers, find_update

    file = find_update(path)
    found = recompute(file, fishers or find_fishers(file))
    for name, values in found.damages.items():
        for client, value in values.items():
            share = f", {value / found.budget:.9f} of the budget" if found.budget else ""
            typer.echo(f"{name}  {client}: damage {value:.6g}{share}")
    for problem in found.problems:
        typer.echo(f"error: {problem}", err=True)
    if found.problems:
        raise typer.Exit(1)
    if found.budget is None:
        said = f"its method {found.method!r} has no budget" if found.method else "it carries no certificate"
        typer.echo(f"Nothing is certified: {said}. The damages above are only measured.")
        raise typer.Exit(1)
    run = run_above(file.resolve().parent)
    closest, count = sum(found.optimal.values()), len(found.optimal)
    rounded = rounding(file, RunDirectory(run) if run else None)
    how = f"as recorded, for {found.as_recorded}" if found.as_recorded else "recomputed from the summaries"
    typer.echo(
        f"Certified: {count} tensors keep epsilon = {found.budget!r} for every retain client (recomputed "
        f"from the bytes and the Fishers).\n{closest} of them are the closest such update; it is at most "
        f"{found.distance:.2g} of the update's norm away ({how}).\nThis is about the update. {rounded}"
    )


def build() -> typer.Typer:
    """Return the application with its own commands and those of other packages."""
    app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
    app.callback()(_root)
    presets.register(app)
    data.register(app)
    sequential.register(app)
    operating.register(app)
    for command in (methods, objectives, merge, report, certify):
        app.command()(command)
    sweep.register(app)
    export.register(app)
    score.register(app)
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            entry.load()(app)
        except Exception as error:  # one broken package must not take the others' commands away
            if os.environ.get("FEDFORGET_DEBUG") == "1":
                traceback.print_exc()
            print(f"warning: the commands of {entry.value!r} are missing ({error})", file=sys.stderr)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; ends with status 1 for wrong input, 2 for wrong usage, 130 when interrupted."""
    sys.exit(_run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    quiet_bitsandbytes()
    try:
        status = build()(args=arguments, prog_name="fedforget", standalone_mode=False)
    except FedForgetError as error:
        if os.environ.get("FEDFORGET_DEBUG") == "1":
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        return 1
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        status = _INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone; Python would complain once more while closing it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno not in _DISK:
            raise
        what = ": ".join(str(part) for part in (error.filename, error.strerror) if part)
        print(f"error: {what}; free some space or set the permissions, and try again", file=sys.stderr)
        return 1
    # Typer itself turns an interrupt inside a command into this status, and says nothing.
    if status == _INTERRUPTED:
        print("interrupted", file=sys.stderr)
    return status if isinstance(status, int) else 0
