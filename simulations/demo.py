"""The demonstration: runs over a few seeds, methods compared at equal forgetting, tables and reports."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedforget import presets
from fedforget.files import atomic_path, write_json
from fedforget.runs import RunDirectory, default_path, git_state


def run_demo(
    simulate: Callable[[str, list[str], Path], RunDirectory],
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
        Training seeds (``seeds.training``).
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
    from fedforget.pooling import pool
    from fedforget.reporting import tables, write_report
    from fedforget.stored import compare_run

    config = presets.load(preset, list(overrides))
    folder = Path(out).expanduser().resolve() if out else default_path(config.name)
    comparisons = []
    for seed in seeds:
        target = folder / f"seed-{seed}" if len(seeds) > 1 else folder
        run = simulate(preset, [*overrides, f"seeds.training={seed}"], target)
        show(tables.outcome_table(run.metrics))
        say("Comparing methods at equal forgetting; gamma is chosen on the selection questions ...")
        comparison = compare_run(run, progress=say)
        comparisons.append(comparison)
        for table in tables.comparison_tables(comparison):
            show(table)
        say(f"Report: {write_report(run)}")
    if len(seeds) > 1:
        pooled = pool(comparisons)
        write_json(folder / "pooled.json", pooled)
        show(tables.pooled_table(pooled))
        command = shlex.join(["fedforget", "demo", preset, *overrides, "--seeds", ",".join(map(str, seeds))])
        with atomic_path(folder / "pooled.md") as temporary:
            temporary.write_text(pooled_page(command, comparisons, pooled), encoding="utf-8")
        say(f"Runs: {folder}")
    return folder


def pooled_page(
    command: str, comparisons: Sequence[Mapping[str, Any]], pooled: Sequence[Mapping[str, Any]]
) -> str:
    """Return a Markdown page of a comparison over seeds: what made it, before, and at matched forgetting."""
    from fedforget.reporting import tables

    state = git_state()
    commit = state.get("commit", "unknown") + (" with uncommitted changes" if state.get("dirty") else "")
    before = comparisons[0]["before"]
    lines = [f"Made by `{command}` at commit {commit}.", ""]
    lines += ["| before | accuracy | questions |", "| --- | ---: | ---: |"]
    for role in ("forget", "retain", "held_out"):
        if role in before:
            row = before[role]
            lines.append(f"| {role.replace('_', '-')} | {row['accuracy']:.3f} | {row['count']} |")
    lines += ["", tables.markdown(tables.pooled_table(pooled))]
    return "\n".join(lines)
