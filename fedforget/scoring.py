"""Benchmark suites on the models of a run: its backbone, its merged updates, or any other model."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedforget.adapters import deltas_applied
from fedforget.cache import key
from fedforget.config import ExpertConfig, RunConfig
from fedforget.data import load_data
from fedforget.errors import RunError
from fedforget.evaluation.benchmarks import Asked, family_of, find_suite, score_suite
from fedforget.evaluation.item_logs import ItemLogs
from fedforget.evaluation.likelihoods import Progress
from fedforget.evaluation.measures import Subject
from fedforget.expert import starting_model
from fedforget.files import home
from fedforget.models import cached_backbone
from fedforget.runs import RunDirectory
from fedforget.updates import UPDATE, load_update


@dataclass(frozen=True)
class Scored:
    """Which model is scored.

    Attributes
    ----------
    config : RunConfig
        Supplies data, batch size and the backbone.
    label : str
        What the model is called in tables.
    update : Path, optional
        A merged update that is added to the backbone.
    run : RunDirectory, optional
        Whose backbone it must be.
    folder : Path
        Below which logs are written, a folder per suite and model.
    """

    config: RunConfig
    label: str
    update: Path | None
    run: RunDirectory | None
    folder: Path


def choose(
    run: RunDirectory | None, config: RunConfig, merge: Path | None, backbone: bool, model: str
) -> Scored:
    """Return what a command line names: the run's merged update unless it says otherwise.

    Parameters
    ----------
    run : RunDirectory, optional
        None where a preset stands in for a run.
    config : RunConfig
        The run's, or the preset's.
    merge : Path, optional
        A directory that a merge wrote.
    backbone : bool
        The backbone as it is.
    model : str
        Another model's path or hub id; empty for none.

    Raises
    ------
    RunError
        More than one of them, or the run holds no merged update.
    """
    if sum((merge is not None, backbone, bool(model))) > 1:
        raise RunError("--merge, --backbone and --model exclude each other; give one")
    folder = (run.path if run else home()) / "scores"
    if model:
        config = replace(
            config, model=replace(config.model, path=model, revision=None, expert=ExpertConfig())
        )
        return Scored(config, model.rstrip("/").rpartition("/")[2], None, None, folder)
    if backbone or (run is None and merge is None):
        return Scored(config, "backbone", None, run, folder)
    source = merge.expanduser().resolve() if merge is not None else run.merged if run else Path()
    file = source / UPDATE if source.is_dir() else source
    if not file.is_file():
        mend = "give what `fedforget merge` wrote" if merge is not None else "merge it, or score --backbone"
        raise RunError(f"{source}: holds no merged update ({UPDATE}); {mend}")
    return Scored(config, file.parent.name, file, run, folder)


def score_model(
    scored: Scored,
    name: str,
    asked: Asked,
    *,
    reference: Path | None = None,
    batch_size: int | None = None,
    progress: Callable[[str], None] = lambda line: None,
    ticks: Progress = lambda done, count: None,
) -> tuple[Path, dict[str, Any]]:
    """Score one model with one suite.

    Parameters
    ----------
    scored : Scored
    name : str
        Of the suite.
    asked : Asked
    reference : Path, optional
        Folder of a reference model's logs.
    batch_size : int, optional
        Instead of ``evaluation.batch_size``.
    progress : callable, optional
        Told one line per measure.
    ticks : callable, optional
        Told how many questions of the measure are done, and of how many.

    Returns
    -------
    folder : Path
        With the logs and ``summary.json``.
    summary : dict

    Raises
    ------
    FedForgetError
        No such suite, no data for it, or a model that is not there or not the run's.
    """
    suite, config = find_suite(name), scored.config
    data = family_of(load_data(config.data, config.seeds.data), config, name)
    measures = suite.measures(data, config, asked)
    backbone = cached_backbone(starting_model(config), config.seeds.model)
    if scored.run is not None:
        scored.run.check_backbone(backbone.fingerprint)
    update = _sha256(scored.update) if scored.update else ""
    settings: Mapping[str, Any] = {
        "batch_size": batch_size or config.evaluation.batch_size,
        "device": backbone.device.type,
    }
    # Neither a quick look at a few questions nor another scorer takes the place of the benchmark's summary.
    which = key(backbone.fingerprint, update, [(one.name, one.questions_hash) for one in measures])
    folder = scored.folder / name / f"{scored.label}-{which}"
    logs = ItemLogs(folder, backbone.fingerprint, update, settings)
    subject = Subject(backbone.model, backbone.tokenizer, settings["batch_size"], ticks)
    deltas = load_update(scored.update) if scored.update else {}
    applied = deltas_applied(backbone.model, deltas) if deltas else contextlib.nullcontext()
    about = {"scored": scored.label, "split": asked.split, "limit": asked.limit, "scorer": asked.scorer}
    with applied:
        summary = score_suite(
            suite, measures, subject, logs, reference=reference, about=about, progress=progress
        )
    return folder, summary


def _sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
