"""Where a backbone is read from: a folder or a hub id, and what is known of its fingerprints."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedforget import gguf, tiny
from fedforget.cache import cache_directory, file_state, key
from fedforget.config import ModelConfig
from fedforget.errors import ModelError
from fedforget.files import atomic_path, is_path

_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]


@dataclass(frozen=True)
class ModelSource:
    """A place that transformers can load from.

    Attributes
    ----------
    where : str
        A folder, or a hub id.
    revision : str or None
        Of a hub id.
    local : bool
        Whether it is a folder.
    fingerprints : Path or None
        The folder that its fingerprints are kept in; None for a hub id whose commit is not known yet.
    """

    where: str
    revision: str | None
    local: bool
    fingerprints: Path | None

    def folder(self, *, download: bool = True) -> Path:
        """Return the folder with the model's files.

        Raises
        ------
        ModelError
            The hub cannot be reached or has no such model; or, without ``download``, its cache has none.
        """
        if self.local:
            return Path(self.where)
        from huggingface_hub import snapshot_download

        options: Any = {"revision": self.revision, "allow_patterns": _HUB_FILES}
        if download:
            with self.readable():
                return Path(snapshot_download(self.where, **options))
        try:
            return Path(snapshot_download(self.where, local_files_only=True, **options))
        except (OSError, ValueError) as error:
            raise ModelError(
                f"model.path: {self.where!r} is not in the hub's cache; get it with `fedforget prepare`"
            ) from error

    @contextlib.contextmanager
    def readable(self) -> Iterator[None]:
        """Turn what transformers and the hub raise into one sentence that says what to do."""
        try:
            yield
        except (OSError, ValueError) as error:
            # The hub's own message runs over several lines; its first says what is wrong.
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
            if self.local:
                raise ModelError(f"model.path: {self.where} cannot be loaded ({why})") from error
            revision = f" at revision {self.revision!r}" if self.revision else ""
            raise ModelError(
                f"model.path: {self.where!r}{revision} cannot be loaded from the hub ({why}); "
                "check the id and the network, or give a local directory that holds the model"
            ) from error

    def at_commit(self, commit: str) -> ModelSource:
        """Return a hub id's source with its commit known, under which fingerprints are kept."""
        if self.fingerprints is not None:
            return self
        return replace(self, fingerprints=_fingerprint_folder(self.where, commit))

    def known_fingerprint(self, precision: str, device: torch.device) -> str | None:
        """Return the fingerprint that was kept; None where there is none."""
        if self.fingerprints is None:
            return None
        stored = _fingerprint_file(self.fingerprints, precision, device)
        text = stored.read_text(encoding="ascii").strip() if stored.is_file() else ""
        return text if len(text) == 64 else None

    def keep_fingerprint(self, value: str, precision: str, device: torch.device) -> None:
        """Keep a fingerprint; nothing where the commit is not known."""
        if self.fingerprints is not None:
            with atomic_path(_fingerprint_file(self.fingerprints, precision, device)) as temporary:
                temporary.write_text(value + "\n", encoding="ascii")


def find_source(cfg: ModelConfig, seed: int, *, build: bool = True) -> ModelSource:
    """Return where a configuration's backbone is; trains or converts it first where that is needed.

    Parameters
    ----------
    cfg : ModelConfig
    seed : int
        Root seed of the tiny model.
    build : bool
        Whether it may be trained or converted.

    Raises
    ------
    ModelError
        There is no such directory or package; or, without ``build``, it is not in the cache.
    """
    path = cfg.path
    if path == tiny.PATH or path.startswith(gguf.PREFIX):
        package = path.removeprefix(gguf.PREFIX)
        if build:
            folder = tiny.trained(cfg.tiny, seed) if path == tiny.PATH else gguf.converted(package)
        else:
            folder = tiny.location(cfg.tiny, seed) if path == tiny.PATH else gguf.location(package)
            if not folder.is_dir():
                raise ModelError(f"model.path: {path!r} is not in the cache; get it with `fedforget prepare`")
        return ModelSource(str(folder), None, True, folder)
    local = local_model(path, "package:<name> or tiny")
    if local is not None:
        state = [file_state(file) for file in sorted(local.iterdir()) if file.is_file()]
        return ModelSource(str(local), None, True, _fingerprint_folder(str(local.resolve()), state))
    return ModelSource(path, cfg.revision, False, None)


def local_model(path: str, others: str) -> Path | None:
    """Return the directory of a transformers model; None for a hub id.

    Parameters
    ----------
    path : str
        ``model.path``.
    others : str
        What else may be given there, for the error.

    Raises
    ------
    ModelError
        There is no such directory, or no model in it.
    """
    folder = Path(path).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(
                f"model.path: {folder} holds no config.json; give the directory of a transformers model"
            )
        return folder
    if is_path(path):
        raise ModelError(
            f"model.path: there is no directory {path!r}; give a local directory, a hub id, {others}"
        )
    return None


def _fingerprint_folder(*identity: Any) -> Path:
    return cache_directory() / "fingerprints" / key(*identity)


def _fingerprint_file(folder: Path, precision: str, device: torch.device) -> Path:
    # Devices may round differently when they quantise.
    name = f"nf4-{device.type}" if precision == "nf4" else precision
    return folder / f"fingerprint-{name}.txt"
