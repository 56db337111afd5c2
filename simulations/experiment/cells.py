"""The cells of an experiment: one method on one setting with one seed, each a directory of its own."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fedforget.data.corpora import load_corpus
from fedforget.data.holdings import holdings
from fedforget.data.records import Records
from fedforget.errors import RunError
from fedforget.files import read_json, write_json
from fedforget.presets import from_yaml_sequential, to_yaml
from fedforget.reproducible import deterministic
from fedforget.runs import git_state, versions
from fedforget.sequential.borrowing import borrowed_stack
from fedforget.sequential.config import SequentialRunConfig
from fedforget.sequential.deletions import read_requests, write_requests
from fedforget.sequential.plan_summary import local_plan
from simulations.experiment.course import Course, Pace
from simulations.experiment.matching import Match
from simulations.experiment.predicted import predicted
from simulations.methods import create
from simulations.requests import request_stream

RESULT = "result.json"
BASE = "base"  # the variant without an ablation


@dataclass(frozen=True)
class Cell:
    """What one cell runs; everything in it travels to another process.

    Attributes
    ----------
    setting : str
        The preset.
    variant : str
        ``base``, or what an ablation changes, e.g. ``B=3``.
    method : str
    seed : int
        Of everything that is drawn.
    config : str
        The method's configuration at matched cost, as YAML.
    stream : str
        The configuration that the stream of requests is drawn with, FedSGT's, as YAML.
    match : Match
    pace : Pace
    """

    setting: str
    variant: str
    method: str
    seed: int
    config: str
    stream: str
    match: Match
    pace: Pace

    def path(self, out: Path) -> Path:
        """Return the cell's directory."""
        return out / self.setting / self.variant / self.method / f"seed-{self.seed}"

    def __str__(self) -> str:
        return f"{self.setting} {self.variant} {self.method} seed {self.seed}"

    def asked(self) -> dict[str, Any]:
        """Return what a stored result must have been made with to be this cell's."""
        return {
            "config": yaml.safe_load(self.config),
            "stream": yaml.safe_load(self.stream),
            "pace": dataclasses.asdict(self.pace),
        }


def finished(cell: Cell, out: Path) -> bool:
    """Tell whether a cell's result is stored.

    Raises
    ------
    RunError
        It is, and was made with another configuration; names the first key that differs.
    """
    path = cell.path(out) / RESULT
    if not path.is_file():
        return False
    stored = _result(path)["asked"]
    # A key that configurations did not have yet had its default.
    for name in ("config", "stream"):
        text = yaml.safe_dump(stored.get(name, {}))
        stored[name] = yaml.safe_load(to_yaml(from_yaml_sequential(text, source=str(path))))
    asked = cell.asked()
    pace = stored["pace"] = {"recover": True, **stored.get("pace", {})}
    for name in ("verify", "recover"):  # what was measured beyond what is asked for does no harm
        pace[name] = pace.get(name) and asked["pace"][name]
    changed = _difference(stored, asked)
    if changed:
        raise RunError(
            f"{path}: was made with another configuration ({changed}); choose another --out, or give --again "
            "to run such cells anew"
        )
    return True


def run_cell(cell: Cell, out: Path, say: Callable[[str], None] = lambda _: None) -> None:
    """Run a cell from its beginning and store its result, whole or not at all.

    Raises
    ------
    FedForgetError
        The configuration, the training or a request failed.
    """
    started = time.monotonic()
    folder = cell.path(out)
    shutil.rmtree(folder, ignore_errors=True)  # of an attempt that was cut short
    config = from_yaml_sequential(cell.config, source=str(cell))
    requests = stream_of(cell, out)
    corpus = load_corpus(config.data, config.seeds.data)
    held = holdings(config.data, corpus.federated, config.seeds.data)
    method = create(cell.method, config, folder / "run")
    try:
        found = Course(method, read_requests(requests), corpus, held, cell.pace, say).run()
    finally:
        method.close()
    record = {
        "setting": cell.setting,
        "variant": cell.variant,
        "method": cell.method,
        "seed": cell.seed,
        "asked": cell.asked(),
        "match": {**dataclasses.asdict(cell.match), "residual": cell.match.residual},
        "records": {"federated": len(corpus.federated), "test": len(corpus.test)},
        "stream": {
            "file": requests.name,
            "sha256": hashlib.sha256(requests.read_bytes()).hexdigest(),
            "kind": config.requests.kind,
        },
        "public": public_accuracy(config, corpus.test),
        "predicted": predicted(cell.method, config),
        **found,
        "seconds": time.monotonic() - started,
        "git": git_state(),
        "versions": versions(),
    }
    write_json(folder / RESULT, record)
    # The modules have been measured and verified; what they were is in the result.
    shutil.rmtree(folder / "run", ignore_errors=True)


def stream_of(cell: Cell, out: Path) -> Path:
    """Return the file of the requests that every method of a setting, variant and seed is sent.

    It is drawn when the first of them asks for it. Two that ask at once write the same bytes.
    """
    path = out / cell.setting / cell.variant / f"requests-seed-{cell.seed}.jsonl"
    config = from_yaml_sequential(cell.stream, source=str(cell))
    corpus = load_corpus(config.data, config.seeds.data)
    held = holdings(config.data, corpus.federated, config.seeds.data)
    drawn = list(request_stream(config, local_plan(config)[0], held))
    if not path.is_file() or read_requests(path) != drawn:
        write_requests(path, drawn)
    return path


def public_accuracy(config: SequentialRunConfig, test: Records) -> float:
    """Return the accuracy of the frozen classifier alone, which saw public records and no client's."""
    with borrowed_stack(config) as stack, deterministic(config.training.threads):
        predictions = stack.logits(test.inputs).argmax(dim=-1).cpu().numpy()
    return float((predictions == test.labels).mean())


def load_results(out: Path) -> list[dict[str, Any]]:
    """Read every stored result below a directory, in the order of setting, variant, method and seed.

    Raises
    ------
    RunError
        There is none, or one cannot be read.
    """
    found = [_result(path) for path in sorted(Path(out).glob(f"*/*/*/seed-*/{RESULT}"))]
    if not found:
        raise RunError(f"{out}: holds no finished cell; run `fedforget experiment exact --out {out}` first")
    return sorted(found, key=lambda one: (one["setting"], one["variant"], one["method"], one["seed"]))


def _result(path: Path) -> dict[str, Any]:
    found = read_json(path)
    if not isinstance(found, dict) or not {"setting", "variant", "method", "seed", "asked"} <= found.keys():
        raise RunError(f"{path}: is no cell's result; remove it, and the cell is run again")
    return found


def _difference(stored: Any, asked: Any, key: str = "") -> str:
    """Return where two nested values differ first, in words; empty if nowhere."""
    if isinstance(stored, dict) and isinstance(asked, dict):
        for name in sorted(set(stored) | set(asked), key=str):
            if found := _difference(stored.get(name), asked.get(name), f"{key}.{name}" if key else str(name)):
                return found
        return ""
    return "" if stored == asked else f"{key}: {stored!r} then, {asked!r} now"
