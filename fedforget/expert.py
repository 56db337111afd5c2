"""The expert: the backbone adapted to data that clients are to forget part of, before any of them starts.

TOFU's authors are invented, so no backbone knows them; the FIRM paper first fine-tunes it on all 4,000
pairs. All clients start from that expert and their task vectors are relative to it, while Fishers are
taken at the backbone before it (appendix C).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fedforget.adapters import lora_attached, lora_factors
from fedforget.cache import build_once, cache_directory, key
from fedforget.config import ExpertConfig, ModelConfig, RunConfig
from fedforget.data import Example, load_data
from fedforget.errors import ConfigError, ModelError
from fedforget.files import write_json
from fedforget.models import Backbone, checkpoint, load_backbone
from fedforget.objectives import objective
from fedforget.progress import no_progress_bars
from fedforget.seeds import derive_seed
from fedforget.sequential.checkpoints import Checkpoint
from fedforget.training import TrainingReport, train

REPORT = "expert.json"
_FORMAT = 1


def starting_model(config: RunConfig) -> ModelConfig:
    """Return the model that clients train and evaluation measures: the expert, or the backbone.

    Raises
    ------
    ModelError
        The run starts from an expert and this machine has not made it yet.
    """
    if not config.model.expert.domain:
        return config.model
    folder = _target(config, _examples(config))
    if not folder.is_dir():
        raise ModelError(
            "model.expert: the expert that clients start from is not there yet; make it with "
            "`fedforget adapt` and the same preset and overrides"
        )
    return replace(config.model, path=str(folder), revision=None, expert=ExpertConfig())


def adapt(config: RunConfig, progress: Callable[[str], None] = lambda line: None) -> Path:
    """Make the expert, unless it is there, and return its directory in the cache.

    Its name is derived from the backbone's fingerprint, the settings, the examples and the seeds.
    An adaptation that was interrupted goes on from its last checkpoint, to the same bits.

    Parameters
    ----------
    config : RunConfig
        ``model.expert`` says what is learnt, and how.
    progress : callable, optional
        Told in a line what is being done.

    Returns
    -------
    Path
        A directory that transformers loads, with ``expert.json`` in it.

    Raises
    ------
    ConfigError
        The configuration names no expert.
    FedForgetError
        No data, a backbone that cannot be loaded, or training that collapsed.
    """
    expert = config.model.expert
    if not expert.domain:
        raise ConfigError(["model.expert.domain: is empty; name the domain whose examples the expert learns"])
    examples = _examples(config)
    target = _target(config, examples)
    if target.is_dir():
        progress(f"the expert is there already: {target}")
        return target
    partial = target.parent / f".{target.name}.checkpoint"

    def build(folder: Path) -> None:
        progress(f"adapting {config.model.path} to {len(examples)} examples of {expert.domain!r}")
        backbone = load_backbone(config.model, config.seeds.model)
        kept = Checkpoint(partial, expert.checkpoint_every)
        report = (_full if expert.method == "full" else _lora)(config, backbone, examples, kept, folder)
        facts = {"expert": asdict(expert), "backbone": backbone.fingerprint, "examples": len(examples)}
        write_json(folder / REPORT, facts | {"training": asdict(report)})

    build_once(target, build)
    partial.unlink(missing_ok=True)
    return target


def _full(
    config: RunConfig, backbone: Backbone, examples: list[Example], kept: Checkpoint, folder: Path
) -> TrainingReport:
    backbone.model.requires_grad_(True)
    report = _train(config, backbone.model, backbone.tokenizer, examples, kept)
    with no_progress_bars():
        backbone.model.save_pretrained(folder)
    backbone.tokenizer.save_pretrained(folder)
    return report


def _lora(
    config: RunConfig, backbone: Backbone, examples: list[Example], kept: Checkpoint, folder: Path
) -> TrainingReport:
    from fedforget.exports.model import add_to_checkpoint

    seed = derive_seed(config.seeds.model, "expert", "lora")
    with lora_attached(backbone, config.model.expert.lora, seed) as model:
        report = _train(config, model, backbone.tokenizer, examples, kept)
        factors = lora_factors(model)
    where, _ = checkpoint(config.model, config.seeds.model)
    # Into the stored weights, which an NF4 backbone was made from: its own have no grid point for the sum.
    shapes = {name: tuple(one.shape) for name, one in factors.items()}
    add_to_checkpoint(where, shapes, factors.__getitem__, folder)
    return report


def _train(
    config: RunConfig, model: Any, tokenizer: Any, examples: list[Example], kept: Checkpoint
) -> TrainingReport:
    return train(
        model,
        tokenizer,
        examples,
        objective("causal_lm"),
        config.model.expert.training,
        max_length=config.data.max_length,
        seed=derive_seed(config.seeds.model, "expert", "training"),
        checkpoint=kept,
    )


def _examples(config: RunConfig) -> list[Example]:
    # As one to forget: of a domain to retain, benchmarks hold back what they ask.
    return load_data(config.data, config.seeds.data).training(config.model.expert.domain, "forget")


def _target(config: RunConfig, examples: list[Example]) -> Path:
    _, fingerprint = checkpoint(config.model, config.seeds.model)
    texts = hashlib.sha256(repr([(one.prompt, one.text) for one in examples]).encode()).hexdigest()
    settings = asdict(config.model.expert) | {"checkpoint_every": 0}  # which changes nothing
    made_of = (_FORMAT, fingerprint, settings, texts, config.data.max_length, config.seeds.model)
    return cache_directory() / "models" / f"expert-{key(*made_of)}"
