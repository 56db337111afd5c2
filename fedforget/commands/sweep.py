"""``fedforget sweep``, ``match``, ``study`` and ``compare``: what stored summaries tell, with no client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedforget.commands.console import progress, show
from fedforget.commands.options import Runs
from fedforget.errors import ConfigError
from fedforget.progress import quiet_libraries

if TYPE_CHECKING:
    from fedforget.runs import RunDirectory

Methods = Annotated[str, typer.Option("--method", help="Merge methods, separated by commas.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="name=value of a further parameter of the method.", show_default=False),
]
Split = Annotated[str, typer.Option(help="Questions to measure on: report, select, or both.")]
Workers = Annotated[
    int,
    typer.Option(
        min=0,
        help="Processes, each with a backbone of its own; 0: one per CPU. Fewer where memory does not allow "
        "so many. The results are the same. On CPUs set OMP_NUM_THREADS to the CPUs per process.",
    ),
]


def register(app: typer.Typer) -> None:
    """Attach the commands to the ``fedforget`` command line."""
    for command in (sweep, match, study, studies, compare):
        app.command()(command)


def sweep(
    run: Runs,
    method: Methods = "firm",
    gamma: Annotated[str, typer.Option(help="Values a,b,c or start:stop:step.")] = "0.5:1.5:0.25",
    epsilon: Annotated[
        str | None, typer.Option(help="Values, inf among them; by default the run's.", show_default=False)
    ] = None,
    alpha: Annotated[
        str | None, typer.Option(help="Values; by default the run's.", show_default=False)
    ] = None,
    parameters: Set = None,
    split: Split = "report",
    workers: Workers = 1,
) -> None:
    """Merge and measure many settings from a run's stored summaries, with no client taking part.

    Settings that sweep.json holds already are not measured again. Writes sweep.json, sweep.csv
    and sweep.png.
    """
    from fedforget.reporting import plots, tables
    from fedforget.sweeps.settings import expand, grid
    from fedforget.sweeps.sweep import sweep as run_sweep

    given = {"gamma": gamma, "epsilon": epsilon, "alpha": alpha}
    texts = {name: value for name, value in given.items() if value is not None} | pairs(parameters)
    axes = {name: grid(text, name) for name, text in texts.items()}
    names = grid(method, "--method")
    # A wrong setting is told before the model is loaded.
    expand(names, axes, lambda name: {})
    splits = _splits(split)
    for directory in _opened(run):
        for one in splits:
            results = run_sweep(directory, names, axes, split=one, workers=workers, progress=progress)
        figure = plots.sweep_figure(results, directory.metrics.get("before"))
        plots.save(figure, directory.path / "sweep.png")
        show(tables.sweep_table(results))
    over_seeds(run)


def match(
    run: Runs,
    reference: Annotated[
        str,
        typer.Option(
            help="The curve that others are matched to, e.g. firm or firm:epsilon=inf; by default FIRM "
            "without a budget.",
            show_default=False,
        ),
    ] = "",
    curve: Annotated[
        list[str] | None,
        typer.Option(help="A curve to match; repeat. By default every other one.", show_default=False),
    ] = None,
    rule: Annotated[
        str,
        typer.Option(help="joint: all forget domains at once; separate: each domain chooses by itself."),
    ] = "joint",
    utility: Annotated[
        str, typer.Option(help="Role or domain that the envelopes are of, e.g. retain, held_out or mmlu.")
    ] = "retain",
    tolerance: Annotated[float, typer.Option(min=0.0, help="A pair is close if no gap is larger.")] = 0.005,
) -> None:
    """Match a stored sweep's settings to a reference method by forgetting alone, and compare their utility.

    Nothing is merged or measured. A sweep with --split both lets matches be chosen on the selection
    questions and reported on the others. Writes match.json and match.md.
    """
    from fedforget.sweeps.files import results
    from fedforget.sweeps.matched import RULES
    from fedforget.sweeps.studies import StudyMatch, match_run, write_match

    if rule not in RULES:
        raise ConfigError([f"--rule: {rule!r} is neither {' nor '.join(map(repr, RULES))}"])
    asked = StudyMatch(reference, list(curve or ()), rule, utility, tolerance)
    for directory in _runs(run):
        found = match_run(directory, results(directory), asked)
        for table in write_match(directory.path, found):
            show(table)


def study(
    run: Runs,
    name: Annotated[
        str,
        typer.Option(
            "--study", help="A study's name (see `fedforget studies`) or YAML file.", show_default=False
        ),
    ],
    split: Split = "report",
    workers: Workers = 1,
) -> None:
    """Measure what one of the FIRM paper's tables compares, from a run's stored summaries.

    What sweep.json holds already is not measured again. Writes studies/<name>.csv, .md and .png.
    """
    from fedforget.sweeps.studies import find_study, run_study

    chosen, splits = find_study(name), _splits(split)
    for directory in _opened(run):
        for table in run_study(directory, chosen, splits=splits, workers=workers, progress=progress):
            show(table)
        typer.echo(f"Study: {directory.path / 'studies' / chosen.name}.md")
    over_seeds(run)


def studies() -> None:
    """List the studies: which table each gives, and where its file is."""
    from fedforget.sweeps.studies import find_study
    from fedforget.sweeps.studies import studies as known

    for name, path in sorted(known().items()):
        typer.echo(f"{name}\t{find_study(name).title}\t{path}")


def compare(
    run: Runs,
    method: Annotated[
        str | None,
        typer.Option(help="Methods, separated by commas; by default the run's.", show_default=False),
    ] = None,
    level: Annotated[
        str | None,
        typer.Option(help="Levels of forgetting, 0 to 1; by default the run's.", show_default=False),
    ] = None,
) -> None:
    """Compare merge methods at matched forgetting, from a run's stored summaries.

    gamma is chosen by forget accuracy on the selection questions alone; results are on the
    reported questions. Writes metrics.json and report.html.
    """
    from fedforget.reporting import tables, write_report
    from fedforget.sweeps.settings import grid
    from fedforget.sweeps.stored import compare_run

    names = grid(method, "--method") if method else None
    levels = [_level(text) for text in grid(level, "--level")] if level else None
    for directory in _opened(run):
        comparison = compare_run(directory, names=names, levels=levels, progress=progress)
        for table in tables.comparison_tables(comparison):
            show(table)
        typer.echo(f"Report: {write_report(directory)}")
    over_seeds(run)


def _opened(path: Path) -> list[RunDirectory]:
    """Open a run, or the runs of a folder of seeds, and silence the model libraries."""
    runs = _runs(path)
    for one in runs:
        one.load_summaries()
    quiet_libraries()
    return runs


def _runs(path: Path) -> list[RunDirectory]:
    from fedforget.pooling import seed_runs
    from fedforget.runs import RunDirectory

    return seed_runs(path) or [RunDirectory(path)]


def over_seeds(path: Path, page: Path | None = None) -> None:
    """Pool a folder of seeds, write its report, and show the tables; nothing for a single run.

    ``page``: see :func:`fedforget.reporting.pooled.write_pooled`.
    """
    from fedforget.pooling import seed_runs
    from fedforget.reporting.pooled import write_pooled

    if seed_runs(path):
        for table in write_pooled(path, page=page):
            show(table)


def _splits(text: str) -> tuple[str, ...]:
    known = {"report": ("report",), "select": ("select",), "both": ("select", "report")}
    if text not in known:
        raise ConfigError([f"--split: {text!r} is neither 'report' nor 'select' nor 'both'"])
    return known[text]


def pairs(texts: Sequence[str] | None) -> dict[str, str]:
    """Read ``name=value`` options.

    Raises
    ------
    ConfigError
        A text of another form.
    """
    found = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise ConfigError([f"--set: {text!r} is not of the form name=value"])
        found[name.strip()] = value.strip()
    return found


def _level(text: str) -> float:
    try:
        level = float(text)
    except ValueError:
        level = 0.0
    if not 0.0 < level <= 1.0:
        raise ConfigError([f"--level: {text!r} is not a number in (0, 1]"])
    return level
