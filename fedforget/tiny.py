"""A small Llama that learns an invented world from a seed: a backbone that needs no download."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedforget.cache import build_once, cache_directory, key
from fedforget.config import TinyModelConfig, TrainingConfig
from fedforget.errors import ModelError
from fedforget.progress import no_progress_bars
from fedforget.reproducible import cpu_share
from fedforget.rng import seeded
from fedforget.seeds import derive_seed

if TYPE_CHECKING:
    from fedforget.data import Example

PATH = "tiny"
_FORMAT = 1
_PAD, _END, _UNKNOWN = "<pad>", "<end>", "<unknown>"
_MAX_LENGTH = 64
# The facts are learnt about ten times faster when the words that any fact shares count less.
_PROMPT_WEIGHT = 0.1


def trained(cfg: TinyModelConfig, seed: int) -> Path:
    """Return a directory with the tiny model, trained on the first call with these settings.

    It is trained on one thread, so that its bits do not depend on how many a process was given.

    Parameters
    ----------
    cfg : TinyModelConfig
        Sizes and training; ``steps: 0`` leaves the random initialisation.
    seed : int
        Root seed of the initialisation and of the order of the data.

    Raises
    ------
    ModelError
        Sizes that do not fit together.
    """
    _check(cfg)
    words, examples = _vocabulary_and_examples()
    return build_once(location(cfg, seed), lambda folder: _build(cfg, seed, words, examples, folder))


def location(cfg: TinyModelConfig, seed: int) -> Path:
    """Return the directory that :func:`trained` returns, which need not be there yet."""
    words, examples = _vocabulary_and_examples()
    text = hashlib.sha256(repr((words, [(one.prompt, one.text) for one in examples])).encode()).hexdigest()
    return cache_directory() / "models" / f"tiny-{key(_FORMAT, asdict(cfg), seed, text)}"


def _vocabulary_and_examples() -> tuple[list[str], list[Example]]:
    from fedforget.data import pretraining, vocabulary

    return vocabulary(), pretraining()


def _check(cfg: TinyModelConfig) -> None:
    if cfg.layers < 1 or cfg.heads < 1 or cfg.steps < 0 or cfg.batch_size < 1 or not cfg.learning_rate > 0:
        raise ModelError(
            "model.tiny: layers, heads and batch_size must be at least 1, steps at least 0 "
            "and learning_rate above 0"
        )
    if cfg.width < 32 or cfg.width % 32 or cfg.width % (2 * cfg.heads):
        raise ModelError(
            f"model.tiny.width: {cfg.width} must be a multiple of 32 and of twice "
            f"model.tiny.heads ({cfg.heads})"
        )


def _build(cfg: TinyModelConfig, seed: int, words: list[str], examples: list[Example], folder: Path) -> None:
    tokenizer = word_tokenizer(words)
    model = random_llama(cfg, len(tokenizer), derive_seed(seed, "tiny", "initialisation"))
    if cfg.steps:
        _train(model, tokenizer, examples, cfg, derive_seed(seed, "tiny", "training"))
    with no_progress_bars():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _train(model: Any, tokenizer: Any, examples: list[Example], cfg: TinyModelConfig, seed: int) -> None:
    from fedforget.objectives import objective
    from fedforget.training import train

    training = TrainingConfig(
        steps=cfg.steps,
        batch_size=cfg.batch_size,
        learning_rate=cfg.learning_rate,
        warmup_steps=max(1, cfg.steps // 20),
    )
    model.requires_grad_(True)
    with cpu_share(1):
        train(
            model,
            tokenizer,
            examples,
            objective("causal_lm", prompt_weight=_PROMPT_WEIGHT),
            training,
            max_length=_MAX_LENGTH,
            seed=seed,
        )


def random_llama(cfg: TinyModelConfig, vocabulary_size: int, seed: int) -> Any:
    """Return a randomly initialised ``LlamaForCausalLM``, the same for the same arguments."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=-(-vocabulary_size // 32) * 32,
        hidden_size=cfg.width,
        intermediate_size=4 * cfg.width,
        num_hidden_layers=cfg.layers,
        num_attention_heads=cfg.heads,
        num_key_value_heads=cfg.heads,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    with seeded(seed):
        model: Any = LlamaForCausalLM(config)
    return model.float()


def word_tokenizer(words: list[str]) -> Any:
    """Return a tokenizer whose tokens are whole words and single punctuation marks."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    splitter = pre_tokenizers.Whitespace()
    pieces = sorted({piece for word in words for piece, _ in splitter.pre_tokenize_str(word)})
    tokens = [_PAD, _END, _UNKNOWN, *(piece for piece in pieces if piece not in (_PAD, _END, _UNKNOWN))]
    core = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token=_UNKNOWN))
    core.pre_tokenizer = splitter
    make: Any = PreTrainedTokenizerFast
    return make(
        tokenizer_object=core,
        pad_token=_PAD,
        eos_token=_END,
        unk_token=_UNKNOWN,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )
