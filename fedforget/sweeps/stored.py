"""What is measured from a stored run: its evaluation, and the comparison of merge methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fedforget.data import load_data
from fedforget.evaluation import Suite
from fedforget.expert import starting_model
from fedforget.models import cached_backbone
from fedforget.runs import RunDirectory
from fedforget.sweeps.compare import compare


def open_suite(run: RunDirectory) -> Suite:
    """Return the evaluation of a run, on the backbone that its clients trained.

    Raises
    ------
    ModelError
        The backbone that the configuration names is no longer the one of the run.
    """
    config = run.config
    backbone = cached_backbone(starting_model(config), config.seeds.model)
    run.check_backbone(backbone.fingerprint)
    return Suite(backbone, load_data(config.data, config.seeds.data), config)


def compare_run(
    run: RunDirectory,
    *,
    names: Sequence[str] | None = None,
    levels: Sequence[float] | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Compare merge methods on a run's stored summaries and write ``comparison`` to its metrics.

    See :func:`fedforget.sweeps.compare.compare`.
    """
    suite = open_suite(run)
    comparison = compare(
        suite,
        run.load_summaries(),
        suite.config,
        names=names,
        levels=levels,
        # The run measured the same backbone (open_suite made sure) on the same questions.
        before=run.metrics.get("before"),
        progress=progress,
    )
    run.update_metrics(comparison=comparison)
    return comparison
