"""The demonstration of FedSGT: train, delete until service ends, verify on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedforget import presets
from fedforget.deletions import forget, held
from fedforget.errors import LedgerError, RunError
from fedforget.files import atomic_path
from fedforget.plan_summary import hit_weights, life
from fedforget.reporting.tables import Table, markdown
from fedforget.runs import RunDirectory, default_path
from fedforget.sequences.ledger import DELETED, Head, Ledger
from fedforget.sequences.theory import expected_remaining_curve
from fedforget.sequential_config import SequentialRunConfig
from fedforget.sequential_plan import SequentialPlan
from fedforget.served import measure
from fedforget.verify import require, verify_run
from simulations.requests import request_stream

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
        With ``demo`` in its metrics, and ``report.md``.

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
    target = Path(out).expanduser().resolve() if out else default_path(config.name)
    run = simulate(preset, list(overrides), target)
    trained = time.monotonic() - started
    with Ledger(run.ledger, read_only=True) as ledger:
        plan = SequentialPlan.of(ledger.groups(), ledger.sequences())
    stream = _Stream(run, config, plan, say)
    stream.run()
    record = {
        **stream.record(),
        "training_seconds": round(trained, 1),
        "seconds": round(time.monotonic() - started, 1),
    }
    _check_ledger(run)
    run.update_metrics(demo=record)
    shown = tables(record)
    for table in shown:
        show(table)
    _write(run, shown)
    say(f"Every bit verified; the ledger is sound. Report: {run.path / 'report.md'}")
    return run


class _Stream:
    """Requests until service ends, with what was measured after each."""

    def __init__(
        self,
        run: RunDirectory,
        config: SequentialRunConfig,
        plan: SequentialPlan,
        say: Callable[[str], None],
    ) -> None:
        self._run, self._config, self._plan, self._say = run, config, plan, say
        self._rows: list[dict[str, Any]] = []
        self._verified: list[dict[str, Any]] = []
        self._ended = False

    def run(self) -> None:
        """Send the requests."""
        run = self._run
        before = self._measured(0, "after training", "-")
        self._verify(0, before)
        for number, request in enumerate(request_stream(self._config, self._plan, held(run)), start=1):
            if len(before["prefixes"]) == 1 and len(before["prefixes"][0]) == 1:
                self._verify(number - 1, before)  # what may be the last module
            outcome = forget(run, [request])[0]
            if outcome.status != DELETED:
                raise RunError(f"{outcome.request_id} was not carried out: {outcome.message}")
            groups = ", ".join(map(str, outcome.groups)) or "hit before"
            whom = request.client if request.slice_id is None else f"{request.client}/{request.slice_id}"
            before = self._measured(number, whom, groups)
            if not before["modules"]:
                self._ended = True
                return
            if number in VERIFIED_AFTER:
                self._verify(number, before)

    def record(self) -> dict[str, Any]:
        """Return the whole course, with what the theory expects of it."""
        predicted = life(self._plan, self._config)
        steps = len(self._rows) - 1
        curve = expected_remaining_curve(
            self._plan.sequences,
            steps,
            prior=hit_weights(self._plan, self._config),
            num_groups=len(self._plan.groups),
        )
        for row, value in zip(self._rows, curve, strict=True):
            row["longest_expected"] = value
        band = predicted["band"]
        return {
            "stream": self._config.requests.file or self._config.requests.kind,
            "requests": self._rows,
            "verified": self._verified,
            "life": {
                "observed": steps if self._ended else None,
                "ended": self._ended,
                **predicted,
                "inside": bool(band and self._ended and band[0] <= steps <= band[1]),
            },
        }

    def _measured(self, number: int, said: str, group: str) -> dict[str, Any]:
        found = measure(self._run)
        longest = max((len(prefix) for prefix in found["prefixes"]), default=0)
        self._rows.append({"number": number, "request": said, "group": group, "longest": longest, **found})
        accuracy = found["accuracy"]
        serving = "  ".join(",".join(map(str, prefix)) for prefix in found["prefixes"])
        shown = f"accuracy {accuracy:.3f}" if accuracy is not None else "service has ended"
        self._say(f"[{number:3d}] {said}, group {group}: {shown}, {found['modules']} modules live  {serving}")
        return found

    def _verify(self, number: int, found: dict[str, Any]) -> None:
        """Retrain the longest prefix that serves without what was deleted, and compare."""
        longest = max((tuple(prefix) for prefix in found["prefixes"]), key=len)
        last = self._verified[-1] if self._verified else None
        if last and (
            last["after"] == number or (number not in VERIFIED_AFTER and last["prefix"] == [*longest])
        ):
            return
        results = verify_run(self._run.path, [longest])
        self._verified.append(
            {
                "after": number,
                "prefix": list(longest),
                "modules": len(results),
                "same": sum(one.ok for one in results),
            }
        )
        self._say(
            f"      verified {','.join(map(str, longest))}: {len(results)} modules retrained, same bits"
        )
        require(results)


def tables(record: dict[str, Any]) -> list[Table]:
    """Return the course of the demonstration as tables."""
    rows = [
        [
            str(row["number"]),
            row["request"],
            row["group"],
            "-" if row["accuracy"] is None else f"{row['accuracy']:.3f}",
            str(row["modules"]),
            str(row["longest"]),
            f"{row['longest_expected']:.2f}",
        ]
        for row in record["requests"]
    ]
    found = record["life"]
    observed = str(found["observed"]) if found["ended"] else "not ended"
    band = f"{found['band'][0]:.0f} to {found['band'][1]:.0f}" if found["band"] else "-"
    lives = [[observed, f"{found['mean']:.1f} +- {found['std']:.1f}", band]]
    verified = [
        [str(one["after"]), ",".join(map(str, one["prefix"])), f"{one['same']} of {one['modules']}"]
        for one in record["verified"]
    ]
    notes = ["longest: groups in the longest prefix that serves, and its expectation before any request"]
    if record["stream"] != "uniform":
        notes.append(
            f"What is expected holds for independent uniform requests; these are {record['stream']}."
        )
    return [
        Table("Requests", ["", "slice", "group", "accuracy", "modules", "longest", "expected"], rows, notes),
        Table(
            "Service life in requests", ["observed", "expected", f"band of {found['confidence']:.0%}"], lives
        ),
        Table("Retrained without the deleted data", ["after requests", "prefix", "same bits"], verified),
    ]


def _check_ledger(run: RunDirectory) -> None:
    noted = run.record["ledger_head"]
    with Ledger(run.ledger, read_only=True, verify=False) as ledger:
        problems = ledger.problems(Head(noted["number"], noted["sha256"]))
    if problems:
        raise LedgerError(f"{run.ledger}: {problems[0]}")


def _write(run: RunDirectory, shown: Sequence[Table]) -> None:
    parts = [f"# {run.path.name}\n"] + [f"## {table.title}\n\n{markdown(table)}" for table in shown]
    with atomic_path(run.path / "report.md") as temporary:
        temporary.write_text("\n".join(parts), encoding="utf-8")
