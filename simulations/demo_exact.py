"""The demonstration of FedSGT: train, delete until service ends, verify on the way."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedforget import presets
from fedforget.errors import LedgerError, PlanError
from fedforget.files import atomic_path
from fedforget.progress import quieted
from fedforget.reporting import write_report
from fedforget.reporting.sequential_tables import course_tables
from fedforget.reporting.tables import Table
from fedforget.runs import RunDirectory, default_path
from fedforget.sequences.ledger import Head, Ledger
from fedforget.sequences.theory import (
    EXACT_GROUPS,
    expected_remaining_curve,
    monte_carlo_repaired_life,
    remaining_band,
)
from fedforget.sequential.plan import SequentialPlan
from fedforget.sequential.plan_summary import hit_weights, life
from simulations.course import Course
from simulations.requests import request_in_words
from simulations.sequential_upkeep import repair_here

VERIFIED_AFTER = (0, 1, 2, 5)  # requests; and once more before the request that ends service


def run_demo_exact(
    simulate: Callable[[str, list[str], Path], RunDirectory],
    preset: str,
    overrides: Sequence[str],
    out: Path | None,
    *,
    show: Callable[[Table], None],
    say: Callable[[str], None] = print,
) -> RunDirectory:
    """Train a FedSGT preset, send deletion requests one by one, and verify what serves.

    With ``requests.repairs``, the same requests are then sent to a copy of the trained run that is
    repaired on the way.

    Parameters
    ----------
    simulate : callable
        Runs a preset with overrides into a directory.
    preset : str
    overrides : sequence of str
        ``key=value`` pairs.
    out : Path or None
        The run's directory; None for a new one in ``$FEDFORGET_HOME/runs``.
    show : callable
        Prints a table.
    say : callable
        Tells what is going on.

    Returns
    -------
    RunDirectory
        With ``demo`` in its metrics, ``report.html``, and the repaired copy in ``repaired/``.

    Raises
    ------
    FedForgetError
        The training failed, a request was not carried out, the ledger does not hold, or a module that
        serves is not what the remaining data give.
    """
    started = time.monotonic()
    if preset not in presets.presets() and f"fedsgt-{preset}" in presets.presets():
        preset = f"fedsgt-{preset}"
    config = presets.load_sequential(preset, list(overrides))
    if config.grouping.groups > EXACT_GROUPS:  # before anything is trained
        raise PlanError(
            f"grouping.groups: the demonstration shows exact expectations for at most {EXACT_GROUPS} groups, "
            f"not {config.grouping.groups}; ask for fewer, or run simulate, forget and verify one by one"
        )
    target = Path(out).expanduser().resolve() if out else default_path(config.name)
    run = simulate(preset, list(overrides), target)
    trained = time.monotonic() - started
    with Ledger(run.ledger, read_only=True) as ledger:
        plan = SequentialPlan.of(ledger.groups(), ledger.sequences())
    asked = config.requests
    copy = _copy(run) if asked.repairs and asked.repair_at else None  # before anything is deleted
    what = request_in_words(dataclasses.asdict(asked))
    say(
        f"Requests, {what}. A line tells the client and its slice, the group that goes out of service, the "
        "accuracy of what still serves, and the prefixes that serve (groups in the order of training):"
    )
    plain = Course(run, config, plan, say, VERIFIED_AFTER)
    plain.follow()
    record: dict[str, Any] = {
        "stream": asked.file or asked.kind,
        "asked": what,
        "requests": plain.rows,
        "verified": plain.verified,
        "life": _expected(plain),
        "training_seconds": round(trained, 1),
    }
    _check_ledger(run)
    if copy is not None:
        say("The same requests on a copy of the trained run, with repairs:")
        repaired = Course(copy, config, plan, say, repair=repair_here)
        with quieted("flwr"):  # its lines about every message of a repair
            repaired.follow()
        _check_ledger(copy)
        record["repaired"] = {
            "repair_at": asked.repair_at,
            "most": asked.repairs,
            "requests": repaired.rows,
            "verified": repaired.verified,
            "repairs": repaired.repairs,
            "life": _estimated(repaired),
        }
    record["seconds"] = round(time.monotonic() - started, 1)
    run.update_metrics(demo=record)
    for table in course_tables(record):
        show(table)
    courses = [record, record.get("repaired", {})]
    retrained = sum(one["modules"] for course in courses for one in course.get("verified", []))
    say(
        f"{retrained} modules that served were retrained to compare, all with the same bits; the ledger is "
        f"sound. Report: {write_report(run)}"
    )
    return run


def _copy(run: RunDirectory) -> RunDirectory:
    """Copy a run into its own folder ``repaired``."""
    target = run.path / "repaired"
    with atomic_path(target) as temporary:
        shutil.copytree(run.path, temporary, ignore=shutil.ignore_patterns(".*", "report.html"))
    return RunDirectory(target)


def _expected(course: Course) -> dict[str, Any]:
    """Return the observed life beside the exact prediction, and put what is expected into the rows."""
    plan, config = course.plan, course.config
    odds, groups = hit_weights(plan, config), len(plan.groups)
    predicted = life(plan, config)
    curve = expected_remaining_curve(plan.sequences, course.requests, prior=odds, num_groups=groups)
    bands = remaining_band(
        plan.sequences, course.requests, prior=odds, num_groups=groups, confidence=predicted["confidence"]
    )
    for row, value, band in zip(course.rows, curve, bands, strict=True):
        row["longest_expected"], row["longest_band"] = value, list(band)
    return _observed(course, predicted)


def _estimated(course: Course) -> dict[str, Any]:
    """Return the observed life with repairs beside an estimate by simulation."""
    asked, plan = course.config.requests, course.plan
    confidence = 0.9
    found = monte_carlo_repaired_life(
        plan.sequences,
        asked.repair_at,
        asked.repairs,
        course.config.seeds.requests,
        prior=hit_weights(plan, course.config),
        num_groups=len(plan.groups),
        confidence=confidence,
    )
    predicted = {
        "mean": found.mean.mean,
        "interval": [found.mean.low, found.mean.high],
        "trials": found.mean.trials,
        "std": found.std,
        "band": list(found.band),
        "confidence": confidence,
        "estimate": True,
    }
    return _observed(course, predicted)


def _observed(course: Course, predicted: dict[str, Any]) -> dict[str, Any]:
    steps, band = course.requests, predicted["band"]
    return {
        "observed": steps if course.ended else None,
        "ended": course.ended,
        **predicted,
        "inside": bool(band and course.ended and band[0] <= steps <= band[1]),
    }


def _check_ledger(run: RunDirectory) -> None:
    noted = run.record["ledger_head"]
    with Ledger(run.ledger, read_only=True, verify=False) as ledger:
        problems = ledger.problems(Head(noted["number"], noted["sha256"]))
    if problems:
        raise LedgerError(f"{run.ledger}: {problems[0]}")
