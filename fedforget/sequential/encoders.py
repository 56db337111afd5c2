"""Small classifiers that the project trains itself on public records: no download."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedforget.cache import build_once, cache_directory, key
from fedforget.data.records import Corpus, Records
from fedforget.progress import no_progress_bars
from fedforget.reproducible import deterministic
from fedforget.rng import seeded
from fedforget.seeds import derive_seed
from fedforget.sequential.config import PretrainConfig, SequentialRunConfig
from fedforget.sequential.encoding import image_encoder, text_encoder

_FORMAT = 1
_VOCABULARY = 600
_SPECIAL = ("<pad>", "<cls>", "<unknown>")


def trained(config: SequentialRunConfig, corpus: Corpus) -> Path:
    """Return a directory with the classifier, trained on the public records on the first call.

    Parameters
    ----------
    config : SequentialRunConfig
        ``model.path`` (``digits-vit`` or ``statements-encoder``), ``model.pretrain`` and ``seeds.model``.
    corpus : Corpus
        Only ``public`` and ``labels`` are read: nothing that a client holds reaches the classifier.
    """
    cfg, seed, name = config.model.pretrain, config.seeds.model, config.model.path
    data = hashlib.sha256(repr((corpus.public.ids, corpus.public.labels.tolist(), corpus.labels)).encode())
    if not hasattr(corpus.public.inputs, "tobytes"):
        data.update(repr(corpus.public.inputs).encode())
    else:
        data.update(corpus.public.inputs.tobytes())
    identity = key(_FORMAT, name, asdict(cfg), seed, data.hexdigest(), config.model.max_length)
    target = cache_directory() / "models" / f"{name}-{identity}"
    return build_once(target, lambda folder: _build(config, corpus, derive_seed(seed, name), folder))


def _build(config: SequentialRunConfig, corpus: Corpus, seed: int, folder: Path) -> None:
    cfg, cpu = config.model.pretrain, torch.device("cpu")
    with deterministic(1):
        if config.model.path == "digits-vit":
            model = _vit(cfg, len(corpus.labels), derive_seed(seed, "initialisation"))
            encode = image_encoder(str(folder), model, 0, cpu)
        else:
            tokenizer = _tokenizer(corpus.public.inputs)
            with no_progress_bars():
                tokenizer.save_pretrained(folder)
            model = _bert(cfg, len(corpus.labels), len(tokenizer), derive_seed(seed, "initialisation"))
            encode = text_encoder(str(folder), None, config.model.max_length, cpu)
        _train(model, encode, corpus.public, cfg, derive_seed(seed, "training"))
    with no_progress_bars():
        model.save_pretrained(folder)


def _vit(cfg: PretrainConfig, num_labels: int, seed: int) -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    make: Any = ViTConfig
    config = make(
        image_size=8,
        patch_size=cfg.patch,
        num_channels=1,
        hidden_size=cfg.width,
        num_hidden_layers=cfg.layers,
        num_attention_heads=cfg.heads,
        intermediate_size=2 * cfg.width,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=num_labels,
    )
    with seeded(seed):
        return ViTForImageClassification(config)


def _bert(cfg: PretrainConfig, num_labels: int, vocabulary: int, seed: int) -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    make: Any = BertConfig
    config = make(
        vocab_size=vocabulary,
        hidden_size=cfg.width,
        num_hidden_layers=cfg.layers,
        num_attention_heads=cfg.heads,
        intermediate_size=2 * cfg.width,
        max_position_embeddings=128,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=0,
        num_labels=num_labels,
    )
    with seeded(seed):
        return BertForSequenceClassification(config)


def _tokenizer(texts: Any) -> Any:
    """Return a byte-pair tokenizer fitted to the public texts; unseen words fall into characters."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE(unk_token=_SPECIAL[2]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer: Any = trainers.BpeTrainer(
        vocab_size=_VOCABULARY, special_tokens=list(_SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator(list(texts), trainer)
    core.post_processor = processors.TemplateProcessing(single="<cls> $A", special_tokens=[("<cls>", 1)])
    make: Any = PreTrainedTokenizerFast
    return make(
        tokenizer_object=core,
        pad_token=_SPECIAL[0],
        cls_token=_SPECIAL[1],
        unk_token=_SPECIAL[2],
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


def _train(model: Any, encode: Any, records: Records, cfg: PretrainConfig, seed: int) -> None:
    """Train every weight on random batches with AdamW and a learning rate that falls to zero."""
    model.train()
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=cfg.learning_rate)
    with seeded(derive_seed(seed, "dropout")):
        for step in range(cfg.steps):
            for group in optimiser.param_groups:
                group["lr"] = cfg.learning_rate * (1.0 - step / cfg.steps)
            picked = torch.randint(len(records), (cfg.batch_size,), generator=generator).tolist()
            inputs, labels = records.batch(picked)
            logits = model(**encode(inputs)).logits
            loss = nn.functional.cross_entropy(logits, torch.from_numpy(labels))
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
    model.eval()
