"""One run per seed: where each goes, and what is done with all of them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from fedforget import presets
from fedforget.config import RunConfig
from fedforget.errors import RunError
from fedforget.pooling import seed_folder
from fedforget.runs import RunDirectory, default_path
from simulations.paths import with_absolute_paths

Simulate = Callable[[str, list[str], Path], RunDirectory]


def parse_seeds(text: str) -> list[int]:
    """Read ``"0,1,2"``.

    Raises
    ------
    RunError
        Something else.
    """
    try:
        seeds = [int(word) for word in text.replace(",", " ").split()]
    except ValueError:
        seeds = []
    if not seeds or len(set(seeds)) != len(seeds) or min(seeds) < 0:
        raise RunError(f"--seeds {text!r}: give distinct whole numbers separated by commas, e.g. 0,1,2")
    return seeds


def wanted_seeds(preset: str, overrides: Sequence[str], given: str = "") -> list[int]:
    """Return the seeds to run a preset with: those given, else what its ``seeds.count`` asks for.

    Empty for a preset of another kind than ``firm``, which has no such key.

    Raises
    ------
    RunError
        Seeds are given for a preset of another kind.
    """
    config = presets.load_any(preset, list(overrides))
    if not isinstance(config, RunConfig):
        if given:
            raise RunError(
                "--seeds is for presets of kind firm; set seeds.training, or run several seeds of FedSGT "
                "with `fedforget experiment exact --seeds`"
            )
        return []
    first = config.seeds.training
    return parse_seeds(given) if given else list(range(first, first + config.seeds.count))


def seeded(preset: str, overrides: Sequence[str], seed: int) -> list[str]:
    """Return overrides with one seed for everything that the preset's ``seeds.vary`` names."""
    vary = presets.load(preset, list(overrides)).seeds.vary
    return [*overrides, *(f"seeds.{name}={seed}" for name in vary), "seeds.count=1"]


def seeds_command(name: str, preset: str, overrides: Sequence[str], seeds: Sequence[int]) -> str:
    """Return the command line that makes the runs of some seeds."""
    return shlex.join(["fedforget", name, preset, *overrides, "--seeds", ",".join(map(str, seeds))])


def run_seeds(
    simulate: Simulate,
    preset: str,
    overrides: Sequence[str],
    out: Path | None,
    seeds: Sequence[int],
    *,
    after: Callable[[RunDirectory], None] = lambda run: None,
    say: Callable[[str], None] = print,
) -> Path:
    """Run a preset once per seed.

    Parameters
    ----------
    simulate : callable
        Runs a preset with overrides into a directory.
    preset : str
    overrides : sequence of str
        ``key=value`` pairs.
    out : Path or None
        The run's directory, or with several seeds the folder of ``seed-<n>`` directories; None for
        a new one in ``$FEDFORGET_HOME/runs``. A seed's finished run of the same configuration is taken
        as it is.
    seeds : sequence of int
        For what ``seeds.vary`` names, ``seeds.training`` by default.
    after : callable
        Done with each run.
    say : callable
        Tells where things are.

    Returns
    -------
    Path
        ``out``, or what it stands for.

    Raises
    ------
    FedForgetError
        A run failed; what was done before stays on disk.
    """
    name = presets.load(preset, list(overrides)).name
    folder = Path(out).expanduser().resolve() if out else default_path(name)
    for seed in seeds:
        target = seed_folder(folder, seed) if len(seeds) > 1 else folder
        pairs = seeded(preset, overrides, seed)
        run = _finished(target, preset, pairs) if len(seeds) > 1 else None
        if run:
            say(f"Finished before: {run.path}")
        after(run or simulate(preset, pairs, target))
    return folder


def _finished(target: Path, preset: str, overrides: list[str]) -> RunDirectory | None:
    if not (target / "run.json").is_file():
        return None
    run = RunDirectory(target)
    wanted = presets.to_yaml(with_absolute_paths(presets.load(preset, overrides)))
    same = run.record["config"] == wanted
    return run if same and run.record.get("status") == "completed" else None
