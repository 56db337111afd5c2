"""The backbone that every client adapts: where it comes from, in which precision, on which device."""

from __future__ import annotations

import gc
import json
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fedforget import fingerprints, nf4, tiny
from fedforget.config import ModelConfig
from fedforget.errors import ModelError, nearest
from fedforget.files import home
from fedforget.model_source import ModelSource, find_source
from fedforget.progress import no_progress_bars

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PRECISIONS = (*_DTYPES, "nf4")


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
    source = find_source(cfg, seed)
    model, tokenizer = _read(source, precision, target)
    model.eval().requires_grad_(False)
    model.config.use_cache = False
    if tokenizer.pad_token_id is None:
        # Padding is masked everywhere, so any token serves.
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    if commit := getattr(model.config, "_commit_hash", None):
        source = source.at_commit(commit)
    known = source.known_fingerprint(precision, target)
    if known is None:
        known = fingerprints.fingerprint(model)
        source.keep_fingerprint(known, precision, target)
    return Backbone(model, tokenizer, known, target)


def prepare_backbone(cfg: ModelConfig, seed: int) -> None:
    """Convert, train or download the backbone, so that the processes of a run only read it.

    Raises
    ------
    ModelError
        As :func:`load_backbone`.
    """
    source = find_source(cfg, seed)
    if source.local:
        # Loading once also leaves the fingerprint in the cache.
        load_backbone(cfg, seed, device=None if cfg.precision == "nf4" else "cpu")
        return
    source.folder()


def checkpoint(cfg: ModelConfig, seed: int) -> tuple[Path, str]:
    """Return the folder that the backbone is read from, and the backbone's fingerprint.

    The model is loaded only where its fingerprint is not in the cache yet. Parameters and errors
    are those of :func:`load_backbone`.
    """
    source = find_source(cfg, seed)
    folder = source.folder()
    return folder, _known_fingerprint(cfg, source, folder) or load_backbone(cfg, seed).fingerprint


def checkpoint_at_hand(cfg: ModelConfig, seed: int) -> tuple[Path, str | None]:
    """Return what :func:`checkpoint` does, where nothing need be trained, converted or downloaded for it.

    The fingerprint is None where it was not computed yet.

    Raises
    ------
    ModelError
        This machine does not have it.
    """
    source = find_source(cfg, seed, build=False)
    folder = source.folder(download=False)
    return folder, _known_fingerprint(cfg, source, folder)


def _known_fingerprint(cfg: ModelConfig, source: ModelSource, folder: Path) -> str | None:
    device = resolve_device(cfg.device if cfg.precision == "nf4" else "cpu")
    # The hub's cache names a snapshot by its commit.
    return source.at_commit(folder.name).known_fingerprint(cfg.precision, device)


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


def _read(source: ModelSource, precision: str, device: torch.device) -> tuple[Any, Any]:
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
    with source.readable(), no_progress_bars():
        tokenizer = AutoTokenizer.from_pretrained(source.where, **options)
        model = AutoModelForCausalLM.from_pretrained(source.where, **weights)
    if precision == "nf4":
        if device.type == "cpu":
            nf4.keep_gradients_right_on_cpu(model)
    else:
        model.to(device)
    return model, tokenizer
