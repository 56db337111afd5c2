"""What a well-typed configuration can still get wrong: ranges and contradictions."""

from __future__ import annotations

import math
from collections import Counter

from fedforget.config import ClientGroup, RoleConfig, RunConfig, expand_clients
from fedforget.errors import nearest

PRECISIONS = ("fp32", "bf16", "nf4")
SOLVERS = ("exact", "increase-only")
DEVICES = ("auto", "cpu", "cuda", "mps")


def contradictions(config: RunConfig) -> list[str]:
    """Return one sentence per value out of range and per contradiction; empty if there is none."""
    return [
        *_model(config),
        *_clients(config.clients),
        *_role("forget", config.forget),
        *_role("retain", config.retain),
        *_merge(config),
        *_rest(config),
    ]


def _model(config: RunConfig) -> list[str]:
    problems = []
    model, lora = config.model, config.lora
    problems += _one_of("model.precision", model.precision, PRECISIONS)
    problems += _one_of("model.fisher_precision", model.fisher_precision, ("same", "fp32", "bf16"))
    problems += _one_of("model.device", model.device.split(":")[0], DEVICES)
    if model.precision == "nf4" and model.fisher_precision == "same":
        problems.append("model.fisher_precision: NF4 weights have no gradient; give bf16 or fp32 with precision nf4")
    problems += _at_least("lora.r", lora.r, 1)
    problems += _positive("lora.alpha", lora.alpha)
    problems += [line for name, alpha in lora.alpha_pattern.items() for line in _positive(f"lora.alpha_pattern.{name}", alpha)]
    if not 0.0 <= lora.dropout < 1.0:
        problems.append(f"lora.dropout: {lora.dropout} is outside [0, 1)")
    if not lora.targets:
        problems.append("lora.targets: name at least one module to adapt, e.g. [down_proj]")
    if any(layer < 0 for layer in lora.layers):
        problems.append(f"lora.layers: {lora.layers} holds a negative block number")
    return problems


def _clients(groups: list[ClientGroup]) -> list[str]:
    problems = []
    for i, group in enumerate(groups):
        problems += _one_of(f"clients[{i}].role", group.role, ("forget", "retain"))
        problems += _at_least(f"clients[{i}].count", group.count, 1)
        problems += _at_least(f"clients[{i}].max_examples", group.max_examples, 0)
        if not group.domain:
            problems.append(f"clients[{i}].domain: is empty; name the domain that these clients hold")
    roles = {group.role for group in groups}
    if "forget" not in roles:
        problems.append("clients: no forget client; add at least one group with role: forget")
    repeated = [name for name, n in Counter(spec.id for spec in expand_clients(groups)).items() if n > 1]
    if repeated:
        problems.append(f"clients: {repeated[0]!r} appears twice; put clients of one role and domain in one group")
    both = {g.domain for g in groups if g.role == "forget"} & {g.domain for g in groups if g.role == "retain"}
    if both:
        problems.append(f"clients: domain {min(both)!r} is both forgotten and retained")
    return problems


def _role(name: str, role: RoleConfig) -> list[str]:
    training = role.training
    problems = []
    problems += _at_least(f"{name}.training.steps", training.steps, 1)
    problems += _at_least(f"{name}.training.batch_size", training.batch_size, 1)
    problems += _positive(f"{name}.training.learning_rate", training.learning_rate)
    problems += _at_least(f"{name}.training.weight_decay", training.weight_decay, 0)
    problems += _at_least(f"{name}.training.max_grad_norm", training.max_grad_norm, 0)
    problems += _at_least(f"{name}.training.warmup_steps", training.warmup_steps, 0)
    return problems


def _merge(config: RunConfig) -> list[str]:
    merge = config.merge
    problems = []
    problems += _positive("merge.gamma", merge.gamma)
    problems += _positive("merge.epsilon_gamma", merge.epsilon_gamma)
    problems += _positive("merge.eps0", merge.eps0)
    problems += _one_of("merge.solver", merge.solver, SOLVERS)
    if not 0.0 < merge.alpha <= 1.0:
        problems.append(f"merge.alpha: {merge.alpha} is outside (0, 1]")
    if math.isnan(merge.epsilon) or merge.epsilon < 0:
        problems.append(f"merge.epsilon: {merge.epsilon} is negative; give a budget >= 0, or .inf for none")
    problems += _at_least("merge.epsilon_fraction", merge.epsilon_fraction, 0)
    if merge.epsilon_fraction and math.isfinite(merge.epsilon):
        problems.append("merge: epsilon and epsilon_fraction are both given; give one of them")
    constrained = math.isfinite(merge.epsilon) or merge.epsilon_fraction > 0
    if constrained and not any(group.role == "retain" for group in config.clients):
        problems.append(
            "merge.epsilon: a finite budget needs a retain client to protect; add a group with role: retain, "
            "or set merge.epsilon=inf for FIRM-base"
        )
    return problems


def _rest(config: RunConfig) -> list[str]:
    problems = []
    evaluation, compare = config.evaluation, config.evaluation.compare
    problems += _at_least("data.max_length", config.data.max_length, 2)
    problems += _at_least("fisher.num_sequences", config.fisher.num_sequences, 1)
    problems += _at_least("fisher.max_length", config.fisher.max_length, 2)
    problems += _at_least("evaluation.batch_size", evaluation.batch_size, 1)
    problems += _at_least("evaluation.max_questions", evaluation.max_questions, 0)
    problems += _at_least("evaluation.compare.max_evaluations", compare.max_evaluations, 1)
    for level in compare.levels:
        if not 0.0 < level <= 1.0:
            problems.append(f"evaluation.compare.levels: {level} is outside (0, 1]")
    trained = {group.domain for group in config.clients}
    for domain in evaluation.held_out:
        if domain in trained:
            problems.append(f"evaluation.held_out: {domain!r} is a client's domain, so it is not held out")
    problems += _at_least("simulation.nodes", config.simulation.nodes, 1)
    problems += _at_least("simulation.cpus_per_client", config.simulation.cpus_per_client, 1)
    problems += _at_least("simulation.gpus_per_client", config.simulation.gpus_per_client, 0)
    problems += _positive("simulation.timeout", config.simulation.timeout)
    return problems


def _one_of(key: str, value: str, known: tuple[str, ...]) -> list[str]:
    if value in known:
        return []
    return [f"{key}: {value!r} is not one of {', '.join(known)}{nearest(value, known)}"]


def _positive(key: str, value: float) -> list[str]:
    return [] if 0.0 < value < math.inf else [f"{key}: {value} is not a positive number"]


def _at_least(key: str, value: float, low: float) -> list[str]:
    return [] if low <= value < math.inf else [f"{key}: {value} is less than {low}" if value < low else f"{key}: {value} is not finite"]
