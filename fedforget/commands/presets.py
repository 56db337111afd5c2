"""The commands about a preset alone: ``fedforget config``, ``prepare`` and ``adapt``."""

from __future__ import annotations

import typer

from fedforget.commands.console import progress
from fedforget.commands.options import Overrides, Preset
from fedforget.progress import quiet_libraries

config_app = typer.Typer(no_args_is_help=True, help="List, show and check configurations.")


def register(app: typer.Typer) -> None:
    """Attach the commands to the ``fedforget`` command line."""
    app.add_typer(config_app, name="config")
    for command in (prepare, adapt):
        app.command()(command)


@config_app.command("list")
def config_list() -> None:
    """List the presets."""
    from fedforget.presets import presets

    for name, path in sorted(presets().items()):
        typer.echo(f"{name}\t{path}")


@config_app.command("show")
def config_show(preset: Preset, overrides: Overrides = None) -> None:
    """Show a preset with every default filled in and the overrides applied."""
    from fedforget.presets import load_any, to_yaml

    typer.echo(to_yaml(load_any(preset, overrides or [])), nl=False)


@config_app.command("validate")
def config_validate(preset: Preset, overrides: Overrides = None) -> None:
    """Check a preset; every problem is reported at once."""
    from fedforget.client_specs import expand_clients
    from fedforget.config import RunConfig
    from fedforget.presets import load_any

    config = load_any(preset, overrides or [])
    count = len(expand_clients(config.clients)) if isinstance(config, RunConfig) else config.data.clients
    typer.echo(f"{preset}: valid, {count} clients")


def prepare(preset: Preset, overrides: Overrides = None) -> None:
    """Fetch, convert or train a preset's model into the cache, so that its runs only read it."""
    from fedforget.config import RunConfig
    from fedforget.files import home
    from fedforget.presets import load_any

    quiet_libraries()
    config = load_any(preset, overrides or [])
    if isinstance(config, RunConfig):
        from fedforget.models import prepare_backbone

        prepare_backbone(config.model, config.seeds.model)
    else:
        from fedforget.sequential.classifiers import load_classifier

        load_classifier(config)
    typer.echo(f"{preset}: {config.model.path} is ready ({home() / 'cache'})")


def adapt(preset: Preset, overrides: Overrides = None) -> None:
    """Adapt a preset's backbone to the data of model.expert, once; all its clients start from that.

    An adaptation that was interrupted goes on from its last checkpoint.
    """
    from fedforget.expert import adapt as make_expert
    from fedforget.presets import load

    config = load(preset, overrides or [])
    quiet_libraries()
    typer.echo(f"Expert: {make_expert(config, progress)}")
