"""The demonstration: runs over a few seeds, methods compared at equal forgetting, tables and reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedforget.runs import RunDirectory
from simulations.seeds import Simulate, run_seeds, seeds_command


def run_demo(
    simulate: Simulate,
    preset: str,
    overrides: Sequence[str],
    out: Path | None,
    seeds: Sequence[int],
    *,
    show: Callable[[Any], None],
    say: Callable[[str], None] = print,
) -> Path:
    """Run a preset once per seed, compare methods on each run, and show what came out.

    Parameters
    ----------
    simulate : callable
        Runs a preset with overrides into a directory.
    preset : str
    overrides : sequence of str
        ``key=value`` pairs.
    out : Path or None
        The run's directory, or with several seeds the folder of ``seed-<n>`` directories; None for
        a new one in ``$FEDFORGET_HOME/runs``.
    seeds : sequence of int
        See :func:`simulations.seeds.run_seeds`.
    show : callable
        Prints a table.
    say : callable
        Tells where things are.

    Returns
    -------
    Path
        ``out``, or what it stands for.

    Raises
    ------
    FedForgetError
        A run or a comparison failed; what was done before stays on disk.
    """
    from fedforget.reporting import tables, write_report
    from fedforget.reporting.pooled import write_pooled
    from fedforget.sweeps.stored import compare_run

    def compared(run: RunDirectory) -> None:
        show(tables.outcome_table(run.metrics))
        say("Comparing methods at equal forgetting; gamma is chosen on the selection questions ...")
        for table in tables.comparison_tables(compare_run(run, progress=say)):
            show(table)
        say(f"Report: {write_report(run)}")

    folder = run_seeds(simulate, preset, overrides, out, seeds, after=compared, say=say)
    if len(seeds) > 1:
        for table in write_pooled(folder, seeds_command("demo", preset, overrides, seeds)):
            show(table)
        say(f"Runs: {folder}")
    return folder
