"""The backbone that every client adapts: where it comes from, in which precision, on which device."""

from __future__ import annotations

import contextlib
import gc
import json
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedforget import fingerprints, gguf, nf4, tiny
from fedforget.cache import cache_directory, file_state, key
from fedforget.config import ModelConfig
from fedforget.errors import ModelError, nearest
from fedforget.files import atomic_path, home
from fedforget.progress import no_progress_bars

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PRECISIONS = (*_DTYPES, "nf4")
_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]


@dataclass(eq=False)
class Backbone:
    """A causal language model as all clients share it: frozen, in evaluation mode.

    Attributes
    ----------
    model : nn.Module
        A transformers model; no parameter requires a gradient, ``config.use_cache`` is off.
    tokenizer : object
        A transformers tokenizer with a padding token.
    fingerprint : str
        See :func:`fedforget.fingerprints.fingerprint`.
    device : torch.device
        Where the model is.
    """

    model: Any
    tokenizer: Any
    fingerprint: str
    device: torch.device


@dataclass(frozen=True)
class _Source:
    """A place that transformers can load from, and where its fingerprints are kept."""

    where: str
    revision: str | None
    local: bool
    fingerprints: Path | None


def load_backbone(
    cfg: ModelConfig, seed: int, *, precision: str | None = None, device: str | torch.device | None = None
) -> Backbone:
    """Load the backbone, converting or training it into the cache first where that is needed.

    Parameters
    ----------
    cfg : ModelConfig
        ``path``, ``revision``, ``precision``, ``device`` and, for ``tiny``, the ``tiny`` section.
    seed : int
        Root seed of the tiny model; other models ignore it.
    precision : str, optional
        ``fp32``, ``bf16`` or ``nf4`` instead of ``cfg.precision``; ``same`` is ``cfg.precision``.
    device : str or torch.device, optional
        Instead of ``cfg.device``.

    Raises
    ------
    ModelError
        A package, path, revision, precision or device that is not there; says how to mend it.
    """
    precision = cfg.precision if precision in (None, "same") else precision
    if precision not in PRECISIONS:
        raise ModelError(
            f"model.precision: {precision!r} is not one of {', '.join(PRECISIONS)}"
            f"{nearest(str(precision), PRECISIONS)}"
        )
    target = resolve_device(device or cfg.device)
    source = _source(cfg, seed)
    model, tokenizer = _read(source, precision, target)
    model.eval().requires_grad_(False)
    model.config.use_cache = False
    if tokenizer.pad_token_id is None:
        # Padding is masked everywhere, so any token serves.
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    if source.fingerprints is None and (commit := getattr(model.config, "_commit_hash", None)):
        source = replace(source, fingerprints=_fingerprint_folder(cfg.path, commit))
    return Backbone(model, tokenizer, _fingerprint(model, source, precision, target), target)


def prepare_backbone(cfg: ModelConfig, seed: int) -> None:
    """Convert, train or download the backbone, so that the processes of a run only read it.

    Raises
    ------
    ModelError
        As :func:`load_backbone`.
    """
    source = _source(cfg, seed)
    if source.local:
        # Loading once also leaves the fingerprint in the cache.
        load_backbone(cfg, seed, device=None if cfg.precision == "nf4" else "cpu")
        return
    _folder(source)


def checkpoint(cfg: ModelConfig, seed: int) -> tuple[Path, str]:
    """Return the folder that the backbone is read from, and the backbone's fingerprint.

    The model is loaded only where its fingerprint is not in the cache yet. Parameters and errors
    are those of :func:`load_backbone`.
    """
    source = _source(cfg, seed)
    folder = _folder(source)
    if source.fingerprints is None:
        # The hub's cache names a snapshot by its commit.
        source = replace(source, fingerprints=_fingerprint_folder(cfg.path, folder.name))
    device = resolve_device(cfg.device if cfg.precision == "nf4" else "cpu")
    return folder, _known_fingerprint(source, cfg.precision, device) or load_backbone(cfg, seed).fingerprint


def checkpoint_at_hand(cfg: ModelConfig, seed: int) -> tuple[Path, str | None]:
    """Return what :func:`checkpoint` does, where nothing need be trained, converted or downloaded for it.

    The fingerprint is None where it was not computed yet.

    Raises
    ------
    ModelError
        This machine does not have it.
    """
    source = _source(cfg, seed, build=False)
    folder = _folder(source, download=False)
    if source.fingerprints is None:
        source = replace(source, fingerprints=_fingerprint_folder(cfg.path, folder.name))
    device = resolve_device(cfg.device if cfg.precision == "nf4" else "cpu")
    return folder, _known_fingerprint(source, cfg.precision, device)


def _folder(source: _Source, *, download: bool = True) -> Path:
    if source.local:
        return Path(source.where)
    from huggingface_hub import snapshot_download

    options: Any = {"revision": source.revision, "allow_patterns": _HUB_FILES}
    if download:
        with _readable(source):
            return Path(snapshot_download(source.where, **options))
    try:
        return Path(snapshot_download(source.where, local_files_only=True, **options))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"model.path: {source.where!r} is not in the hub's cache; get it with `fedforget prepare`"
        ) from error


