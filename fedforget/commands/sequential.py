"""The FedSGT commands that need no Flower: plan, forget, evaluate, and the ledger's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedforget.commands.console import show
from fedforget.commands.options import AsJson, Preset, overriding
from fedforget.commands.options import SequentialRun as Run
from fedforget.errors import ConfigError, LedgerError, nearest

if TYPE_CHECKING:
    from fedforget.runs import RunDirectory

UNKNOWN_DATA = 3  # exit status of `forget` when a request named data that the run does not have

ledger_app = typer.Typer(no_args_is_help=True, help="Look into a FedSGT run's ledger.")


def register(app: typer.Typer) -> None:
    """Attach the commands to the ``fedforget`` command line."""
    for command in (plan, forget, evaluate):
        app.command()(command)
    app.add_typer(ledger_app, name="ledger")


def plan(
    preset: Preset,
    overrides: Annotated[list[str] | None, overriding("grouping.groups=8")] = None,
    as_json: AsJson = False,
) -> None:
    """Tell what a FedSGT plan costs and how long it will serve, before anything is trained.

    Nodes, rounds, bytes, client visits, expected service life with a band, and the data that
    remain in service after each request.
    """
    from fedforget.files import plain
    from fedforget.presets import load_sequential
    from fedforget.sequential.plan_summary import summarise, tables

    found = summarise(load_sequential(preset, overrides or []))
    if as_json:
        typer.echo(json.dumps(plain(found), indent=2))
        return
    for table in tables(found):
        show(table)


def forget(
    run: Run,
    client: Annotated[str, typer.Option(help="Whose data to delete.", show_default=False)] = "",
    slice_id: Annotated[
        int | None,
        typer.Option("--slice", help="Which of the client's slices; all by default.", show_default=False),
    ] = None,
    records: Annotated[
        str,
        typer.Option(
            help="Ids of records in the slice, separated by commas; all by default.",
            show_default=False,
        ),
    ] = "",
    request: Annotated[
        str,
        typer.Option(help="An id for the request; by default one made of its content."),
    ] = "",
    requests: Annotated[
        Path | None,
        typer.Option(
            help="A file of requests, one JSON object a line: client, slice, records, request.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Delete data: the ledger switches off every module that saw them, at once and for good.

    Give one request, or a file of them, which is carried out in one transaction. A request that
    comes again is answered as before. Ends with status 0 when all the data named are deleted (now or
    before), 3 when a request named data that the run does not have (that request changes nothing, the
    others are carried out), 1 for a malformed request (nothing was changed), 2 for wrong usage.
    """
    from fedforget.sequences.ledger import UNKNOWN
    from fedforget.sequential.deletions import deletion, read_requests
    from fedforget.sequential.deletions import forget as carry_out

    directory = open_run(run)
    if requests is not None:
        if client or slice_id is not None or records or request:
            raise ConfigError(["--requests: give a file or one request by options, not both"])
        asked = read_requests(requests)
    else:
        if not client:
            raise ConfigError(["--client: name whose data to delete, or give --requests FILE"])
        named = [one.strip() for one in records.split(",") if one.strip()] if records else None
        if named is not None and slice_id is None:
            raise ConfigError(["--records: name the slice that they are in with --slice"])
        if records and not named:
            raise ConfigError([f"--records: {records!r} names no record"])
        asked = [deletion(client, slice_id, named, request)]
    outcomes = carry_out(directory, asked)
    if as_json:
        typer.echo(json.dumps([one.as_dict() for one in outcomes], indent=2))
    else:
        for one in outcomes:
            typer.echo(f"{one.request_id}: {one.status}: {one.message}")
        typer.echo(_left(directory))  # as it is now: an outcome may be an old answer
    if any(one.status == UNKNOWN for one in outcomes):
        raise typer.Exit(UNKNOWN_DATA)


def evaluate(
    run: Run,
    rule: Annotated[
        str | None,
        typer.Option(help="AllSeq, MinSeq or LongSeq; the run's own by default.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure what a FedSGT run serves now on its test records."""
    from fedforget.checks.sequential import RULES
    from fedforget.reporting.sequential_tables import prefix_name
    from fedforget.sequential.served import measure

    if rule is not None and rule not in RULES:
        raise ConfigError([f"--rule: {rule!r} is not one of {', '.join(RULES)}{nearest(rule, RULES)}"])
    directory = open_run(run)
    found = measure(directory, rule)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    accuracy = found["accuracy"]
    if accuracy is not None:
        typer.echo(f"accuracy {accuracy:.4f} of {found['records']} test records, rule {found['rule']}")
        typer.echo("serving: " + "  ".join(prefix_name(prefix) for prefix in found["prefixes"]))
    typer.echo(_left(directory, found["modules"]))


@ledger_app.command("check")
def ledger_check(run: Run) -> None:
    """Audit the ledger: its hash chain, its tables against its events, and the head noted in run.json.

    Ends with status 1 where something was altered, and names the event or row.
    """
    from fedforget.sequences.ledger import Ledger
    from fedforget.sequential.run_ledger import noted_head

    directory = open_run(run)
    noted = noted_head(directory)
    with Ledger(directory.ledger, read_only=True, verify=False) as ledger:
        ledger.check(noted)
        head = ledger.head()
    typer.echo(f"sound: {head.number} events, head {head.sha256[:16]}")
    if noted is None:
        typer.echo("run.json holds no earlier head, so a ledger set back as a whole would not show")


@ledger_app.command("show")
def ledger_show(run: Run, as_json: AsJson = False) -> None:
    """Show the ledger: groups, sequences with what serves, requests, and events."""
    from fedforget.reporting.sequential_tables import ledger_tables
    from fedforget.sequential.run_ledger import open_ledger

    directory = open_run(run)
    with open_ledger(directory, read_only=True) as ledger:
        events = [vars(event) for event in ledger.history()]
        if as_json:
            typer.echo(json.dumps(events, indent=2))
            return
        for table in ledger_tables(ledger):
            show(table)
    typer.echo(_left(directory))


def open_run(run: Path) -> RunDirectory:
    """Open a FedSGT run that has a ledger.

    Raises
    ------
    RunError, ConfigError, LedgerError
        The directory is no run, one of another kind, or has no ledger yet.
    """
    from fedforget.runs import RunDirectory

    directory = RunDirectory(run)
    _ = directory.sequential
    if not directory.ledger.is_file():
        raise LedgerError(f"{directory.path}: has no ledger; nothing was trained in this run yet")
    return directory


def _left(directory: RunDirectory, modules: int | None = None) -> str:
    """Say how many modules are active: those of the ledger, or ``modules``."""
    from fedforget.sequences.ledger import Ledger

    with Ledger(directory.ledger, read_only=True, verify=False) as ledger:
        active = len(ledger.live_modules()) if modules is None else modules
        data = bool(ledger.remaining_slices())
    if active:
        return f"{active} {'module is' if active == 1 else 'modules are'} active."
    if not data:
        return "Service has ended: no module is left, and no data to train one on."
    return "Service has ended: no module is left; run `fedforget repair` or `fedforget retrain`."
