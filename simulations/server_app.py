"""The ServerApp: one run, from a preset to its results. The preset's kind says which method."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from logging import INFO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.supercore import log

# Imported first: inside a simulation it settles the working directory, see the package.
import clients  # noqa: F401
from fedforget import presets
from fedforget.config import RunConfig
from fedforget.errors import ConfigError, FedForgetError, RunError
from fedforget.presets import AnyConfig
from fedforget.run_metrics import export
from fedforget.runs import RunDirectory, default_path
from fedforget.updates import load_update
from simulations.paths import absolute, with_absolute_paths
from simulations.processes import MARK
from simulations.run_log import logged
from simulations.sequential import VERIFY, train_sequential, verify_sequential
from strategies.firm import Firm

if TYPE_CHECKING:
    from fedforget.evaluation import Suite

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run what ``config`` names, with ``overrides``, and write it to ``out``.

    With the action ``carry on`` or ``verify``, go on with the FedSGT run in ``out``, or verify it.
    """
    with _in_a_sentence():
        _act(grid, context.run_config)


def _act(grid: Grid, settings: Mapping[str, Any]) -> None:
    if settings.get("action") == VERIFY:
        run = RunDirectory(absolute(str(settings.get("out") or "")))
        verify_sequential(grid, run.sequential, run, 0.2)
        return
    if settings.get("action"):
        carry_on(grid, str(settings.get("out") or ""))
        return
    preset = str(settings.get("config") or "firm-tiny")
    overrides = str(settings.get("overrides") or "")
    run_unlearning(grid, preset, overrides, str(settings.get("out") or ""))


@contextlib.contextmanager
def _in_a_sentence() -> Iterator[None]:
    """Let Flower's log say our own errors without the stack that led there."""
    try:
        yield
    except FedForgetError:
        if Path(sys.argv[0]).stem in {"flwr-serverapp", "flwr-simulation"}:
            sys.tracebacklimit = 0
        raise


def run_unlearning(
    grid: Grid, preset: str, overrides: str = "", out: str = "", *, poll: float = 0.2
) -> RunDirectory:
    """Run one round of unlearning over the connected nodes.

    Parameters
    ----------
    grid : Grid
    preset : str
        A preset's name, or a YAML file.
    overrides : str
        ``key=value`` pairs, separated by spaces, or a JSON list of them.
    out : str
        The run's directory; empty for a new one in ``$FEDFORGET_HOME/runs``. One that holds an
        unfinished run of the same configuration is carried on with.
    poll : float
        Seconds between two rounds of asking for replies.

    Returns
    -------
    RunDirectory

    Raises
    ------
    FedForgetError
        The run cannot be done. ``run.json`` then says so, with the reason.
    """
    config = with_absolute_paths(presets.load_any(absolute_preset(preset), overrides))
    if isinstance(config, RunConfig) and config.seeds.count > 1:
        raise ConfigError(
            [f"seeds.count: {config.seeds.count} runs are for `fedforget simulate`; set seeds.count=1 here"],
            preset,
        )
    run = open_run(config, preset, overrides, out)
    _run(grid, config, run, poll)
    return run


def carry_on(grid: Grid, out: str, *, poll: float = 0.2) -> RunDirectory:
    """Train what is due in a FedSGT run that is there already: after a repair, or of a new generation.

    Raises
    ------
    FedForgetError
        The directory is no FedSGT run, or the training cannot be done.
    """
    run = RunDirectory(absolute(out))
    config = run.sequential
    run.update(status="running", error=None)
    _run(grid, config, run, poll)
    return run


def _run(grid: Grid, config: AnyConfig, run: RunDirectory, poll: float) -> None:
    with logged(run):
        _begin(grid, config, run, poll)


