"""A run's directory: one place for its configuration, summaries, merges, metrics and report."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from filelock import FileLock

from fedforget.client_specs import expand_clients
from fedforget.config import RunConfig
from fedforget.digests import folder_digest
from fedforget.errors import ModelError, RunError
from fedforget.files import atomic_path, home, read_json, write_json
from fedforget.presets import AnyConfig, from_yaml, from_yaml_any, from_yaml_sequential, to_yaml
from fedforget.sequential.config import SequentialRunConfig
from fedforget.summaries import ClientSummary

# The environment variable that hands a checkout's state to a copy of it, as JSON.
GIT_STATE = "FEDFORGET_GIT_STATE"
_PACKAGES = ("fedforget", "flwr", "ray", "torch", "transformers", "peft", "numpy", "safetensors")


class RunDirectory:
    """One run's files.

    ``run.json`` (configuration, seeds, versions, git state, timings, bytes), ``summaries/``
    (one directory per client), ``merged/`` (safetensors), ``metrics.json``, ``report.html``.

    Parameters
    ----------
    path : Path
        An existing run directory; use :meth:`create` for a new one.

    Raises
    ------
    RunError
        The directory is not a run.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser().resolve()
        if not (self.path / "run.json").is_file():
            raise RunError(
                f"{self.path}: not a run directory (it has no run.json); give the folder a run wrote"
            )

    @classmethod
    def create(cls, path: str | Path, config: AnyConfig, preset: str, overrides: str = "") -> RunDirectory:
        """Create the directory and write ``run.json``.

        Raises
        ------
        RunError
            The path exists already: a run never overwrites another.
        """
        path = Path(path).expanduser().resolve()
        if path.exists():
            raise RunError(f"{path}: exists already; choose another --out, or remove it first")
        record = {
            "preset": preset,
            "overrides": overrides,
            "config": to_yaml(config),
            # The roots alone: how many seeds a preset asks for is in its configuration.
            "seeds": {
                name: root for name, root in vars(config.seeds).items() if name not in ("count", "vary")
            },
            "versions": versions(),
            "git": git_state(),
            "platform": platform.platform(),
            "python": platform.python_version(),
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "status": "running",
        }
        with atomic_path(path) as temporary:
            temporary.mkdir()
            write_json(temporary / "run.json", record)
        return cls(path)

    @property
    def record(self) -> dict[str, Any]:
        """The content of ``run.json``."""
        return _object(self.path / "run.json")

    @property
    def config(self) -> RunConfig:
        """The run's whole configuration, as it was used."""
        return from_yaml(self._config_text(), source=str(self.path / "run.json"))

    @property
    def kind(self) -> str:
        """The method whose run it is: ``firm`` or ``fedsgt``."""
        return str(from_yaml_any(self._config_text(), source=str(self.path / "run.json")).kind)

    @property
    def sequential(self) -> SequentialRunConfig:
        """The whole configuration of a FedSGT run.

        Raises
        ------
        ConfigError
            The run is of another kind.
        """
        return from_yaml_sequential(self._config_text(), source=str(self.path / "run.json"))

    def _config_text(self) -> str:
        text = self.record.get("config")
        if not isinstance(text, str):
            raise RunError(f"{self.path / 'run.json'}: holds no configuration; restore it, or run again")
        return text

    @property
    def own_data(self) -> list[str]:
        """Clients of a FedSGT run with data of their own, on nodes that the server cannot read."""
        found = self.record.get("own_data") or []
        if not isinstance(found, list):
            raise RunError(f"{self.path / 'run.json'}: its own_data is no list of clients; restore the file")
        return [str(name) for name in found]

    @property
    def ledger(self) -> Path:
        """The ledger of a FedSGT run."""
        return self.path / "ledger.sqlite"

    @property
    def modules(self) -> Path:
        """Where the modules of a FedSGT run are, by hash."""
        return self.path / "modules"

    @property
    def summaries(self) -> Path:
        """Where client summaries are spooled, one directory per client id."""
        return self.path / "summaries"

    @property
    def merged(self) -> Path:
        """Where merged updates are written."""
        return self.path / "merged"

    def load_summaries(self) -> list[ClientSummary]:
        """Open every spooled summary, ordered by client id; tensors stay on disk until asked for.

        Raises
        ------
        RunError
            The run holds no summaries, or others than it received, to the bit: a merge of them
            would pass for the run's.
        """
        folders = sorted(p for p in self.summaries.glob("*") if p.is_dir() and not p.name.startswith("."))
        if not folders:
            raise RunError(f"{self.summaries}: no client summaries; did the run complete?")
        for folder in folders:
            self._check_digest(folder)
        found = sorted((ClientSummary.load(folder) for folder in folders), key=lambda s: s.client_id)
        # Until the round is over the record names no clients: the configuration does.
        self._check_received(
            found,
            self.record.get("clients") or {one.id: vars(one) for one in expand_clients(self.config.clients)},
        )
        return found

    def _check_received(self, found: Iterable[ClientSummary], received: Mapping[str, Any]) -> None:
        stored = {one.client_id: one for one in found}
        for name in sorted(set(received) ^ set(stored)):
            what = "is missing" if name in received else "is of a client that the run did not have"
            raise RunError(
                f"{self.summaries}: the summary of {name!r} {what}; restore the folder, or complete the run"
            )
        for name, one in stored.items():
            for key in ("role", "domain", "num_examples"):
                now, then = getattr(one, key), received[name].get(key)
                if then is not None and now != then:
                    raise RunError(
                        f"{self.summaries}: the summary of {name!r} now has {key} {now!r}, the run "
                        f"has {then!r}; restore the folder, or run again"
                    )

    def check_backbone(self, fingerprint: str) -> None:
        """Refuse another backbone than the one that the run's clients trained.

        Raises
        ------
        ModelError
            Its fingerprint is not the run's.
        """
        expected = (self.record.get("backbone") or {}).get("fingerprint")
        if expected and expected != fingerprint:
            raise ModelError(
                f"{self.path}: the run's clients trained another backbone than {self.config.model.path!r} "
                f"now is (fingerprint {expected}, now {fingerprint}); restore the model or run again"
            )

    def _check_digest(self, folder: Path) -> None:
        if not self.as_received(folder.name):
            raise RunError(
                f"{folder}: the summary of {folder.name!r} is not the one that the run received (its "
                "files have another SHA-256); restore the folder, or run again"
            )

    def as_received(self, client: str) -> bool:
        """Tell whether a stored summary still has the digest that was recorded when it came.

        True where none was recorded, as in runs of earlier versions.
        """
        expected = self.record.get("summaries", {}).get(client)
        return expected is None or expected == folder_digest(self.summaries / client)

    def record_received(self, client: str, facts: Mapping[str, Any] | None = None) -> None:
        """Record the digest of a summary that has just been stored, and what is known of how it came."""
        digest = folder_digest(self.summaries / client)
        with self._lock():
            record = self.record
            received = {**record.get("summaries", {}), client: digest}
            sections = {"summaries": dict(sorted(received.items()))}
            if facts is not None:
                known = {**record.get("received", {}), client: dict(facts)}
                sections["received"] = dict(sorted(known.items()))
            write_json(self.path / "run.json", {**record, **sections})

    def update(self, **sections: Any) -> None:
        """Add or replace top-level sections of ``run.json``."""
        with self._lock():
            write_json(self.path / "run.json", {**self.record, **sections})

    @property
    def metrics(self) -> dict[str, Any]:
        """The content of ``metrics.json``, empty if there is none yet."""
        path = self.path / "metrics.json"
        return _object(path) if path.is_file() else {}

    def update_metrics(self, **sections: Any) -> None:
        """Add or replace top-level sections of ``metrics.json``."""
        with self._lock():
            write_json(self.path / "metrics.json", {**self.metrics, **sections})

    def _lock(self) -> FileLock:
        # A deletion may come while another process trains: neither may undo what the other wrote.
        return FileLock(self.path / ".lock", timeout=60)


