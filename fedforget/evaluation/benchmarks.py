"""The benchmarks' suites by name, and scoring a model with one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedforget.config import RunConfig
from fedforget.data import Data
from fedforget.data.benchmark import Benchmark, CombinedData
from fedforget.data.muse import Muse
from fedforget.data.tofu import Tofu
from fedforget.errors import ConfigError, DataError, nearest
from fedforget.evaluation.choice_suites import choice_lines, choice_measures, choice_summary
from fedforget.evaluation.item_logs import ItemLogs, reference_rows
from fedforget.evaluation.measures import Measure, Rows, Subject
from fedforget.evaluation.muse import muse_lines, muse_measures, muse_summary
from fedforget.evaluation.tofu import tofu_lines, tofu_measures, tofu_summary
from fedforget.files import write_json

SUMMARY = "summary.json"


@dataclass(frozen=True)
class Asked:
    """Which questions of a benchmark: all or those of one split, how many, by which scorer."""

    split: str = "all"
    limit: int = 0
    scorer: str = "builtin"


@dataclass(frozen=True)
class BenchmarkSuite:
    """A benchmark's own evaluation.

    Attributes
    ----------
    name : str
        Also the family of data that it asks.
    measures : callable
        Gives the measures, from the data, a run's configuration and which questions.
    summarise : callable
        From the measures' rows and, perhaps, a reference model's.
    lines : callable
        What to print of a summary.
    reference : str
        What a reference model's logs are for; empty where there is no use for them.
    """

    name: str
    measures: Callable[[Benchmark, RunConfig, Asked], list[Measure]]
    summarise: Callable[[Rows, Rows | None], dict[str, Any]]
    lines: Callable[[Mapping[str, Any]], list[tuple[str, float]]]
    reference: str = ""


def _tofu(data: Benchmark, config: RunConfig, asked: Asked) -> list[Measure]:
    _built_in(asked)
    forget = [name for name in _own(data, config, "forget") if f"{name}_perturbed" in data.parts()]
    if len(forget) > 1:
        raise ConfigError(
            [f"suite tofu: the run forgets {' and '.join(forget)}; it asks about one forget set"]
        )
    return tofu_measures(
        data, forget[0] if forget else "forget01", asked.limit, _chosen_on(data, config, asked)
    )


def _muse(data: Benchmark, config: RunConfig, asked: Asked) -> list[Measure]:
    _built_in(asked)
    return muse_measures(data, asked.limit, _chosen_on(data, config, asked))


def _wmdp(data: Benchmark, config: RunConfig, asked: Asked) -> list[Measure]:
    domains = _roles(data, config)
    # A benchmark's domain that the run does not name is one that it never trained on.
    domains = domains or dict.fromkeys(data.domains(), "held_out")
    return choice_measures(data, domains, split=asked.split, limit=asked.limit, scorer=asked.scorer)


def _mmlu(data: Benchmark, config: RunConfig, asked: Asked) -> list[Measure]:
    # The evaluation split alone: what is left of the splits to train on is there to select with.
    return choice_measures(data, {"mmlu": "held_out"}, split="report", limit=asked.limit, scorer=asked.scorer)


SUITES = {
    suite.name: suite
    for suite in (
        BenchmarkSuite("wmdp", _wmdp, choice_summary, choice_lines),
        BenchmarkSuite("mmlu", _mmlu, choice_summary, choice_lines),
        BenchmarkSuite("tofu", _tofu, tofu_summary, tofu_lines, "forget quality"),
        BenchmarkSuite("muse", _muse, muse_summary, muse_lines, "PrivLeak"),
    )
}


def find_suite(name: str) -> BenchmarkSuite:
    """Return a suite; raises :class:`ConfigError` that names the nearest if there is none."""
    if name not in SUITES:
        raise ConfigError([f"--suite: {name!r} is not one of {', '.join(SUITES)}{nearest(name, SUITES)}"])
    return SUITES[name]


def family_of(data: Data, config: RunConfig, name: str) -> Benchmark:
    """Return the data of one family, alone or among others.

    Raises
    ------
    DataError
        The run has no data of that family.
    """
    if isinstance(data, CombinedData):
        data = data.family(name)
    if not isinstance(data, Benchmark) or data.name != name:
        raise DataError(
            f"the run has data of family {config.data.family!r} alone; suite {name!r} needs data.also.{name}"
        )
    return data


def score_suite(
    suite: BenchmarkSuite,
    measures: Sequence[Measure],
    subject: Subject,
    logs: ItemLogs,
    *,
    reference: Path | None = None,
    about: Mapping[str, Any] | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure what the logs do not hold yet, and write ``summary.json`` beside them.

    Parameters
    ----------
    suite : BenchmarkSuite
    measures : sequence of Measure
        The suite's.
    subject : Subject
        The model, with the update in place.
    logs : ItemLogs
    reference : Path, optional
        Folder of a reference model's logs: one that never saw the forget set.
    about : mapping, optional
        What else the summary says.
    progress : callable, optional
        Told one line per measure.

    Returns
    -------
    dict
        The summary.

    Raises
    ------
    ConfigError
        A reference for a suite that has no use for one.
    RunError
        The reference's logs are not there or about other questions.
    """
    if reference is not None and not suite.reference:
        raise ConfigError([f"--reference: suite {suite.name!r} compares with no reference model"])
    # Before anything is measured: a long evaluation must not end at a wrong reference.
    compared = reference_rows(reference, measures) if reference is not None else None
    rows = {}
    for measure in measures:
        rows[measure.name], new = logs.rows(measure, subject)
        how = "measured" if new else "read from the log"
        progress(f"{suite.name} {measure.name}: {len(rows[measure.name])} {how}")
    summary = {
        "suite": suite.name,
        "model": logs.model,
        "update": logs.update,
        **(about or {}),
        **suite.summarise(rows, compared),
    }
    if reference is not None:
        summary["reference"] = str(reference)
    write_json(logs.folder / SUMMARY, summary)
    return summary


def _own(data: Benchmark, config: RunConfig, role: str) -> list[str]:
    """Return the domains of one role that belong to the family, as the configuration names them."""
    named = (
        config.evaluation.held_out
        if role == "held_out"
        else [group.domain for group in config.clients if group.role == role]
    )
    return [name for name in dict.fromkeys(named) if data.has(name)]


def _roles(data: Benchmark, config: RunConfig) -> dict[str, str]:
    """Return the domains of the family that the configuration names, with their roles."""
    return {name: role for role in ("forget", "retain", "held_out") for name in _own(data, config, role)}


def _chosen_on(data: Benchmark, config: RunConfig, asked: Asked) -> frozenset[str]:
    """Return the ids of the pairs that settings are chosen on, where they are to be left out."""
    if asked.split == "all" or not isinstance(data, Tofu | Muse):
        return frozenset()
    return frozenset(
        pair.id
        for domain, role in _roles(data, config).items()
        for pair in data.asked_pairs(domain, role, "select")
    )


def _built_in(asked: Asked) -> None:
    if asked.scorer != "builtin":
        raise ConfigError([f"--scorer: {asked.scorer} is for wmdp and mmlu alone"])
