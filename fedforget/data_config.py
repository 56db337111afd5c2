"""The data section of a run's configuration."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class FieldsConfig:
    """Column names of a file or table that the user brings."""

    id: str = "id"
    domain: str = "domain"
    split: str = "split"
    text: str = "text"
    question: str = "question"
    answer: str = "answer"
    choices: str = "choices"
    label: str = "label"


@dataclass
class MmluConfig:
    """Which questions of MMLU are trained on and which are asked; they never overlap."""

    subset: str = "all"
    # Retain questions are drawn from these splits; the FIRM paper says 600 and not from which.
    train_splits: list[str] = field(default_factory=lambda: ["validation"])
    evaluation_split: str = "test"
    retain_questions: int = 600


@dataclass
class MuseConfig:
    """Which corpus of MUSE, and how its texts become passages."""

    corpus: str = "books"  # books or news
    forget_splits: list[str] = field(default_factory=lambda: ["forget"])  # of the configuration raw
    retain_splits: list[str] = field(default_factory=lambda: ["retain1"])
    passage_chars: int = 4096  # texts are cut at white space into passages of at most so many characters


@dataclass
class DataConfig:
    """Where examples come from."""

    family: str = "facts"  # one of `fedforget data list`
    # A hub id, or a local file or directory of the same schema; empty: the family's own hub id.
    path: str = ""
    subset: str = ""  # family table: configuration name on the hub
    split: str = "train"  # family table: the split that is read
    # Further families whose domains the run uses too, each with its hub id or local path (empty:
    # the family's own hub id), e.g. {mmlu: ""}.
    also: dict[str, str] = field(default_factory=dict)
    max_length: int = 128  # tokens per training sequence
    # What a loss on question-answer data is taken on: answer (and the end of the sequence), or all.
    targets: str = "answer"
    # Share of a forgotten domain's multiple-choice questions that no client trains on and that alone
    # are asked. 0 asks what was trained on, as the FIRM paper does.
    unseen_share: float = 0.0
    fields: FieldsConfig = field(default_factory=FieldsConfig)
    mmlu: MmluConfig = field(default_factory=MmluConfig)
    muse: MuseConfig = field(default_factory=MuseConfig)
