"""Many settings of the merge, measured from the summaries that a run has stored; no client takes part."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from fedforget.config import MergeConfig
from fedforget.evaluation import Suite
from fedforget.files import atomic_path
from fedforget.merging import MergeResult, merge
from fedforget.merging.coverage import needed_fisher, require_fishers
from fedforget.merging.registry import find
from fedforget.progress import quiet_libraries
from fedforget.robust.hardening import Hardening
from fedforget.runs import RunDirectory
from fedforget.summaries import ClientSummary
from fedforget.sweeps.files import append, key_of, results, to_csv
from fedforget.sweeps.settings import Setting, expand
from fedforget.sweeps.stored import open_suite
from fedforget.updates import merge_parameters
from fedforget.workers import ahead

Progress = Callable[[str], None]
_Task = tuple[Setting, str]


def sweep(
    run: RunDirectory,
    methods: Sequence[str],
    axes: Mapping[str, Sequence[str]],
    *,
    split: str = "report",
    workers: int = 1,
    progress: Progress = lambda line: None,
) -> list[dict[str, Any]]:
    """Merge and measure every setting of a grid that ``sweep.json`` does not hold yet.

    Parameters
    ----------
    run : RunDirectory
        Supplies the summaries and takes ``sweep.json`` and ``sweep.csv``.
    methods, axes
        See :func:`fedforget.sweeps.settings.expand`; parameters that no axis sets are the run's own.
    split, workers, progress
        See :func:`measure_all`.

    Returns
    -------
    list of dict
        Everything in ``sweep.json``: ``method``, ``parameters``, ``split``, ``metrics``, ``merge``,
        ``seconds``, and ``budget`` where epsilon is relative to the run's own damage.
    """
    # A relative budget is calibrated on what FIRM gets to see.
    seen = _hardening(run, run.load_summaries()).for_method("firm")
    settings = grid_settings(run.config.merge, seen, methods, axes)
    measure_all(run, settings, split=split, workers=workers, progress=progress)
    return results(run)


def measure_all(
    run: RunDirectory,
    settings: Sequence[Setting],
    *,
    split: str = "report",
    workers: int = 1,
    progress: Progress = lambda line: None,
) -> list[dict[str, Any]]:
    """Merge and measure settings; what ``sweep.json`` holds already is taken from there.

    Parameters
    ----------
    run : RunDirectory
    settings : sequence of Setting
    split : {"report", "select"}
        Questions to measure on. A sweep describes; ``fedforget compare`` chooses settings on one split and
        reports them on the other.
    workers : int
        Processes, 0 for as many as there are CPUs; fewer where memory does not allow so many. Every one
        has a backbone of its own and as many threads as this process. Neither the results nor their
        order depend on the number.
    progress : callable, optional
        Told one line per setting.

    Returns
    -------
    list of dict
        A result per setting, in their order and without repetitions. ``sweep.json`` and ``sweep.csv``
        hold them too, after what was there.
    """
    summaries = run.load_summaries()
    reading = [one for one in settings if find(one.method).needs_fisher]
    # Before the first is measured: a long sweep must not end at a setting that the summaries cannot give.
    # The one that reads most comes first, so that its mend serves all.
    for setting in sorted(reading, key=lambda one: -needed_fisher(one.parameters)):
        parameters = find(setting.method).parse(setting.parameters)
        require_fishers(members(summaries, setting), setting.method, parameters)
    wanted = {setting.key(split): setting for setting in settings}
    done = {key_of(one) for one in results(run)}
    held = sum(key in done for key in wanted)
    if held:
        progress(f"{held} of {len(wanted)} settings are measured already")
    left = [(setting, split) for key, setting in wanted.items() if key not in done]
    for i, (result, (setting, _)) in enumerate(
        zip(_measured(run, summaries, left, workers, progress), left, strict=True)
    ):
        append(run, result)
        progress(f"{held + i + 1}/{len(wanted)} {setting.line}")
    everything = results(run)
    with atomic_path(run.path / "sweep.csv") as temporary:
        temporary.write_text(to_csv(everything), encoding="utf-8")
    found = {key_of(one): one for one in everything}
    return [found[key] for key in wanted]


def _measured(
    run: RunDirectory,
    summaries: list[ClientSummary],
    tasks: Sequence[_Task],
    workers: int,
    progress: Progress,
) -> Iterator[dict[str, Any]]:
    if not tasks:
        return
    yield from ahead(tasks, _Measuring(run, summaries), _Opening(run), workers=workers, say=progress)


class _Opening:
    """Opens a run's measurements in another process, with as many threads: sums are the same to the bit."""

    def __init__(self, run: RunDirectory) -> None:
        self._path = run.path
        self._threads = torch.get_num_threads()

    def __call__(self) -> _Measuring:
        torch.set_num_threads(self._threads)
        quiet_libraries()
        run = RunDirectory(self._path)
        return _Measuring(run, run.load_summaries())


