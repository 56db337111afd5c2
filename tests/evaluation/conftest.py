"""A model that reads any text: random, with bytes as its tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from fedforget.config import ModelConfig, TinyModelConfig
from fedforget.models import Backbone, load_backbone
from fedforget.tiny import random_llama

LETTERS = "ABCD"


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A transformers directory: a Llama of two blocks whose tokens are bytes, and " A" to " D"."""
    folder = tmp_path_factory.mktemp("byte-model")
    words = ["<pad>", "<end>", *sorted(pre_tokenizers.ByteLevel.alphabet()), *(f"Ġ{one}" for one in LETTERS)]
    core = Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, [("Ġ", one) for one in LETTERS]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="<end>", clean_up_tokenization_spaces=False
    ).save_pretrained(folder)
    model = random_llama(TinyModelConfig(layers=2, width=32, heads=2), len(words), 3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # as it is, it says the same after every prompt
            parameter.mul_(30.0 if "layers" in name and parameter.dim() == 2 else 1.0)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def byte_backbone(byte_model: Path, tiny_home: Path) -> Backbone:
    """The loaded model; every test must leave it as it found it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDFORGET_HOME", str(tiny_home))
        return load_backbone(ModelConfig(path=str(byte_model), device="cpu"), seed=0)
