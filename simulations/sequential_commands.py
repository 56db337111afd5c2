"""FedSGT's commands of this package: ``verify``, ``repair``, ``retrain``, ``requests`` and ``demo-exact``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedforget.commands.options import SequentialRun as Run
from simulations import verify_command
from simulations.options import INSECURE, ROOT_CERTIFICATES, SUPERLINK, Backend, Where, target

if TYPE_CHECKING:  # it imports torch, which every other command would wait for
    from fedforget.runs import RunDirectory


def register(app: typer.Typer) -> None:
    """Attach the commands to the ``fedforget`` command line."""
    app.command("verify")(verify_command.verify)
    app.command("repair")(repair)
    app.command("retrain")(retrain)
    app.command("requests")(requests)
    app.command("demo-exact")(demo_exact)


def repair(
    run: Run,
    groups: Annotated[
        str,
        typer.Option(help="Deleted groups to repair, e.g. 1,4; by default all that have data left."),
    ] = "",
    backend: Where = Backend.RAY,
    superlink: Annotated[str, SUPERLINK] = "",
    root_certificates: Annotated[str, ROOT_CERTIFICATES] = "",
    insecure: Annotated[bool, INSECURE] = False,
) -> None:
    """Train the switched-off modules again, without the deleted records.

    What survived the deletions keeps serving meanwhile and stays as it is. Started again after an
    interruption, it carries on.
    """
    from fedforget.runs import RunDirectory
    from simulations.sequential_upkeep import carry_on, due, prepare_repair

    where = target(backend, superlink, root_certificates, insecure)
    directory = RunDirectory(run)
    repaired = prepare_repair(directory, groups)
    if repaired:
        typer.echo(f"groups {', '.join(map(str, repaired))}: modules are trained without the deleted records")
    if not due(directory):
        typer.echo("Nothing is to be trained.")
        return
    typer.echo(_outcome(carry_on(directory, where, say=typer.echo)))


def retrain(
    run: Run,
    groups: Annotated[
        int | None,
        typer.Option(help="Number of groups; the configuration's by default.", show_default=False),
    ] = None,
    sequences: Annotated[
        int | None,
        typer.Option(help="Number of sequences; the configuration's by default.", show_default=False),
    ] = None,
    backend: Where = Backend.RAY,
    superlink: Annotated[str, SUPERLINK] = "",
    root_certificates: Annotated[str, ROOT_CERTIFICATES] = "",
    insecure: Annotated[bool, INSECURE] = False,
) -> None:
    """Group what remains anew and train it from the start, as a new generation.

    Every module of the generation before goes out of service at once; the ledger keeps its history, and
    deleted data cannot come back. Started again after an interruption, it carries on.
    """
    from fedforget.runs import RunDirectory
    from simulations.sequential_upkeep import carry_on, prepare_retrain

    where = target(backend, superlink, root_certificates, insecure)
    directory = RunDirectory(run)
    typer.echo(prepare_retrain(directory, groups, sequences))
    typer.echo(_outcome(carry_on(directory, where, say=typer.echo)))


def requests(
    preset: Annotated[str, typer.Argument(help="A FedSGT preset's name or a YAML file.", show_default=False)],
    out: Annotated[Path, typer.Option(help="The file to write, one JSON object a line.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="key=value pairs, e.g. requests.kind=bursts requests.limit=50."),
    ] = None,
) -> None:
    """Draw a stream of deletion requests and write it; nothing is trained or deleted.

    `fedforget forget RUN --requests FILE` carries it out, and `requests.file=FILE` replays it in a
    demonstration or an experiment.
    """
    from fedforget.data.corpora import load_corpus
    from fedforget.data.holdings import holdings
    from fedforget.presets import load_sequential
    from fedforget.sequential.deletions import write_requests
    from fedforget.sequential.plan_summary import local_plan
    from simulations.requests import request_stream

    config = load_sequential(preset, overrides or [])
    held = holdings(config.data, load_corpus(config.data, config.seeds.data).federated, config.seeds.data)
    drawn = list(request_stream(config, local_plan(config)[0], held))
    write_requests(out, drawn)
    typer.echo(f"{out}: {len(drawn)} requests")


def demo_exact(
    preset: Annotated[str, typer.Argument(help="A FedSGT preset's name or a YAML file.")] = "fedsgt-digits",
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="key=value pairs over the preset.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run's new directory; by default one in $FEDFORGET_HOME/runs.")
    ] = None,
    backend: Where = Backend.RAY,
) -> None:
    """Train, delete request by request until service ends, and verify what served, bit for bit.

    Ends with status 1 if anything failed: the training, a deletion, or one bit.
    """
    from fedforget.commands.console import show
    from simulations.commands import run_preset
    from simulations.demo_exact import run_demo_exact

    run_demo_exact(
        lambda name, pairs, target: run_preset(name, pairs, target, backend),
        preset,
        overrides or [],
        out,
        show=show,
        say=typer.echo,
    )


def _outcome(run: RunDirectory) -> str:
    served = run.metrics.get("served", {})
    accuracy = served.get("accuracy")
    shown = "service has ended" if accuracy is None else f"accuracy {accuracy:.4f}"
    if served.get("approximate"):
        shown += f" (made by {served['approximate']}, approximate: it may depend on deleted data)"
    return f"{shown}, {served.get('modules', 0)} modules active; run: {run.path}"
