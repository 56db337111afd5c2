"""``fedforget verify``: what serves is trained again, by this process or by the clients, and compared."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from fedforget.commands.console import progress
from fedforget.commands.options import AsJson, SequentialRun
from fedforget.errors import ConfigError, FedForgetError, RunError
from simulations.options import INSECURE, ROOT_CERTIFICATES, SUPERLINK, Backend, Where, target

if TYPE_CHECKING:
    from fedforget.runs import RunDirectory
    from fedforget.sequential.verify import Verification
    from simulations.federate import Superlink

Prefix = tuple[int, ...]


def verify(
    run: SequentialRun,
    prefix: Annotated[
        list[str] | None,
        typer.Option(
            help="Groups of a prefix, e.g. 2,0,1; repeat for more. By default all that serve.",
            show_default=False,
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every active module, not only what serves.")] = False,
    through_clients: Annotated[
        bool,
        typer.Option(help="Let the clients train, where the data are, instead of this process."),
    ] = False,
    backend: Where = Backend.RAY,
    superlink: Annotated[str, SUPERLINK] = "",
    root_certificates: Annotated[str, ROOT_CERTIFICATES] = "",
    insecure: Annotated[bool, INSECURE] = False,
    as_json: AsJson = False,
) -> None:
    """Show bit for bit that what is served never saw deleted data: train it again without them.

    Each prefix is retrained from scratch in this process, on data from which the deleted records and all
    other groups are absent, and the hashes are compared. With --through-clients, every client trains its
    part again instead, and the averages are compared: simulated clients (--backend), or deployed ones
    (--superlink). Ends with status 1 at any difference, naming the first tensor. Hashes agree on one kind
    of machine: verify where the run was trained.
    """
    from fedforget.commands.sequential import open_run
    from fedforget.reporting.sequential_tables import prefix_name
    from fedforget.sequences.ledger import Ledger
    from fedforget.sequential.verify import require, verify_run

    directory = open_run(run)
    if superlink and not through_clients:
        raise ConfigError(["--superlink: names the clients of --through-clients; give that too"])
    if every and prefix:
        raise ConfigError(["--all: covers every prefix; leave --prefix out"])
    wanted = [_prefix(text) for text in prefix] if prefix else None
    if every:
        with Ledger(directory.ledger, read_only=True) as ledger:
            wanted = list(ledger.live_modules())
    results: list[Verification] = []

    def tell(one: Verification) -> None:
        results.append(one)
        if not as_json:
            said = "same bits" if one.ok else f"DIFFERS: {one.difference}"
            typer.echo(f"{prefix_name(one.prefix)}  {one.stored[:16]}  {said}")

    if through_clients:
        where = target(backend, superlink, root_certificates, insecure)
        for one in _through_clients(directory, wanted, where):
            tell(one)
    else:
        verify_run(run, wanted, on_result=tell)
    same = sum(one.ok for one in results)
    if as_json:
        typer.echo(json.dumps([{**vars(one), "prefix": list(one.prefix)} for one in results], indent=2))
    elif not results:
        typer.echo("Nothing is in service, so there is nothing to verify.")
    else:
        typer.echo(f"{same} of {len(results)} modules came out as the same bits.")
    require(results)


def _through_clients(
    run: RunDirectory, wanted: list[Prefix] | None, where: Backend | Superlink
) -> list[Verification]:
    """Run the ServerApp's verification over the clients, and read what it wrote."""
    from fedforget.sequential.verify import Verification
    from simulations.sequential import VERIFY
    from simulations.sequential_upkeep import carry_on

    run.update(to_verify=None if wanted is None else [list(prefix) for prefix in wanted])
    run.update_metrics(verification={})
    try:
        carry_on(run, where, VERIFY, say=progress)
    except FedForgetError:
        found = run.metrics["verification"]
        if reason := found.get("error"):
            raise RunError(reason) from None
        if "modules" not in found:
            raise
    found = run.metrics["verification"]["modules"]
    return [Verification(**{**one, "prefix": tuple(one["prefix"])}) for one in found]


def _prefix(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.replace(",", " ").split())
    except ValueError:
        raise ConfigError([f"--prefix: {text!r} is not a list of groups such as 2,0,1"]) from None
