"""Greedy generation in batches of similar length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fedforget.errors import DataError
from fedforget.evaluation.likelihoods import Progress
from fedforget.evaluation.modes import evaluating
from fedforget.evaluation.prepared import encode_text


@torch.no_grad()
def generate(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str],
    *,
    max_new_tokens: int = 32,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> list[str]:
    """Continue each prompt greedily; returns the new text alone, up to the end-of-sequence token.

    Prompts are padded on the left, so that every continuation starts where its prompt ends.
    Nothing is drawn: the likeliest token is taken at each place, whatever the model's own
    generation settings say.

    Parameters
    ----------
    model : PreTrainedModel
        A causal language model.
    tokenizer : object
        Of the model.
    prompts : sequence of str
    max_new_tokens : int
    batch_size : int
        Prompts at once; batches are made of prompts of similar length, the longest first.
    progress : callable, optional
        Told after each batch how many prompts are done, and of how many.

    Raises
    ------
    DataError
        A prompt of no token.
    """
    device = model.get_input_embeddings().weight.device
    encoded = [encode_text(tokenizer, prompt) for prompt in prompts]
    for prompt, tokens in zip(prompts, encoded, strict=True):
        if not tokens:
            raise DataError(f"the prompt {prompt!r} has no token to continue; give it a text")
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else (tokenizer.eos_token_id or 0)
    order = sorted(range(len(prompts)), key=lambda i: -len(encoded[i]))
    found: dict[int, str] = {}
    with evaluating(model):
        for start in range(0, len(order), batch_size):
            indices = order[start : start + batch_size]
            length = max(len(encoded[i]) for i in indices)
            ids = torch.full((len(indices), length), pad, dtype=torch.long)
            mask = torch.zeros(len(indices), length, dtype=torch.long)
            for row, i in enumerate(indices):
                ids[row, length - len(encoded[i]) :] = torch.tensor(encoded[i])
                mask[row, length - len(encoded[i]) :] = 1
            out = model.generate(
                input_ids=ids.to(device),
                attention_mask=mask.to(device),
                do_sample=False,
                num_beams=1,
                repetition_penalty=1.0,
                no_repeat_ngram_size=0,
                max_new_tokens=max_new_tokens,
                pad_token_id=pad,
                eos_token_id=tokenizer.eos_token_id,
                use_cache=True,  # backbones switch it off for training
            )
            texts = tokenizer.batch_decode(out[:, length:], skip_special_tokens=True)
            found |= dict(zip(indices, texts, strict=True))
            if progress is not None:
                progress(len(found), len(prompts))
    return [found[i] for i in range(len(prompts))]
