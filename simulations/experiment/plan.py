"""Which cells an experiment has: settings, methods, seeds, and what an ablation changes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fedforget import presets
from fedforget.errors import ConfigError, nearest
from fedforget.presets import from_yaml_sequential, to_yaml
from fedforget.sequential.config import SequentialRunConfig
from simulations.experiment.cells import BASE, Cell
from simulations.experiment.course import Pace
from simulations.experiment.matching import FEDSGT, configured, match
from simulations.methods import METHODS, ONE_CLIENT
from simulations.methods import configured as suited

PREFIX = "exact-"  # of the presets that are made for this experiment


def _number(key: str) -> Callable[[SequentialRunConfig, str], None]:
    def change(config: SequentialRunConfig, text: str) -> None:
        try:
            _set(config, key, int(text))
        except ValueError:
            raise ConfigError([f"--values: {text!r} is not a whole number"]) from None

    return change


def _word(key: str) -> Callable[[SequentialRunConfig, str], None]:
    return lambda config, text: _set(config, key, text)


def _groups(config: SequentialRunConfig, text: str) -> None:
    """Change L and have every rotation, so that B does not change what is compared."""
    _number("grouping.groups")(config, text)
    config.sequences.budget = config.grouping.groups


def _set(config: SequentialRunConfig, key: str, value: Any) -> None:
    section, name = key.split(".")
    setattr(getattr(config, section), name, value)


ABLATIONS: dict[str, tuple[Callable[[SequentialRunConfig, str], None], tuple[str, ...]]] = {
    "B": (_number("sequences.budget"), ("1", "2", "5", "10")),
    "S": (_number("data.slices"), ("1", "2", "5", "10")),
    "L": (_groups, ("3", "5", "8")),
    "rule": (_word("serving.rule"), ("AllSeq", "MinSeq", "LongSeq")),
    "grouping": (_word("grouping.method"), ("random", "barycentre")),
    "peft": (_word("module.kind"), ("lora", "dora", "ia3")),
}
"""What an ablation changes in FedSGT's configuration at matched cost, and the values by default."""


def cells_of(
    settings: Sequence[str],
    overrides: Sequence[str],
    methods: Sequence[str],
    seeds: Sequence[int],
    *,
    rule: str,
    pace: Pace,
    ablation: str = "",
    values: Sequence[str] = (),
) -> list[Cell]:
    """Return the cells of an experiment, in the order in which they are best run.

    Parameters
    ----------
    settings : sequence of str
        Presets; ``digits-iid`` stands for ``exact-digits-iid``.
    overrides : sequence of str
        ``key=value`` pairs over every preset.
    methods : sequence of str
        Empty for all that share data over clients; an ablation is of FedSGT alone.
    seeds : sequence of int
        Each sets every seed of the configuration: data, partition, groups, training and requests.
    rule : str
        How costs are matched; see :class:`~simulations.experiment.matching.Match`.
    pace : Pace
    ablation : str
        One of :data:`ABLATIONS`, or empty.
    values : sequence of str
        Instead of the ablation's own.

    Raises
    ------
    ConfigError
        A preset, method, ablation or value that is not there or cannot be.
    """
    for name in methods:
        if name not in METHODS:
            raise ConfigError(
                [f"--methods: {name!r} is not one of {', '.join(METHODS)}{nearest(name, METHODS)}"]
            )
    if ablation and ablation not in ABLATIONS:
        known = ", ".join(ABLATIONS)
        raise ConfigError([f"--ablation: {ablation!r} is not one of {known}{nearest(ablation, ABLATIONS)}"])
    if ablation and [*methods] not in ([], [FEDSGT]):
        raise ConfigError([f"--ablation: is of {FEDSGT} alone; leave --methods out"])
    for override in overrides:
        if (key := override.partition("=")[0].strip()) in _SET:
            raise ConfigError([f"{key}: cannot be overridden here; it is set by {_SET[key]}"])
    if values and not ablation:
        raise ConfigError(["--values: are an ablation's; name it with --ablation"])
    if ablation:  # what recovers and what is verified is no question of an ablation
        pace = replace(pace, verify=False, recover=False)
    chosen = [FEDSGT] if ablation else list(methods or (name for name in METHODS if name not in ONE_CLIENT))
    cells = []
    for seed in seeds:
        for setting in settings:
            name = preset_of(setting)
            config = presets.load_sequential(name, [*overrides, *_seeded(seed)])
            found = match(config, rule)
            fedsgt = configured(config, FEDSGT, found)
            for variant, changed in _variants(fedsgt, ablation, values):
                for method in chosen:
                    own = changed if method == FEDSGT else configured(config, method, found)
                    suited(method, own)  # or it would be told after the other cells have run
                    text, stream = to_yaml(own), to_yaml(changed)
                    cells.append(Cell(setting_name(name), variant, method, seed, text, stream, found, pace))
    _refuse_twins(cells)
    return cells


def _refuse_twins(cells: Sequence[Cell]) -> None:
    """Refuse cells of one directory, of which one would remove what the other stores."""
    known = set()
    for cell in cells:
        if str(cell) in known:
            what = "name each preset (by a file name of its own), method and value once"
            raise ConfigError([f"{cell}: is asked for twice; {what}"])
        known.add(str(cell))


def preset_of(setting: str) -> str:
    """Return the preset that a setting names, with or without the prefix of the experiment's own."""
    return PREFIX + setting if PREFIX + setting in presets.presets() else setting


def setting_name(preset: str) -> str:
    """Return what a preset is called in directories and tables."""
    stem = preset.rsplit("/", 1)[-1].removesuffix(".yaml").removesuffix(".yml")
    return stem.removeprefix(PREFIX)


def _variants(
    config: SequentialRunConfig, ablation: str, values: Sequence[str]
) -> list[tuple[str, SequentialRunConfig]]:
    if not ablation:
        return [(BASE, config)]
    change, defaults = ABLATIONS[ablation]
    found = []
    for value in values or defaults:
        changed = copy.deepcopy(config)
        change(changed, value)
        text = to_yaml(changed)
        from_yaml_sequential(text, source=f"--ablation {ablation}, {value}")  # with all its checks
        found.append((BASE if text == to_yaml(config) else f"{ablation}={value}", changed))
    return found


_SEEDS = ("data", "model", "grouping", "training", "requests")

_SET = {"method": "--methods", **{f"seeds.{name}": "--seeds" for name in _SEEDS}}
"""What overrides cannot set, and what does."""


def _seeded(seed: int) -> list[str]:
    return [f"seeds.{name}={seed}" for name in _SEEDS]
