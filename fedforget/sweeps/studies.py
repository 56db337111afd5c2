"""The FIRM paper's tables, ablations and controls as named grids over a run's stored summaries."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from fedforget.checks.ranges import one_of
from fedforget.config import RunConfig
from fedforget.errors import ConfigError, RunError, nearest
from fedforget.files import atomic_path, write_json
from fedforget.merging import calibrate_epsilon
from fedforget.presets import config_directories, read_mapping
from fedforget.reporting import Table, markdown, plots
from fedforget.reporting.matched import matched_tables, study_table
from fedforget.runs import RunDirectory
from fedforget.schemas import Cleaner
from fedforget.summaries import ClientSummary
from fedforget.sweeps.files import to_csv
from fedforget.sweeps.matched import RULES, match_sweep
from fedforget.sweeps.settings import Setting, expand, grid
from fedforget.sweeps.sweep import grid_settings, measure_all


@dataclass
class StudyGrid:
    """Settings that a study measures: every combination of the values below."""

    methods: list[str] = field(default_factory=list)
    axes: dict[str, str] = field(default_factory=dict)  # parameter -> values a,b,c or start:stop:step
    # Numbers n: merge the first n forget domains, in the preset's order, alone. Empty: all.
    forget_domains: str = ""
    clients_per_domain: int = 0  # of each forget domain, the first by id; 0: all
    retain_clients: str = ""  # numbers m: merge the first m retain clients by id. Empty: all
    # Instead of epsilon: this share of the mean damage without projection, calibrated for the clients
    # and the gamma of each setting (0: off).
    epsilon_fraction: float = 0.0


@dataclass
class StudyMatch:
    """A comparison at matched forgetting; see :func:`fedforget.sweeps.matched.match_sweep`."""

    reference: str = ""
    curves: list[str] = field(default_factory=list)
    rule: str = "joint"
    utility: str = "retain"
    tolerance: float = 0.005


@dataclass
class Study:
    """One study."""

    name: str = ""
    title: str = ""
    source: str = ""  # paper, section and table
    grids: list[StudyGrid] = field(default_factory=list)
    matches: list[StudyMatch] = field(default_factory=list)


def studies() -> dict[str, Path]:
    """Return the file of every study by name."""
    found: dict[str, Path] = {}
    for folder in reversed(config_directories()):
        found |= {path.stem: path for path in sorted((folder / "studies").glob("*.yaml"))}
    return found


def find_study(name: str) -> Study:
    """Return a study, given by name or as a YAML file.

    Raises
    ------
    ConfigError
        There is no such study or file, or everything that is wrong with it.
    """
    known = studies()
    path = known.get(name) or Path(name).expanduser()
    if name not in known and not (path.suffix in {".yaml", ".yml"} and path.is_file()):
        raise ConfigError(
            [f"no study or YAML file {name!r}{nearest(name, known)}; studies: {', '.join(sorted(known))}"]
        )
    problems: list[str] = []
    schema: DictConfig = OmegaConf.structured(Study)
    raw = Cleaner(Study, problems).clean(read_mapping(path))
    study = cast(Study, OmegaConf.to_object(OmegaConf.merge(schema, raw)))
    study.name = study.name or path.stem
    for i, one in enumerate(study.grids):
        problems += [f"grids[{i}]: {problem}" for problem in _problems(one)]
    for i, asked in enumerate(study.matches):
        problems += one_of(f"matches[{i}].rule", asked.rule, RULES)
    if not study.grids:
        problems.append("grids: name at least one grid of settings")
    if problems:
        raise ConfigError(problems, str(path))
    return study


def _problems(one: StudyGrid) -> Iterator[str]:
    checks: list[Callable[[], Any]] = [
        lambda: expand(one.methods, _axes(one), lambda name: {}),
        lambda: _counts(one.forget_domains, "forget_domains"),
        lambda: _counts(one.retain_clients, "retain_clients"),
    ]
    if not one.methods:
        yield "methods: name at least one merge method"
    for check in checks:
        try:
            check()
        except ConfigError as error:
            yield from error.problems
    if one.epsilon_fraction and (one.methods != ["firm"] or "epsilon" in one.axes):
        yield "epsilon_fraction: goes with the method firm alone, and without an epsilon among the axes"


def _axes(one: StudyGrid) -> dict[str, list[str]]:
    return {name: grid(text, name) for name, text in one.axes.items()}


def _counts(text: str, name: str) -> list[int]:
    """Read whole numbers from 1; empty for none."""
    try:
        numbers = [float(one) for one in grid(text, name)] if text else []
    except ValueError:
        numbers = [0.0]
    if any(one < 1 or not one.is_integer() for one in numbers):
        raise ConfigError([f"{name}: {text!r} is not a list of whole numbers from 1, such as 1,2,3"])
    return [int(one) for one in numbers]


def study_settings(study: Study, config: RunConfig, summaries: Sequence[ClientSummary]) -> list[Setting]:
    """Return every setting of a study for a run's clients.

    Raises
    ------
    RunError
        The run has fewer forget domains or retain clients than the study takes.
    """
    found = []
    for one in study.grids:
        for label, members in _subsets(one, config, summaries):
            for setting in grid_settings(config.merge, members, one.methods, _axes(one) | _no_budget(one)):
                if one.epsilon_fraction:
                    setting = _with_budget(setting, members, one.epsilon_fraction)
                if label:
                    ids = tuple(member.client_id for member in members)
                    setting = replace(setting, clients=ids, of=label)
                found.append(setting)
    return found


def _no_budget(one: StudyGrid) -> dict[str, list[str]]:
    """Keep the run's own relative budget from being calibrated only to be replaced."""
    return {"epsilon": ["inf"]} if one.epsilon_fraction else {}


