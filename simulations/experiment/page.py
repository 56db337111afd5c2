"""The experiment's page, figures and CSV files, made of stored results."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedforget.files import atomic_path
from fedforget.reporting.tables import Table, markdown
from fedforget.runs import git_state
from simulations.experiment import summaries as say
from simulations.experiment import tables
from simulations.experiment.cells import BASE
from simulations.experiment.figures import save_figures
from simulations.experiment.summaries import Result
from simulations.requests import request_in_words

INTRODUCTION = """\
Methods were sent one stream of deletion requests per setting and seed, {asked}. \
A seed sets everything that is drawn: partition, groups, training, requests. What is \
exact serves nothing that was trained on a deleted record, FedCIO's given its clusters: those were formed \
from updates that the deleted records had a part in. What is approximate is listed beside and says so. \
The comments of the presets say how they were set. Everything below is made of the cells' stored results by \
the command, prose included.
"""


def all_tables(results: Sequence[Result]) -> list[Table]:
    """Return every table that there are results for."""
    main = [one for one in results if one["variant"] == BASE]
    found = [tables.claim_table(main)] if main else []
    for setting in say.settings(main):
        if len(say.methods(say.of(main, setting))) > 1:
            found += [
                tables.outcome_table(main, setting),
                tables.cost_table(main, setting),
                tables.membership_table(main, setting),
            ]
    found += [one for setting in say.settings(results) if (one := tables.ablation_table(results, setting))]
    return [one for one in found if one.rows]


def write_page(results: Sequence[Result], commands: Sequence[str], path: Path) -> None:
    """Write the page, and its figures into a folder beside it that is named after it.

    Parameters
    ----------
    results : sequence of dict
        From :func:`~simulations.experiment.cells.load_results`.
    commands : sequence of str
        Command lines that the results were made with.
    path : Path
        A ``.md`` file.
    """
    path = Path(path).expanduser().resolve()
    state = git_state()  # before this page itself changes the tree
    folder = path.with_suffix("")
    captions = save_figures(results, folder)
    lines = [
        "# Exact unlearning under one stream of requests",
        "",
        _introduction(results),
        "Made by",
        "",
        "```",
        *commands,
        "```",
        "",
        f"at commit {_commits(results)}; page at commit {_commit(state)}.",
        "",
    ]
    for table in all_tables(results):
        lines += [f"## {table.title[0].upper()}{table.title[1:]}", "", markdown(table)]
    lines += ["## Figures", ""]
    for name, caption in captions.items():
        lines += [f"![{caption}]({os.path.relpath(folder / name, path.parent)})", "", f"*{caption}*", ""]
    with atomic_path(path) as temporary:
        temporary.write_text("\n".join(lines).rstrip("\n") + "\n", encoding="utf-8")


def write_csv(results: Sequence[Result], folder: Path) -> None:
    """Write ``course.csv``, a row for every request and cell, and ``cells.csv``, a row for every cell."""
    keys = ("setting", "variant", "method", "seed")
    course = [
        {**{key: one[key] for key in keys}, **{k: v for k, v in row.items() if k != "recovery"}}
        for one in results
        for row in one["course"]
    ]
    cells = []
    for one in results:
        recovery = one["recovery"] or {}
        cells.append(
            {
                **{key: one[key] for key in keys},
                "exact": one["exact"],
                "service_life": say.life(one),
                "expected_life": one["predicted"]["life"] if one["predicted"] else None,
                "recovery_seconds": say.times([one]),
                "accuracy_recovered": recovery.get("accuracy"),
                **{f"training_{key}": value for key, value in one["training"].items()},
            }
        )
    _csv(course, folder / "course.csv")
    _csv(cells, folder / "cells.csv")


def _csv(rows: Sequence[dict[str, Any]], path: Path) -> None:
    names = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    with atomic_path(path) as temporary:
        temporary.write_text(text.getvalue(), encoding="utf-8")


def _introduction(results: Sequence[Result]) -> str:
    streams = (one["asked"]["stream"]["requests"] for one in results)
    return INTRODUCTION.format(asked=_listed(map(request_in_words, streams)))


def _listed(values: Iterable[Any]) -> str:
    return " or ".join(str(value) for value in sorted(set(values), key=str))


def _commits(results: Sequence[Result]) -> str:
    """Return the cells' commits; where there are several, with the methods that were run at each."""
    found: dict[str, list[str]] = {}
    for one in results:
        found.setdefault(_commit(one["git"]), []).append(one["method"])
    if len(found) == 1:
        return next(iter(found))
    return ", ".join(f"{commit} ({', '.join(dict.fromkeys(run))})" for commit, run in found.items())


def _commit(state: Any) -> str:
    dirty = " with uncommitted changes" if state.get("dirty") else ""
    return f"{str(state.get('commit', 'unknown'))[:12]}{dirty}"
