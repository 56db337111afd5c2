"""``fedforget experiment exact``: run the experiment on exact unlearning, and show what came out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

experiment_app = typer.Typer(no_args_is_help=True, help="Experiments over methods, settings and seeds.")

_COMMANDS = "commands.json"


def register(app: typer.Typer) -> None:
    """Attach the commands to the ``fedforget`` command line."""
    app.add_typer(experiment_app, name="experiment")


Page = Annotated[
    Path | None,
    typer.Option(
        help="Where to write the page, with a folder of figures beside it; by default in --out.",
        show_default=False,
    ),
]


@experiment_app.command()
def exact(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="key=value pairs over every preset.", show_default=False),
    ] = None,
    preset: Annotated[
        list[str] | None,
        typer.Option(
            help="A setting: digits-iid, digits-dirichlet, statements, or any FedSGT preset; repeat."
        ),
    ] = None,
    methods: Annotated[
        str, typer.Option(help="Methods, e.g. FedSGT,FedCIO; all by default.", show_default=False)
    ] = "",
    seeds: Annotated[
        str, typer.Option(help="Seeds; each draws data, groups, training and requests.")
    ] = "0,1,2",
    out: Annotated[Path, typer.Option(help="Where cells are stored; give it again to carry on.")] = Path(
        "experiment-exact"
    ),
    match: Annotated[
        str,
        typer.Option(
            help="How training costs are matched: formula (the paper's), examples (records passed), none."
        ),
    ] = "formula",
    ablation: Annotated[
        str,
        typer.Option(
            help="FedSGT with one thing changed: B, S, L, rule, grouping or peft.", show_default=False
        ),
    ] = "",
    values: Annotated[str, typer.Option(help="Values of the ablation, e.g. 1,3,9.", show_default=False)] = "",
    every: Annotated[
        int,
        typer.Option(
            min=1, help="Membership, and methods that recover, are measured every so many requests."
        ),
    ] = 5,
    horizon: Annotated[int, typer.Option(min=1, help="Requests after which methods that recover stop.")] = 20,
    workers: Annotated[
        int,
        typer.Option(
            min=0, help="Cells at a time, over Ray; 1: in this process, without Ray; 0: one per CPU."
        ),
    ] = 0,
    minutes: Annotated[
        float, typer.Option(min=0, help="Begin no cell after so many minutes; 0: no limit.")
    ] = 0.0,
    again: Annotated[
        bool, typer.Option("--again", help="Run cells anew that were made with another configuration.")
    ] = False,
    page: Page = None,
) -> None:
    """Put one stream of deletion requests to every method, at matched training cost.

    A cell is one method on one setting with one seed, and a directory under --out. Cells that are
    finished are not run again, so the same command carries on after an interruption. Tables,
    figures, CSV files and a page are made of what is stored.
    """
    from fedforget.workers import available_cpus
    from simulations.experiment.course import Pace
    from simulations.experiment.plan import cells_of
    from simulations.experiment.workers import due_cells, run_cells

    folder = Path(out).expanduser().resolve()
    cells = cells_of(
        preset or ["digits-iid"],
        overrides or [],
        _words(methods),
        _seeds(seeds),
        rule=match,
        pace=Pace(every, horizon),
        ablation=ablation,
        values=_words(values),
    )
    given = {"methods": methods, "seeds": seeds, "match": match, "ablation": ablation, "values": values}
    due_cells(cells, folder, again)  # a command that is refused made nothing of the page
    _note_command(folder, preset or [], overrides or [], {**given, "every": every, "horizon": horizon})
    left = run_cells(
        cells, folder, workers=workers or available_cpus(), minutes=minutes, again=again, say=typer.echo
    )
    if not left:
        report(folder, page)


@experiment_app.command()
def report(
    out: Annotated[Path, typer.Argument(help="Where cells are stored.", show_default=False)],
    page: Page = None,
) -> None:
    """Make tables, figures, CSV files and the page of what is stored; nothing is run."""
    from fedforget.commands.console import show
    from simulations.experiment.cells import load_results
    from simulations.experiment.page import all_tables, write_csv, write_page

    folder = Path(out).expanduser().resolve()
    results = load_results(folder)
    for table in all_tables(results):
        show(table)
    write_csv(results, folder)
    target = page or folder / "results.md"
    write_page(results, _noted(folder), target)
    typer.echo(f"Page: {target}")


def _note_command(
    folder: Path, settings: list[str], overrides: list[str], options: dict[str, object]
) -> None:
    """Keep the command line, for the page; how cells are spread over time and workers is no part of it."""
    from fedforget.files import write_json

    words = ["fedforget experiment exact", *(f"--preset {name}" for name in settings)]
    words += [f"--{name} {value}" for name, value in options.items() if value != ""]
    command = " ".join([*words, *overrides])
    known = _noted(folder)
    if command not in known:
        write_json(folder / _COMMANDS, [*known, command])


def _noted(folder: Path) -> list[str]:
    from fedforget.files import read_json

    path = folder / _COMMANDS
    return list(read_json(path)) if path.is_file() else []


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()


def _seeds(text: str) -> list[int]:
    from simulations.seeds import parse_seeds

    return parse_seeds(text)
