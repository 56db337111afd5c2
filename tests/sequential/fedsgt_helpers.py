"""What several tests of FedSGT need."""

from __future__ import annotations

import torch

from fedforget.data.holdings import Slice, holdings
from fedforget.data.records import Corpus
from fedforget.sequential.config import SequentialRunConfig
from fedforget.sequential.modules import PrefixModule
from fedforget.sequential.plan import SequentialPlan, make_plan
from fedforget.sequential.stack import ModuleStack


def plan_of(config: SequentialRunConfig, corpus: Corpus) -> SequentialPlan:
    held = holdings(config.data, corpus.federated, config.seeds.data)
    slices = [Slice(name, i, len(ids)) for name, own in held.items() for i, ids in own.items()]
    return make_plan(config, slices)


def chain(stack: ModuleStack, prefix: tuple[int, ...], seed: int) -> list[PrefixModule]:
    """Modules with random content."""
    generator = torch.Generator().manual_seed(seed)
    modules: list[PrefixModule] = []
    for depth in range(1, len(prefix) + 1):
        tensors = stack.initial(modules, seed + depth)
        noisy = {k: v + 0.1 * torch.randn(v.shape, generator=generator) for k, v in sorted(tensors.items())}
        modules.append(PrefixModule(prefix[:depth], noisy))
    return modules
