"""A federation of three clients on a few digits, and its prefix tree, trained once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fedsgt_helpers import plan_of

from fedforget import presets
from fedforget.data.corpora import load_corpus
from fedforget.data.records import Corpus
from fedforget.sequential.classifiers import load_classifier
from fedforget.sequential.config import SequentialRunConfig
from fedforget.sequential.modules import PrefixModule
from fedforget.sequential.plan import Prefix, SequentialPlan
from fedforget.sequential.reference import train_sequences_locally
from fedforget.sequential.stack import ModuleStack


@pytest.fixture(scope="session", autouse=True)
def fedsgt_home(tiny_home: Path) -> Iterator[Path]:
    """The session's home, for every test here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDFORGET_HOME", str(tiny_home))
        yield tiny_home


@pytest.fixture(scope="session")
def config() -> SequentialRunConfig:
    """The preset for CI: 3 clients, S = 2, L = B = 3, a vision transformer of one block."""
    return presets.load_sequential("fedsgt-ci")


@pytest.fixture(scope="session")
def corpus(config: SequentialRunConfig) -> Corpus:
    return load_corpus(config.data, config.seeds.data)


@pytest.fixture(scope="session")
def plan(config: SequentialRunConfig, corpus: Corpus) -> SequentialPlan:
    return plan_of(config, corpus)


@dataclass
class Trained:
    config: SequentialRunConfig
    corpus: Corpus
    plan: SequentialPlan
    modules: dict[Prefix, PrefixModule]


@pytest.fixture(scope="session")
def trained(config: SequentialRunConfig, corpus: Corpus, plan: SequentialPlan) -> Trained:
    """The whole tree; tests must not change it."""
    return Trained(config, corpus, plan, train_sequences_locally(config, plan))


@pytest.fixture
def stack(config: SequentialRunConfig) -> ModuleStack:
    return ModuleStack(load_classifier(config), config.module)
