"""Examples as tokens, and tokens as batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedforget.errors import TrainingError
from fedforget.objectives.terms import IGNORED

if TYPE_CHECKING:
    from fedforget.data import Example


@dataclass(frozen=True, eq=False)
class Encoded:
    """One sequence in tokens.

    Attributes
    ----------
    id : str
        The example's.
    input_ids, labels : Tensor
        int64, one dimension, equal length. A label is the token itself where it is a target, else
        -100; the model is asked to predict ``labels[i]`` from the tokens before ``i``.
    """

    id: str
    input_ids: Tensor
    labels: Tensor


def encode(tokenizer: Any, examples: Sequence[Example], max_length: int) -> list[Encoded]:
    """Tokenise examples, prompt and text together so that merges across their border are right.

    Targets are the tokens that hold a character of ``text``. Where there is a prompt, the
    end-of-sequence token follows and is a target as well, so that answers are learnt with their end.

    Parameters
    ----------
    tokenizer : object
        A fast transformers tokenizer.
    examples : sequence of Example
        Order is kept.
    max_length : int
        Tokens per sequence; what is beyond is cut off.

    Raises
    ------
    TrainingError
        An example without a target within ``max_length``; names it.
    """
    if not examples:
        return []
    texts = [example.prompt + example.text for example in examples]
    tokens = tokenizer(texts, return_offsets_mapping=True)
    return [
        _encode_one(tokenizer, example, list(ids), offsets, max_length)
        for example, ids, offsets in zip(examples, tokens["input_ids"], tokens["offset_mapping"], strict=True)
    ]


def _encode_one(
    tokenizer: Any, example: Example, ids: list[int], offsets: Sequence[tuple[int, int]], max_length: int
) -> Encoded:
    border = len(example.prompt)
    # Special tokens have empty offsets and are no targets.
    labels = [
        token if stop > max(start, border) else IGNORED
        for token, (start, stop) in zip(ids, offsets, strict=True)
    ]
    end = tokenizer.eos_token_id
    if example.prompt and end is not None:
        if ids[-1] == end:
            labels[-1] = end
        else:
            ids, labels = [*ids, end], [*labels, end]
    ids, labels = ids[:max_length], labels[:max_length]
    # The first token is predicted from nothing, so it does not count.
    if all(label == IGNORED for label in labels[1:]):
        raise TrainingError(
            f"example {example.id!r} of domain {example.domain!r} has no target token within "
            f"{max_length} tokens; raise data.max_length, or give it a longer text"
        )
    return Encoded(example.id, torch.tensor(ids), torch.tensor(labels))


def collate(
    sequences: Sequence[Encoded], pad_id: int, device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """Pad sequences on the right to one batch; see :data:`fedforget.objectives.Batch`."""
    length = max(len(sequence.input_ids) for sequence in sequences)
    ids = torch.full((len(sequences), length), pad_id)
    labels = torch.full_like(ids, IGNORED)
    mask = torch.zeros_like(ids)
    for i, sequence in enumerate(sequences):
        n = len(sequence.input_ids)
        ids[i, :n], labels[i, :n], mask[i, :n] = sequence.input_ids, sequence.labels, 1
    return {"input_ids": ids.to(device), "attention_mask": mask.to(device), "labels": labels.to(device)}


def batches(sequences: Sequence[Encoded], pad_id: int, batch_size: int = 1) -> Iterator[dict[str, Tensor]]:
    """Yield batches in the order of the data, once through; the last may be smaller."""
    for start in range(0, len(sequences), batch_size):
        yield collate(sequences[start : start + batch_size], pad_id)


def pad_id(tokenizer: Any) -> int:
    """Return the token to pad with; padding is masked everywhere, so any serves."""
    for name in ("pad_token_id", "eos_token_id"):
        if getattr(tokenizer, name, None) is not None:
            return int(getattr(tokenizer, name))
    return 0
