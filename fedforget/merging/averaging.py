"""Merges that weigh every coordinate alike: means, sums and task arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedforget.merging import kernels
from fedforget.merging.inputs import Clients
from fedforget.merging.registry import Plan, method
from fedforget.parameters import Scaled, flag
from fedforget.summaries import ClientSummary


@method(
    "avg",
    pretty="AVG",
    reference="FIRM, section 5.1, baselines",
    summary="gamma times the mean of all task vectors, the retain clients' included",
    parameters=Scaled,
)
def avg(clients: Clients, p: Scaled) -> Plan:
    """``gamma * mean(all)``."""
    return linear(clients, [clients.all], lambda blocks: kernels.mean(blocks[0]).mul_(p.gamma))


@method(
    "sum",
    pretty="SUM",
    reference="FIRM, section 5.1, baselines",
    summary="gamma times the sum of the forget task vectors; retain clients do not enter",
    parameters=Scaled,
)
def sum_forget(clients: Clients, p: Scaled) -> Plan:
    """``gamma * sum(forget)``."""
    return linear(clients, [clients.forget], lambda blocks: kernels.total(blocks[0]).mul_(p.gamma))


@method(
    "uniform",
    pretty="Uniform",
    reference="FIRM, appendix D.1, equation (22)",
    summary="gamma times (mean of the forget task vectors + mean of the retain ones), dense, without Fishers",
    parameters=Scaled,
)
def uniform(clients: Clients, p: Scaled) -> Plan:
    """``gamma * (mean(forget) + mean(retain))``; the paper has one retain client."""
    return linear(
        clients,
        [clients.forget, clients.retain],
        lambda blocks: kernels.total([kernels.mean(role) for role in blocks if role]).mul_(p.gamma),
    )


@dataclass(frozen=True)
class TaskArithmeticParameters(Scaled):
    """Parameters of task arithmetic."""

    negate_forget: bool = flag(
        False,
        "subtract the forget task vectors: for forget clients that fine-tuned on what is to be forgotten",
    )


@method(
    "task_arithmetic",
    pretty="Task arithmetic",
    reference="Ilharco et al., Editing Models with Task Arithmetic, ICLR 2023, sections 3 and 4",
    summary="gamma times the sum of all task vectors, the retain clients' included",
    parameters=TaskArithmeticParameters,
)
def task_arithmetic(clients: Clients, p: TaskArithmeticParameters) -> Plan:
    """``gamma * (sum(forget) + sum(retain))``.

    The source adds the vectors of tasks to learn and subtracts those of tasks to forget, where every
    vector comes from fine-tuning *on* its task. The forget clients of federated unlearning minimise an
    unlearning objective, so their vectors already point away from the knowledge and are added;
    ``negate_forget`` gives the source's subtraction for clients that did fine-tune on it.
    """
    sign = -1.0 if p.negate_forget else 1.0

    def combine(blocks: list[list[Tensor]]) -> Tensor:
        forget, retain = blocks
        return kernels.total([kernels.total(forget).mul_(sign), *retain]).mul_(p.gamma)

    return linear(clients, [clients.forget, clients.retain], combine)


def linear(
    clients: Clients,
    groups: Sequence[Sequence[ClientSummary]],
    combine: Callable[[list[list[Tensor]]], Tensor],
) -> Plan:
    """Plan a merge that looks at one block of some groups of clients at a time, and at nothing else."""

    def tensor(name: str) -> tuple[Tensor, dict[str, Any]]:
        sources = [clients.sources(name, group) for group in groups]
        merged = clients.layouts[name].assemble(
            clients.dtype(name),
            [one for group in sources for one in group],
            lambda start, stop: combine([[one.delta(start, stop) for one in group] for group in sources]),
        )
        return merged, {}

    return Plan(tensor)