_lock = threading.Lock()
_kept: tuple[str, Backbone] | None = None


def cached_backbone(cfg: ModelConfig, seed: int) -> Backbone:
    """Return this process's backbone, loaded once; another configuration takes its place.

    Parameters and errors are those of :func:`load_backbone`. Exactly one backbone is kept.
    """
    global _kept
    wanted = json.dumps([asdict(cfg), seed if cfg.path == tiny.PATH else 0, str(home())], sort_keys=True)
    with _lock:
        if _kept is None or _kept[0] != wanted:
            # Let go of the old one first: two may not fit.
            release_backbone()
            _kept = (wanted, load_backbone(cfg, seed))
        return _kept[1]


def release_backbone() -> None:
    """Let go of the backbone that :func:`cached_backbone` keeps."""
    global _kept
    _kept = None
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def resolve_device(name: str | torch.device) -> torch.device:
    """Return the device that a configuration names; ``auto`` is CUDA, else MPS, else the CPU.

    Flower and Ray give each client its GPU through ``CUDA_VISIBLE_DEVICES``, so ``cuda`` is the
    client's own.

    Raises
    ------
    ModelError
        The machine has no such device.
    """
    if str(name) == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelError(
            f"model.device: {name!r} is not a device ({error}); use auto, cpu, cuda or mps"
        ) from error
    present = {
        "cpu": True,
        "cuda": torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not present.get(device.type, False):
        raise ModelError(f"model.device: this machine has no device {str(name)!r}; use auto or cpu")
    return device


def _source(cfg: ModelConfig, seed: int, *, build: bool = True) -> _Source:
    path = cfg.path
    if path == tiny.PATH or path.startswith(gguf.PREFIX):
        package = path.removeprefix(gguf.PREFIX)
        if build:
            folder = tiny.trained(cfg.tiny, seed) if path == tiny.PATH else gguf.converted(package)
        else:
            folder = tiny.location(cfg.tiny, seed) if path == tiny.PATH else gguf.location(package)
            if not folder.is_dir():
                raise ModelError(f"model.path: {path!r} is not in the cache; get it with `fedforget prepare`")
        return _Source(str(folder), None, True, folder)
    folder = Path(path).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(
                f"model.path: {folder} holds no config.json; give the directory of a transformers model"
            )
        state = [file_state(file) for file in sorted(folder.iterdir()) if file.is_file()]
        return _Source(str(folder), None, True, _fingerprint_folder(str(folder.resolve()), state))
    if path.startswith((".", "/", "~")) or path.count("/") > 1 or not path:
        raise ModelError(
            f"model.path: there is no directory {path!r}; give a local directory, a hub id, "
            "package:<name> or tiny"
        )
    return _Source(path, cfg.revision, False, None)


def _read(source: _Source, precision: str, device: torch.device) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options: dict[str, Any] = {"local_files_only": source.local}
    if source.revision is not None:
        options["revision"] = source.revision
    weights = dict(options)
    if precision == "nf4":
        weights |= nf4.options(device)
    else:
        weights["dtype"] = _DTYPES[precision]
    model: Any
    with _readable(source), no_progress_bars():
        tokenizer = AutoTokenizer.from_pretrained(source.where, **options)
        model = AutoModelForCausalLM.from_pretrained(source.where, **weights)
    if precision == "nf4":
        if device.type == "cpu":
            nf4.keep_gradients_right_on_cpu(model)
    else:
        model.to(device)
    return model, tokenizer


@contextlib.contextmanager
def _readable(source: _Source) -> Iterator[None]:
    """Turn what transformers and the hub raise into one sentence that says what to do."""
    try:
        yield
    except (OSError, ValueError) as error:
        # The hub's own message runs over several lines; its first says what is wrong.
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        if source.local:
            raise ModelError(f"model.path: {source.where} cannot be loaded ({why})") from error
        revision = f" at revision {source.revision!r}" if source.revision else ""
        raise ModelError(
            f"model.path: {source.where!r}{revision} cannot be loaded from the hub ({why}); "
            "check the id and the network, or give a local directory that holds the model"
        ) from error


def _fingerprint_folder(*identity: Any) -> Path:
    return cache_directory() / "fingerprints" / key(*identity)


def _fingerprint(model: nn.Module, source: _Source, precision: str, device: torch.device) -> str:
    if source.fingerprints is None:
        return fingerprints.fingerprint(model)
    if known := _known_fingerprint(source, precision, device):
        return known
    value = fingerprints.fingerprint(model)
    with atomic_path(_fingerprint_file(source.fingerprints, precision, device)) as temporary:
        temporary.write_text(value + "\n", encoding="ascii")
    return value


def _known_fingerprint(source: _Source, precision: str, device: torch.device) -> str | None:
    if source.fingerprints is None:
        return None
    stored = _fingerprint_file(source.fingerprints, precision, device)
    text = stored.read_text(encoding="ascii").strip() if stored.is_file() else ""
    return text if len(text) == 64 else None


def _fingerprint_file(folder: Path, precision: str, device: torch.device) -> Path:
    # Devices may round differently when they quantise.
    name = f"nf4-{device.type}" if precision == "nf4" else precision
    return folder / f"fingerprint-{name}.txt"