def _with_budget(setting: Setting, members: Sequence[ClientSummary], share: float) -> Setting:
    given = setting.parameters
    epsilon = calibrate_epsilon(members, share, given["gamma"], given["alpha"], given["eps0"])
    return replace(setting, parameters=given | {"epsilon": epsilon}, budget=(share, given["gamma"]))


def _subsets(
    one: StudyGrid, config: RunConfig, summaries: Sequence[ClientSummary]
) -> Iterator[tuple[str, list[ClientSummary]]]:
    """Yield the clients to merge, with what they are called; an empty name stands for all of them."""
    order = list(dict.fromkeys(group.domain for group in config.clients if group.role == "forget"))
    retain = sorted((s for s in summaries if s.role == "retain"), key=lambda s: s.client_id)
    domains = _counts(one.forget_domains, "forget_domains") or [0]
    retained = _counts(one.retain_clients, "retain_clients") or [0]
    for what, most, there in (
        ("forget domains", max(domains), len(order)),
        ("retain clients", max(retained), len(retain)),
    ):
        if most > there:
            raise RunError(
                f"the study takes {most} {what} and the run has {there}; run a preset with more `clients`"
            )
    for n, m in itertools.product(domains, retained):
        parts = {"n": n, "each": one.clients_per_domain, "m": m}
        label = " ".join(f"{name}={count}" for name, count in parts.items() if count)
        chosen: list[ClientSummary] = []
        for domain in order[: n or None]:
            own = sorted((s for s in summaries if (s.role, s.domain) == ("forget", domain)), key=_id)
            chosen += own[: one.clients_per_domain or None]
        yield label, sorted([*chosen, *retain[: m or None]], key=_id)


def _id(summary: ClientSummary) -> str:
    return summary.client_id


def run_study(
    run: RunDirectory,
    study: Study,
    *,
    splits: Sequence[str] = ("report",),
    workers: int = 1,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Table]:
    """Measure a study's settings that are not in ``sweep.json`` yet, and write its tables and figure.

    Parameters
    ----------
    run : RunDirectory
        Takes ``studies/<name>.csv``, ``.json``, ``.md`` and ``.png``.
    study : Study
    splits, workers, progress
        See :func:`fedforget.sweeps.sweep.measure_all`.

    Returns
    -------
    list of Table
        What was measured, then each comparison at matched forgetting.
    """
    settings = study_settings(study, run.config, run.load_summaries())
    found = [
        one
        for split in splits
        for one in measure_all(run, settings, split=split, workers=workers, progress=progress)
    ]
    matches = [match_run(run, found, one) for one in study.matches]
    tables = [
        study_table(study.title, study.source, found),
        *(t for one in matches for t in matched_tables(one)),
    ]
    folder = run.path / "studies"
    with atomic_path(folder / f"{study.name}.csv") as temporary:
        temporary.write_text(to_csv(found), encoding="utf-8")
    write_json(folder / f"{study.name}.json", {"settings": found, "matches": matches})
    plots.save(plots.sweep_figure(found, run.metrics.get("before")), folder / f"{study.name}.png")
    _write_page(folder / f"{study.name}.md", tables)
    return tables


def match_run(run: RunDirectory, found: Sequence[Mapping[str, Any]], asked: StudyMatch) -> dict[str, Any]:
    """Match settings of a run; what a curve's name leaves out is as in the run's ``merge`` section."""
    merge = run.config.merge
    return match_sweep(
        found,
        asked.reference,
        asked.curves,
        rule=asked.rule,
        utility=asked.utility,
        tolerance=asked.tolerance,
        own={"alpha": merge.alpha, "solver": merge.solver, "eps0": merge.eps0},
    )


def write_match(folder: Path, found: dict[str, Any]) -> list[Table]:
    """Write ``match.json`` and ``match.md`` of a comparison at matched forgetting; return its tables."""
    tables = matched_tables(found)
    write_json(folder / "match.json", found)
    _write_page(folder / "match.md", tables)
    return tables


def _write_page(path: Path, tables: Sequence[Table]) -> None:
    with atomic_path(path) as temporary:
        text = "\n".join(f"## {table.title}\n\n{markdown(table)}" for table in tables)
        temporary.write_text(text, encoding="utf-8")