def _object(path: Path) -> dict[str, Any]:
    found = read_json(path)
    if not isinstance(found, dict):
        raise RunError(f"{path}: holds no JSON object; restore it, or run again")
    return found


def default_path(name: str, parent: Path | None = None) -> Path:
    """Return a path for a new run: ``<parent or FEDFORGET_HOME/runs>/<name>-<time>``, not yet taken."""
    parent = parent or home() / "runs"
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    candidates: Iterable[Path] = (parent / (stem if i == 0 else f"{stem}-{i}") for i in range(1000))
    return next(path for path in candidates if not path.exists())


def versions(packages: Iterable[str] = _PACKAGES) -> dict[str, str]:
    """Return the installed version of each package, ``"absent"`` where there is none."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found


def git_state(directory: Path | None = None) -> Mapping[str, Any]:
    """Return the checkout's commit and whether it is dirty; empty outside a checkout or without git.

    Flower runs a copy of the checkout, which tells neither: whoever starts it hands them on in ``GIT_STATE``.
    """
    if directory is None and (told := os.environ.get(GIT_STATE)):
        return dict(json.loads(told))
    directory = directory or Path(__file__).resolve().parents[1]
    if not (directory / ".git").exists():
        return {}
    try:
        commit = _git(directory, "rev-parse", "HEAD")
        return {"commit": commit, "dirty": bool(_git(directory, "status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return {}


def _git(directory: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(directory), *words], capture_output=True, text=True, check=True, timeout=20
    )
    return done.stdout.strip()
