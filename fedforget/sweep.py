"""Many settings of the merge, measured from the summaries that a run has stored; no client takes part."""

from __future__ import annotations

import csv
import io
import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from fedforget.config import MergeConfig
from fedforget.errors import ConfigError, nearest
from fedforget.evaluation import Suite
from fedforget.files import atomic_path, plain, read_json, write_json
from fedforget.merging import Parameter, merge
from fedforget.merging.coverage import require_fishers
from fedforget.merging.registry import find
from fedforget.runs import RunDirectory
from fedforget.summaries import ClientSummary
from fedforget.updates import merge_parameters

_MOST = 10_000  # values in one range: beyond this it is a slip of the pen


@dataclass(frozen=True)
class Setting:
    """A merge method with all its parameters."""

    method: str
    parameters: dict[str, Any]

    def key(self, split: str) -> str:
        """Return what tells this setting's result from others."""
        return json.dumps([self.method, plain(self.parameters), split], sort_keys=True)


def grid(text: str, name: str = "value") -> list[str]:
    """Split ``a,b,c`` into its values and expand each ``start:stop:step``, ends included.

    Raises
    ------
    ConfigError
        An empty value or a range that is not three numbers with a positive step.
    """
    values: list[str] = []
    for part in text.split(","):
        part = part.strip()
        if not part:
            raise ConfigError([f"{name}: {text!r} holds an empty value; separate values by single commas"])
        values += _range(part, name) if ":" in part else [part]
    return values


def _range(part: str, name: str) -> list[str]:
    try:
        start, stop, step = (float(number) for number in part.split(":"))
        count = int((stop - start) / step + 1e-9) + 1
    except (ValueError, ZeroDivisionError, OverflowError):
        count = 0
    if not 1 <= count <= _MOST or step <= 0:
        raise ConfigError([f"{name}: {part!r} is not a range start:stop:step, such as 0.5:1.5:0.1"])
    # Twelve digits drop what binary fractions add: 0.5 + 3 * 0.1 is 0.8.
    return [f"{start + i * step:.12g}" for i in range(count)]


def expand(
    methods: Sequence[str], axes: Mapping[str, Sequence[str]], base: Callable[[str], dict[str, Any]]
) -> list[Setting]:
    """Return every setting of a grid.

    Parameters
    ----------
    methods : sequence of str
        Registered names.
    axes : mapping of str to sequence of str
        Values per parameter, as text. A method varies along the parameters that it has.
    base : callable
        A method's parameters where no axis sets them.

    Raises
    ------
    ConfigError
        Unknown methods, parameters that no method has, values of the wrong type or out of
        range; all at once.
    """
    problems: list[str] = []
    settings: list[Setting] = []
    known: dict[str, dict[str, Parameter]] = {}
    for name in methods:
        try:
            known[name] = {parameter.name: parameter for parameter in find(name).parameters}
        except ConfigError as error:
            problems += error.problems
    everything = {name for parameters in known.values() for name in parameters}
    problems += [
        f"no method of {', '.join(known)} has a parameter {axis!r}{nearest(axis, everything)}"
        for axis in axes
        if known and axis not in everything
    ]
    for name, parameters in known.items():
        mine = {axis: values for axis, values in axes.items() if axis in parameters}
        for combination in itertools.product(*mine.values()):
            try:
                given = {
                    axis: convert(parameters[axis], text)
                    for axis, text in zip(mine, combination, strict=True)
                }
                find(name).parse(given)
            except ConfigError as error:
                problems += [f"{name}: {problem}" for problem in error.problems]
                continue
            settings.append(Setting(name, given))
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return [Setting(one.method, base(one.method) | one.parameters) for one in settings]


def convert(parameter: Parameter, text: str) -> Any:
    """Read a parameter's value from the command line.

    Raises
    ------
    ConfigError
        The text is not of the parameter's type.
    """
    try:
        if parameter.type is bool:
            return {"true": True, "false": False}[text.lower()]
        return parameter.type(text)
    except (ValueError, KeyError) as error:
        kind = {float: "a number", int: "a whole number", bool: "true or false"}.get(parameter.type, "a text")
        raise ConfigError([f"{parameter.name}: {text!r} is not {kind}"]) from error


