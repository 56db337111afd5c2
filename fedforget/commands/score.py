"""The command ``fedforget score``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedforget.commands.console import progress, show
from fedforget.errors import ConfigError

if TYPE_CHECKING:
    from fedforget.config import RunConfig
    from fedforget.runs import RunDirectory


def register(app: typer.Typer) -> None:
    """Attach the command to the ``fedforget`` command line."""
    app.command()(score)


def score(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_PRESET",
            help="A run's directory; or a preset, for a model that no run made.",
            show_default=False,
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="key=value pairs over a preset, e.g. data.path=/data/tofu", show_default=False),
    ] = None,
    suite: Annotated[
        str,
        typer.Option(help="tofu, muse, wmdp or mmlu; several are separated by commas.", show_default=False),
    ] = "",
    merge: Annotated[
        Path | None,
        typer.Option(
            help="A directory that `fedforget merge` wrote; by default the run's own merge.",
            show_default=False,
        ),
    ] = None,
    backbone: Annotated[bool, typer.Option("--backbone", help="The backbone, without any update.")] = False,
    model: Annotated[
        str,
        typer.Option(help="Another model: an exported directory, a path or a hub id.", show_default=False),
    ] = "",
    reference: Annotated[
        Path | None,
        typer.Option(
            help="tofu, muse: the folder that this command wrote for a model that never saw the forget set.",
            show_default=False,
        ),
    ] = None,
    questions: Annotated[
        int, typer.Option(help="The first so many of each set, for a quick look; 0: all.", min=0)
    ] = 0,
    split: Annotated[str, typer.Option(help="all, or report: what no setting was chosen on.")] = "all",
    scorer: Annotated[str, typer.Option(help="wmdp, mmlu: builtin, or lm-eval.")] = "builtin",
    batch_size: Annotated[
        int | None,
        typer.Option(help="Questions at once; by default evaluation.batch_size.", min=1, show_default=False),
    ] = None,
) -> None:
    """Score a model with a benchmark's own metrics, item by item.

    Writes a log per measure (JSON Lines) and summary.json, and a run's report.html again. What a complete
    log holds is not measured again. See docs/evaluation.md for each metric.
    """
    from fedforget.evaluation.benchmarks import Asked, find_suite
    from fedforget.progress import counter, quiet_libraries
    from fedforget.reporting import write_report
    from fedforget.reporting.scores import score_table
    from fedforget.scoring import choose, score_model
    from fedforget.sweeps.settings import grid

    if not suite:
        raise ConfigError(["--suite: say which, e.g. --suite tofu"])
    suites = [find_suite(name) for name in grid(suite, "--suite")]
    if reference is not None and not any(one.reference for one in suites):
        raise ConfigError([f"--reference: suite {suite!r} compares with no reference model"])
    if split not in ("all", "report"):
        raise ConfigError([f"--split: {split!r} is neither 'all' nor 'report'"])
    run, config = _source(target, overrides or [])
    scored = choose(run, config, merge, backbone, model)
    quiet_libraries()
    for one in suites:
        with counter() as ticks:
            folder, summary = score_model(
                scored,
                one.name,
                Asked(split, questions, scorer),
                reference=reference if one.reference else None,
                batch_size=batch_size,
                progress=progress,
                ticks=ticks,
            )
        show(score_table(one, {scored.label: summary}))
        typer.echo(f"Logs: {folder}")
    if run is not None:
        typer.echo(f"Report: {write_report(run)}")


def _source(target: str, overrides: list[str]) -> tuple[RunDirectory | None, RunConfig]:
    from fedforget.presets import load
    from fedforget.runs import RunDirectory

    if (Path(target).expanduser() / "run.json").is_file():
        if overrides:
            raise ConfigError(
                [f"{overrides[0]!r}: a run keeps its configuration; overrides go with a preset"]
            )
        run = RunDirectory(target)
        return run, run.config
    if Path(target).expanduser().is_dir():
        RunDirectory(target)  # says that it is none
    return None, load(target, overrides)
