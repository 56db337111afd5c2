"""The frozen classifier below every module: where it comes from, and how inputs reach it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedforget.checks.sequential import BUILT_IN_MODELS, IMAGE_FAMILIES
from fedforget.data.corpora import load_corpus
from fedforget.errors import ModelError
from fedforget.fingerprints import fingerprint
from fedforget.model_source import local_model
from fedforget.models import resolve_device
from fedforget.progress import no_progress_bars
from fedforget.rng import seeded
from fedforget.seeds import derive_seed
from fedforget.sequential import encoders
from fedforget.sequential.config import SequentialRunConfig
from fedforget.sequential.encoding import image_encoder, text_encoder

_HEADS = ("classifier", "score", "head")


@dataclass(eq=False)
class Classifier:
    """A transformers classifier as all clients share it: frozen, in evaluation mode.

    Attributes
    ----------
    model : nn.Module
        Its forward pass takes what ``encode`` gives and returns an object with ``logits``.
    encode : callable
        Inputs of :class:`~fedforget.data.records.Records` to a dict of tensors on ``device``.
    fingerprint : str
        See :func:`fedforget.fingerprints.fingerprint`; head included.
    device : torch.device
    num_labels : int
    head : str
        Name of the head's module within ``model``.
    precision : str
        ``fp32``, or ``bf16`` to compute in bfloat16 over fp32 weights.
    """

    model: Any
    encode: Callable[[Any], dict[str, Tensor]]
    fingerprint: str
    device: torch.device
    num_labels: int
    head: str
    precision: str = "fp32"

    def head_module(self) -> nn.Module:
        """Return the head."""
        found: nn.Module = self.model.get_submodule(self.head)
        return found

    def head_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Return the head's parameters under their names in the model, in order."""
        return [
            (f"{self.head}.{name}", value) for name, value in sorted(self.head_module().named_parameters())
        ]

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context that forward passes run in."""
        if self.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return contextlib.nullcontext()


def load_classifier(config: SequentialRunConfig) -> Classifier:
    """Load the classifier, training it into the cache first where it is one of the project's own.

    Parameters
    ----------
    config : SequentialRunConfig
        ``model``, ``data`` (the classes, and the public records of the built-in ones),
        ``seeds.model`` and ``seeds.data``.

    Raises
    ------
    ModelError
        The model cannot be loaded, has no classification head, or holds statistics that are fitted
        to the data outside the modules (batch normalisation).
    """
    cfg = config.model
    corpus = load_corpus(config.data, config.seeds.data)
    images = config.data.family in IMAGE_FAMILIES
    built_in = cfg.path in BUILT_IN_MODELS
    if built_in:
        where = str(encoders.trained(config, corpus))
    else:
        where = str(local_model(cfg.path, f"or one of {', '.join(BUILT_IN_MODELS)}") or cfg.path)
    device = resolve_device(cfg.device)
    model = _read(where, config, len(corpus.labels), images)
    refuse_batch_norm(model, cfg.path)
    model.float().eval().requires_grad_(False).to(device)
    if images:
        encode = image_encoder(where, model, cfg.image_size, device)
    else:
        encode = text_encoder(where, cfg.revision, cfg.max_length, device)
    head = _head(model, cfg.path)
    return Classifier(model, encode, fingerprint(model), device, len(corpus.labels), head, cfg.precision)


def refuse_batch_norm(model: nn.Module, path: str) -> None:
    """Raise ``ModelError`` for a model with batch normalisation.

    Its running statistics would be fitted to the data, outside the modules that a deletion
    switches off.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ModelError(
                f"model.path: {path} has batch normalisation ({name}), whose running statistics would "
                "outlive a deletion; use a model with layer normalisation"
            )


def _read(where: str, config: SequentialRunConfig, num_labels: int, images: bool) -> Any:
    from transformers import AutoModelForImageClassification, AutoModelForSequenceClassification

    auto: Any = AutoModelForImageClassification if images else AutoModelForSequenceClassification
    options: dict[str, Any] = {"local_files_only": Path(where).is_dir()}
    if config.model.revision is not None:
        options["revision"] = config.model.revision
    try:
        # Layers that a checkpoint lacks, such as the head, are drawn at random: from the model's seed.
        with seeded(derive_seed(config.seeds.model, "classifier", "head")), _quiet():
            return auto.from_pretrained(
                where, num_labels=num_labels, ignore_mismatched_sizes=True, dtype=torch.float32, **options
            )
    except (OSError, ValueError) as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(
            f"model.path: {config.model.path} cannot be loaded as a classifier ({why})"
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    from transformers.utils import logging as transformers_logging

    logging: Any = transformers_logging
    level = logging.get_verbosity()
    # The warning that the head is newly drawn says what the module's head is for.
    logging.set_verbosity_error()
    try:
        with no_progress_bars():
            yield
    finally:
        logging.set_verbosity(level)


def _head(model: nn.Module, path: str) -> str:
    for name in _HEADS:
        found = getattr(model, name, None)
        if isinstance(found, nn.Module) and any(True for _ in found.parameters()):
            return name
    raise ModelError(f"model.path: {path} has no classification head called {' or '.join(_HEADS)}")
