"""The ``fedforget data`` commands: which families there are, what they need, and what a run would read."""

from __future__ import annotations

from typing import Annotated

import typer

from fedforget.commands.options import Preset, overriding
from fedforget.errors import DataError, nearest

data_app = typer.Typer(no_args_is_help=True, help="List families of data, show their schemas, check a run's.")


def register(app: typer.Typer) -> None:
    """Attach the commands to the ``fedforget`` command line."""
    app.add_typer(data_app, name="data")


@data_app.command("list")
def data_list() -> None:
    """List the families of data."""
    from fedforget.data import families

    for name, family in families().items():
        hub = f" [{', '.join(family.hub)}]" if family.hub else ""
        typer.echo(f"{name}\t{family.kind}\t{family.summary}{hub}")


@data_app.command("show")
def data_show(family: Annotated[str, typer.Argument(help="A family's name.", show_default=False)]) -> None:
    """Show what a family's domains are, and the configurations, splits and columns that it reads."""
    from fedforget.data import families

    known = families()
    if family not in known:
        raise DataError(
            f"there is no family {family!r}{nearest(family, known)}; it is one of {', '.join(known)}"
        )
    found = known[family]
    typer.echo(f"{found.name}: {found.summary}")
    typer.echo(f"for presets of kind: {found.kind}")
    typer.echo(f"from: {found.reference}")
    if found.domains:
        typer.echo(f"domains: {found.domains}")
    if found.hub:
        typer.echo(f"data.path: a hub id ({' or '.join(found.hub)}), or a local file or directory")
    for table in found.tables:
        optional = f" (may have {', '.join(table.optional)})" if table.optional else ""
        subset = table.subset or "(no configuration)"
        typer.echo(
            f"  {subset}: splits {', '.join(table.splits)}; columns {', '.join(table.columns)}{optional}"
        )


@data_app.command("check")
def data_check(
    preset: Preset,
    overrides: Annotated[
        list[str] | None, overriding("data.path=/data/wmdp data.also.mmlu=/data/mmlu")
    ] = None,
) -> None:
    """Read everything that a preset's clients train on and its evaluation asks, and count it.

    Ends with status 1 where something is missing or malformed, or where training and evaluation
    overlap and must not.
    """
    from fedforget.config import RunConfig
    from fedforget.presets import load_any

    config = load_any(preset, overrides or [])
    if not isinstance(config, RunConfig):
        from fedforget.data.corpora import load_corpus
        from fedforget.data.holdings import holdings

        corpus = load_corpus(config.data, config.seeds.data)
        held = holdings(config.data, corpus.federated, config.seeds.data)
        sizes = (
            f"{len(corpus.public)} public, {len(corpus.federated)} federated, {len(corpus.test)} test records"
        )
        typer.echo(f"{config.data.family}: {sizes}; {len(corpus.labels)} classes")
        for client, slices in held.items():
            typer.echo(f"{client}: {sum(map(len, slices.values()))} records in {len(slices)} slices")
        return
    from fedforget.data.inspection import inspect

    found = inspect(config)
    if expert := config.model.expert.domain:
        typer.echo(f"expert: learns {found.expert} examples of {expert}")
    for share in found.clients:
        counts = ", ".join(f"{count} of {domain}" for domain, count in share.examples.items())
        typer.echo(f"{share.client}: trains on {counts}")
    for asked in found.domains:
        counts = ", ".join(f"{count} in {split}" for split, count in asked.questions.items())
        seen = f"; {asked.trained_on} of them were trained on" if asked.trained_on else ""
        typer.echo(f"{asked.domain} ({asked.role}): questions {counts}{seen}")
    for domain in found.unasked:
        typer.echo(f"{domain}: no questions in the run's data, so it is trained on and not measured")