def _begin(grid: Grid, config: AnyConfig, run: RunDirectory, poll: float) -> None:
    log(INFO, "Run directory: %s", run.path)
    export(run)
    try:
        if isinstance(config, RunConfig):
            _unlearn(grid, config, run, poll)
        else:
            train_sequential(grid, config, run, poll)
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"
        # On a full disk the record cannot say so; the error that is raised does.
        with contextlib.suppress(OSError):
            run.update(status="failed", error=reason, finished=time.strftime("%Y-%m-%dT%H:%M:%S%z"))
            export(run)
        if isinstance(error, FedForgetError) and os.environ.get(MARK):
            # `fedforget simulate` reads the reason from run.json and says it, once.
            raise RunError(f"the run failed; {run.path / 'run.json'} says why") from None
        raise
    run.update(status="completed", error=None, finished=time.strftime("%Y-%m-%dT%H:%M:%S%z"))
    export(run)
    _report(run)  # after the status, which it shows
    log(INFO, "The run is complete: %s", run.path)


def absolute_preset(preset: str) -> str:
    """Return the preset, with a path to a file of the user's made absolute."""
    if preset in presets.presets():
        return preset
    path = Path(absolute(preset))
    return str(path) if path.is_file() else preset


def open_run(config: AnyConfig, preset: str, overrides: str, out: str) -> RunDirectory:
    """Create the run's directory, or open an unfinished run of the same configuration.

    Raises
    ------
    RunError
        The directory holds something else: a finished run, or one of another configuration.
    """
    path = Path(absolute(out)) if out else default_path(config.name)
    if not (path / "run.json").is_file():
        return RunDirectory.create(path, config, preset, overrides)
    run = RunDirectory(path)
    if run.record.get("status") == "completed":
        raise RunError(f"{path}: holds a finished run; choose another --out, or remove it first")
    text = presets.to_yaml(config)
    # Who may be which client is no part of the results: a SuperLink that was started anew has other node ids.
    if _but_deployment(run.record["config"]) != _but_deployment(text):
        raise RunError(
            f"{path}: holds an unfinished run of another configuration; "
            "choose another --out, or remove it first"
        )
    run.update(status="running", error=None, config=text)
    log(INFO, "Carrying on with the run in %s", path)
    return run


def _but_deployment(text: str) -> dict[str, Any]:
    return {key: value for key, value in yaml.safe_load(text).items() if key != "deployment"}


def _unlearn(grid: Grid, config: RunConfig, run: RunDirectory, poll: float) -> None:
    # Torch and transformers take seconds to import; a wrong configuration is told before that.
    from fedforget.adapters import adapted_weights, weight_norms
    from fedforget.data import load_data
    from fedforget.evaluation import Suite
    from fedforget.expert import starting_model
    from fedforget.models import cached_backbone

    data = load_data(config.data, config.seeds.data)
    start = starting_model(config)
    backbone = cached_backbone(start, config.seeds.model)
    run.update(backbone={"path": start.path, "fingerprint": backbone.fingerprint})
    shapes = adapted_weights(backbone.model, config.lora)
    suite = Suite(backbone, data, config)
    norms = weight_norms(backbone.model, shapes)
    strategy = Firm(config, run, shapes, backbone.fingerprint, norms=norms, poll=poll, keep_arrays=False)
    strategy.start(grid, ArrayRecord(), evaluate_fn=lambda step, _: _evaluate(suite, run, step))


def _evaluate(suite: Suite, run: RunDirectory, step: int) -> MetricRecord | None:
    """Measure the backbone as it is (step 0) or with the merged update, and write it to the run."""
    name = "after" if step else "before"
    if not step and name in run.metrics:
        return None  # carried on from an earlier attempt
    result = suite.evaluate(load_update(run.merged) if step else None, split="report")
    run.update_metrics(**{name: result})
    flat: dict[str, int | float | list[int] | list[float]] = {
        role: result[role]["accuracy"] for role in ("forget", "retain", "held_out") if role in result
    }
    if "perplexity" in result:
        flat["perplexity"] = result["perplexity"]["perplexity"]
    shown = ", ".join(f"{key} {value:.3f}" for key, value in flat.items())
    log(INFO, "%s: %s", name, shown or "nothing to measure")
    return MetricRecord(flat)


def _report(run: RunDirectory) -> None:
    from fedforget.reporting import write_report

    write_report(run)