def sweep(
    run: RunDirectory,
    suite: Suite,
    methods: Sequence[str],
    axes: Mapping[str, Sequence[str]],
    *,
    split: str = "report",
    progress: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Merge and measure every setting that ``sweep.json`` does not hold yet.

    Parameters
    ----------
    run : RunDirectory
        Supplies the summaries and takes ``sweep.json`` and ``sweep.csv``.
    suite : Suite
        The run's evaluation.
    methods, axes
        See :func:`expand`; parameters that no axis sets are the run's own.
    split : {"report", "select"}
        Questions to measure on. A sweep describes; settings are chosen by ``fedforget compare``.
    progress : callable, optional
        Told one line per setting.

    Returns
    -------
    list of dict
        Everything in ``sweep.json``: ``method``, ``parameters``, ``split``, ``metrics``, ``seconds``.
    """
    summaries = run.load_summaries()
    settings = expand(methods, axes, lambda name: _base(suite.config.merge, name, axes, summaries))
    done = {key_of(one) for one in results(run)}
    for setting in settings:
        # Before the first is measured: a long sweep must not end at a setting that the summaries cannot give.
        if find(setting.method).needs_fisher:
            require_fishers(summaries, setting.method, find(setting.method).parse(setting.parameters))
    for i, setting in enumerate(settings, 1):
        if setting.key(split) in done:
            progress(f"{i}/{len(settings)} {setting.method}: measured already")
            continue
        done.add(setting.key(split))
        _append(run, _measure(suite, summaries, setting, split))
        progress(f"{i}/{len(settings)} {describe(setting)}")
    found = results(run)
    with atomic_path(run.path / "sweep.csv") as temporary:
        temporary.write_text(to_csv(found), encoding="utf-8")
    return found


def _base(
    section: MergeConfig, method: str, axes: Mapping[str, Sequence[str]], summaries: Sequence[ClientSummary]
) -> dict[str, Any]:
    """Return the run's own parameters of a method; ``merge.parameters`` go to ``merge.method`` alone."""
    own = section.parameters if method == section.method else {}
    section = replace(section, method=method, parameters=own)
    if "epsilon" in axes:
        section = replace(section, epsilon_fraction=0.0)
    return merge_parameters(section, summaries)


def _measure(
    suite: Suite, summaries: Sequence[ClientSummary], setting: Setting, split: str
) -> dict[str, Any]:
    started = time.perf_counter()
    merged = merge(summaries, setting.method, **setting.parameters)
    merge_seconds = time.perf_counter() - started
    return {
        "method": setting.method,
        "pretty": find(setting.method).pretty,
        "parameters": setting.parameters,
        "split": split,
        "metrics": suite.evaluate(merged.deltas, split),
        "seconds": {"merge": merge_seconds, "evaluate": time.perf_counter() - started - merge_seconds},
    }


def describe(setting: Setting) -> str:
    """Return a setting in one line."""
    values = ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in setting.parameters.items()
    )
    return f"{setting.method}: {values}"


def results(run: RunDirectory) -> list[dict[str, Any]]:
    """Return what ``sweep.json`` holds, empty if there is none."""
    path = run.path / "sweep.json"
    return list(read_json(path)["settings"]) if path.is_file() else []


def key_of(result: Mapping[str, Any]) -> str:
    """Return :meth:`Setting.key` of a stored result."""
    return Setting(result["method"], result["parameters"]).key(result["split"])


def _append(run: RunDirectory, result: dict[str, Any]) -> None:
    path: Path = run.path / "sweep.json"
    # Two sweeps of one run may go on at once; neither loses the other's results.
    with FileLock(run.path / ".sweep.lock"):
        held = results(run)
        if key_of(result) not in {key_of(one) for one in held}:
            write_json(path, {"settings": [*held, result]})


def to_csv(found: Sequence[Mapping[str, Any]]) -> str:
    """Return sweep results as CSV, one row per setting."""
    names = list(dict.fromkeys(name for one in found for name in one["parameters"]))
    columns = [
        (role, key) for role in ("forget", "retain", "held_out") for key in ("accuracy", "standard_error")
    ]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    header = [f"{role}_{key}" for role, key in columns]
    writer.writerow(["method", *names, "split", *header, "perplexity", "collapse"])
    for one in found:
        metrics = one["metrics"]
        row = [one["method"], *(one["parameters"].get(name, "") for name in names), one["split"]]
        row += [metrics.get(role, {}).get(key, "") for role, key in columns]
        row += [metrics.get("perplexity", {}).get("perplexity", ""), " ".join(metrics["collapse"])]
        writer.writerow(row)
    return text.getvalue()