class _Measuring:
    """Measures settings, with the summaries and the backbone opened once."""

    def __init__(self, run: RunDirectory, summaries: Sequence[ClientSummary]) -> None:
        self._suite = open_suite(run)
        self._run = run
        self._summaries = summaries
        self._hardened: dict[tuple[str, ...], Hardening] = {}

    def __call__(self, task: _Task) -> dict[str, Any]:
        setting, split = task
        clients = tuple(setting.clients or ())
        if clients not in self._hardened:
            self._hardened[clients] = _hardening(self._run, members(self._summaries, setting))
        return _measure(self._suite, self._hardened[clients].for_method(setting.method), setting, split)


def _hardening(run: RunDirectory, summaries: Sequence[ClientSummary]) -> Hardening:
    """Clip and pool as the run did; what the check said is in the run's report."""
    return Hardening(summaries, replace(run.config.robust, check="off"))


def grid_settings(
    section: MergeConfig,
    summaries: Sequence[ClientSummary],
    methods: Sequence[str],
    axes: Mapping[str, Sequence[str]],
) -> list[Setting]:
    """Return the settings of a grid; parameters that no axis sets are those of a run's ``merge`` section."""
    sections = {name: _section(section, name, axes) for name in methods}
    # Once per method: what calibrates a relative budget goes through all summaries.
    base = functools.cache(lambda name: merge_parameters(sections[name], summaries))
    return [_relative(one, sections[one.method]) for one in expand(methods, axes, base)]


def _section(section: MergeConfig, method: str, axes: Mapping[str, Sequence[str]]) -> MergeConfig:
    """Return the run's own section for a method; ``merge.parameters`` go to ``merge.method`` alone."""
    own = section.parameters if method == section.method else {}
    fraction = 0.0 if "epsilon" in axes else section.epsilon_fraction
    return replace(section, method=method, parameters=own, epsilon_fraction=fraction)


def _relative(setting: Setting, section: MergeConfig) -> Setting:
    """Say of a setting whose epsilon is relative what it is relative to."""
    if "epsilon" not in setting.parameters or not section.epsilon_fraction:
        return setting
    return replace(setting, budget=(section.epsilon_fraction, section.epsilon_gamma))


def members(summaries: Sequence[ClientSummary], setting: Setting) -> list[ClientSummary]:
    """Return the summaries that a setting merges."""
    return [one for one in summaries if not setting.clients or one.client_id in setting.clients]


def _measure(
    suite: Suite, summaries: Sequence[ClientSummary], setting: Setting, split: str
) -> dict[str, Any]:
    started = time.perf_counter()
    merged = merge(summaries, setting.method, **setting.parameters)
    merge_seconds = time.perf_counter() - started
    subset: dict[str, Any] = {"clients": list(setting.clients), "of": setting.of} if setting.clients else {}
    if setting.budget:
        subset["budget"] = dict(zip(("fraction", "gamma"), setting.budget, strict=True))
    return {
        "method": setting.method,
        "pretty": find(setting.method).pretty,
        "parameters": setting.parameters,
        **subset,
        "split": split,
        "metrics": suite.evaluate(merged.deltas, split),
        "merge": merge_facts(merged),
        "seconds": {"merge": merge_seconds, "evaluate": time.perf_counter() - started - merge_seconds},
    }


def merge_facts(merged: MergeResult) -> dict[str, Any]:
    """Return a merge's size and, for FIRM, what the projection did, over all tensors.

    Returns
    -------
    dict
        ``norm`` of the whole update; ``clusters`` where the method forms some. Where retain clients have
        a damage: ``base_damage`` and ``mean_damage``, its means over retain clients and tensors without
        and with the projection, and ``largest_damage`` with it. Where something was projected:
        ``projected``, the share of (tensor, retain client) pairs with a positive multiplier, and
        ``certified``, whether every tensor's certificate holds.
    """
    tensors = list(merged.report["tensors"].values())
    facts: dict[str, Any] = {"norm": merged.report["norm"]}
    if "clusters" in merged.report:
        facts["clusters"] = merged.report["clusters"]
    damage = [value for one in tensors for value in one.get("damage", [])]
    if damage:
        base = [value for one in tensors for value in one["base_damage"]]
        facts |= {"base_damage": sum(base) / len(base), "mean_damage": sum(damage) / len(damage)}
        facts["largest_damage"] = max(damage)
    certificates = [one["certificate"] for one in tensors if one.get("certificate")]
    if certificates:
        multipliers = [value for one in tensors for value in one["multipliers"]]
        facts["projected"] = sum(value > 0.0 for value in multipliers) / len(multipliers)
        facts["certified"] = all(one["certified"] for one in certificates)
    return facts
