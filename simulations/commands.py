"""The commands that need Flower: ``fedforget simulate`` and ``fedforget demo``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedforget.backends import add_backend
from fedforget.commands.console import show
from fedforget.commands.options import Overrides, Preset
from simulations import deploy_commands, sequential_commands
from simulations.experiment import commands as experiment_commands
from simulations.options import Backend, Where

if TYPE_CHECKING:  # it imports torch, which every other command would wait for
    from fedforget.runs import RunDirectory

Out = Annotated[
    Path | None, typer.Option(help="The run's new directory; by default one in $FEDFORGET_HOME/runs.")
]


def register(app: typer.Typer) -> None:
    """Attach the commands to the ``fedforget`` command line."""
    app.command("simulate")(simulate)
    app.command("demo")(demo)
    app.command("federate")(deploy_commands.federate)
    sequential_commands.register(app)
    experiment_commands.register(app)
    add_backend("ray", _over_ray)


def _over_ray(address: str) -> Callable[..., Any]:
    from simulations.ray_merge import over_ray

    return over_ray(address)


Seeds = Annotated[
    str,
    typer.Option(help="Seeds, e.g. 0,1,2; one run each. By default what the preset's `seeds` say."),
]


def simulate(
    preset: Preset,
    overrides: Overrides = None,
    out: Out = None,
    seeds: Seeds = "",
    backend: Where = Backend.RAY,
) -> None:
    """Run a preset in a simulated federation: a FIRM round, or the training of a FedSGT plan.

    Writes the run's directory: configuration, client summaries, merged update, metrics, report;
    for FedSGT modules, ledger, metrics. Ends with status 1 if the run failed. A run that was cut
    short is carried on with when it is started again with the same --out: what is there is not
    asked for again. Several seeds give a folder of seed-<n> directories, and a report of means.
    """
    from fedforget.reporting.pooled import write_pooled
    from simulations.seeds import run_seeds, seeded, seeds_command, wanted_seeds

    pairs = overrides or []
    wanted = wanted_seeds(preset, pairs, seeds)
    if len(wanted) < 2:
        pairs = seeded(preset, pairs, wanted[0]) if seeds else pairs
        typer.echo(f"Run: {run_preset(preset, pairs, out, backend).path}")
        return
    folder = run_seeds(
        lambda name, words, target: run_preset(name, words, target, backend),
        preset,
        pairs,
        out,
        wanted,
        say=typer.echo,
    )
    for table in write_pooled(folder, seeds_command("simulate", preset, pairs, wanted)):
        show(table)
    typer.echo(f"Runs: {folder}\nReport: {folder / 'report.html'}")


def demo(
    preset: Annotated[str, typer.Argument(help="A preset's name or a YAML file.")] = "firm-smollm2",
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the runs, one per seed; by default $FEDFORGET_HOME/runs.")
    ] = None,
    seeds: Seeds = "",
    backend: Where = Backend.RAY,
) -> None:
    """Forget something, and show what it cost: a run, a comparison of methods, and a report."""
    from simulations.demo import run_demo
    from simulations.seeds import wanted_seeds

    run_demo(
        lambda name, pairs, target: run_preset(name, pairs, target, backend),
        preset,
        overrides or [],
        out,
        wanted_seeds(preset, overrides or [], seeds),
        show=show,
        say=typer.echo,
    )


def run_preset(preset: str, overrides: list[str], out: Path | None, backend: Backend) -> RunDirectory:
    """Run a preset with one of the backends."""
    from fedforget.presets import join_overrides

    text = join_overrides(overrides)
    if backend == Backend.INLINE:
        from simulations.inline import run_inline

        return run_inline(preset, text, out or "")
    from simulations.flwr_run import run_flower

    return run_flower(preset, text, out or "", say=typer.echo)
