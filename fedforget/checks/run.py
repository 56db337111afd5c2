"""What a well-typed configuration can still get wrong: ranges and contradictions."""

from __future__ import annotations

import math
from typing import Any

from fedforget import quorum
from fedforget.checks.clients import client_problems
from fedforget.checks.privacy import privacy_problems
from fedforget.checks.ranges import at_least, one_of, positive
from fedforget.checks.robust import robust_problems
from fedforget.checks.simulation import simulation_problems
from fedforget.config import (
    CommunicationConfig,
    LoraConfig,
    ObjectiveConfig,
    RoleConfig,
    RunConfig,
    TrainingConfig,
)
from fedforget.data_config import DataConfig
from fedforget.errors import ConfigError, nearest
from fedforget.merging import methods
from fedforget.merging.registry import find
from fedforget.objectives import objective
from fedforget.sweeps.matching import QP

PRECISIONS = ("fp32", "bf16", "nf4")
SOLVERS = ("exact", "increase-only")
FISHERS = ("exact", "two-phase", "lossless", "raw", "approximate-top", "approximate-log8")
SEEDS = ("data", "model", "training", "evaluation")
DEVICES = ("auto", "cpu", "cuda", "mps")
# Parameters of merge methods that have a key of their own in the merge section.
OWN_KEYS = ("gamma", "alpha", "epsilon", "solver", "eps0")


def contradictions(config: RunConfig) -> list[str]:
    """Return one sentence per value out of range and per contradiction; empty if there is none."""
    return [
        *_model(config),
        *client_problems(config),
        *_role("forget", config.forget),
        *_role("retain", config.retain),
        *_merge(config),
        *_communication(config.communication),
        *robust_problems(config),
        *privacy_problems(config),
        *_rest(config),
    ]


def _model(config: RunConfig) -> list[str]:
    problems = []
    model, lora = config.model, config.lora
    problems += one_of("model.precision", model.precision, PRECISIONS)
    problems += one_of("model.fisher_precision", model.fisher_precision, ("same", "fp32", "bf16"))
    problems += one_of("model.device", model.device.split(":")[0], DEVICES)
    if model.precision == "nf4" and model.fisher_precision == "same":
        problems.append("model.fisher_precision: NF4 weights have no gradient; give bf16 or fp32 beside nf4")
    problems += _lora("lora", lora)
    problems += _lora("model.expert.lora", model.expert.lora)
    problems += _training("model.expert.training", model.expert.training)
    problems += one_of("model.expert.method", model.expert.method, ("lora", "full"))
    problems += at_least("model.expert.checkpoint_every", model.expert.checkpoint_every, 1)
    if model.expert.domain and model.expert.method == "full" and model.precision == "nf4":
        problems.append(
            "model.expert.method: NF4 weights cannot be trained; set it to lora, or model.precision to bf16"
        )
    return problems


def _lora(key: str, lora: LoraConfig) -> list[str]:
    problems = at_least(f"{key}.r", lora.r, 1)
    problems += positive(f"{key}.alpha", lora.alpha)
    for name, alpha in lora.alpha_pattern.items():
        problems += positive(f"{key}.alpha_pattern.{name}", alpha)
    if not 0.0 <= lora.dropout < 1.0:
        problems.append(f"{key}.dropout: {lora.dropout} is outside [0, 1)")
    if not lora.targets:
        problems.append(f"{key}.targets: name at least one module to adapt, e.g. [down_proj]")
    if any(layer < 0 for layer in lora.layers):
        problems.append(f"{key}.layers: {lora.layers} holds a negative block number")
    return problems


def _role(name: str, role: RoleConfig) -> list[str]:
    return [
        *_objective(f"{name}.objective", role.objective),
        *_training(f"{name}.training", role.training),
    ]


def _training(key: str, training: TrainingConfig) -> list[str]:
    problems = at_least(f"{key}.steps", training.steps, 1)
    problems += at_least(f"{key}.batch_size", training.batch_size, 1)
    problems += positive(f"{key}.learning_rate", training.learning_rate)
    problems += at_least(f"{key}.weight_decay", training.weight_decay, 0)
    problems += at_least(f"{key}.max_grad_norm", training.max_grad_norm, 0)
    problems += at_least(f"{key}.warmup_steps", training.warmup_steps, 0)
    problems += at_least(f"{key}.loss_limit", training.loss_limit, 1)
    return problems


def _objective(key: str, config: ObjectiveConfig) -> list[str]:
    try:
        objective(config.name, **config.parameters)
    except ConfigError as error:
        return [f"{key}: {problem}" for problem in error.problems]
    return []


def _method(key: str, name: str, parameters: dict[str, Any]) -> list[str]:
    try:
        find(name).parse(parameters)
    except ConfigError as error:
        return [f"{key}: {problem}" for problem in error.problems]
    return []


def _merge(config: RunConfig) -> list[str]:
    merge = config.merge
    problems = _merge_method(config)
    problems += positive("merge.gamma", merge.gamma)
    problems += positive("merge.epsilon_gamma", merge.epsilon_gamma)
    problems += positive("merge.eps0", merge.eps0)
    problems += one_of("merge.solver", merge.solver, SOLVERS)
    if not 0.0 < merge.alpha <= 1.0:
        problems.append(f"merge.alpha: {merge.alpha} is outside (0, 1]")
    if math.isnan(merge.epsilon) or merge.epsilon < 0:
        problems.append(f"merge.epsilon: {merge.epsilon} is negative; give a budget >= 0, or .inf for none")
    problems += at_least("merge.epsilon_fraction", merge.epsilon_fraction, 0)
    if merge.epsilon_fraction and math.isfinite(merge.epsilon):
        problems.append("merge: epsilon and epsilon_fraction are both given; give one of them")
    constrained = math.isfinite(merge.epsilon) or merge.epsilon_fraction > 0
    if constrained and not any(group.role == "retain" for group in config.clients):
        problems.append(
            "merge.epsilon: a finite budget needs a retain client to protect; add a group with role: retain, "
            "or set merge.epsilon=inf for FIRM-base"
        )
    return problems


def _merge_method(config: RunConfig) -> list[str]:
    merge = config.merge
    if merge.method not in methods():
        return one_of("merge.method", merge.method, tuple(sorted(methods())))
    problems = [
        f"merge.parameters.{name}: has a key of its own; set merge.{name} instead"
        for name in merge.parameters
        if name in OWN_KEYS
    ]
    rest = {name: value for name, value in merge.parameters.items() if name not in OWN_KEYS}
    problems += _method("merge.parameters", merge.method, rest)
    constrained = math.isfinite(merge.epsilon) or merge.epsilon_fraction > 0
    if constrained and "epsilon" not in {parameter.name for parameter in find(merge.method).parameters}:
        problems.append(
            f"merge.epsilon: method {merge.method!r} keeps no budget; "
            "leave epsilon at inf and epsilon_fraction at 0"
        )
    return problems


def _communication(config: CommunicationConfig) -> list[str]:
    problems = one_of("communication.fisher", config.fisher, FISHERS)
    if not 0.0 <= config.alpha <= 1.0:
        problems.append(f"communication.alpha: {config.alpha} is outside [0, 1]")
    if not 0.0 < config.local_share <= 1.0:
        problems.append(f"communication.local_share: {config.local_share} is outside (0, 1]")
    problems += at_least("communication.norm_limit", config.norm_limit, 0)
    return problems


def _compare(config: RunConfig) -> list[str]:
    compare = config.evaluation.compare
    known = tuple(sorted([*methods(), QP]))
    problems = []
    for name in compare.methods:
        problems += one_of("evaluation.compare.methods", name, known)
    for level in compare.levels:
        if not 0.0 < level <= 1.0:
            problems.append(f"evaluation.compare.levels: {level} is outside (0, 1]")
    problems += at_least("evaluation.compare.max_evaluations", compare.max_evaluations, 1)
    problems += at_least("evaluation.compare.tolerance", compare.tolerance, 0)
    for name, parameters in compare.parameters.items():
        key = f"evaluation.compare.parameters.{name}"
        if name not in known:
            problems.append(f"{key}: {name!r} is not one of {', '.join(known)}{nearest(name, known)}")
            continue
        relative = ("epsilon_fraction", "epsilon_gamma") if name == QP else ()
        for one in relative:
            value = parameters.get(one, 1.0)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < math.inf:
                problems.append(f"{key}.{one}: {value!r} is not a positive number")
        rest = {one: value for one, value in parameters.items() if one not in relative}
        problems += _method(key, "firm" if name == QP else name, rest)
    return problems


def _data(data: DataConfig) -> list[str]:
    problems = at_least("data.max_length", data.max_length, 2)
    problems += one_of("data.targets", data.targets, ("answer", "all"))
    if not 0.0 <= data.unseen_share < 1.0:
        problems.append(f"data.unseen_share: {data.unseen_share} is outside [0, 1)")
    elif data.unseen_share and "wmdp" not in (data.family, *data.also):
        problems.append(
            f"data.unseen_share: family {data.family!r} does not read it, wmdp alone does; leave it 0"
        )
    if data.family != "table" and (data.subset or data.split != "train"):
        problems.append(
            f"data.subset, data.split: family {data.family!r} does not read them, table alone does"
        )
    if data.family in data.also:
        problems.append(f"data.also: {data.family!r} is data.family already; leave it out")
    problems += at_least("data.mmlu.retain_questions", data.mmlu.retain_questions, 1)
    if data.mmlu.evaluation_split in data.mmlu.train_splits:
        problems.append(
            f"data.mmlu.train_splits: {data.mmlu.evaluation_split!r} is data.mmlu.evaluation_split; what is "
            "trained on must not be asked"
        )
    problems += one_of("data.muse.corpus", data.muse.corpus, ("books", "news"))
    problems += at_least("data.muse.passage_chars", data.muse.passage_chars, 1)
    return problems


def _rest(config: RunConfig) -> list[str]:
    problems = _compare(config)
    evaluation = config.evaluation
    problems += _data(config.data)
    problems += at_least("fisher.num_sequences", config.fisher.num_sequences, 1)
    problems += at_least("fisher.max_length", config.fisher.max_length, 2)
    problems += at_least("fisher.batch", config.fisher.batch, 1)
    own, other = config.model.precision, config.model.fisher_precision
    reference = own if other == "same" else other
    if config.fisher.batch > 1 and config.fisher.recompute:
        problems.append("fisher.recompute: works on one sequence at a time; set fisher.batch to 1")
    if config.fisher.batch > 1 and reference == "bf16":
        problems.append(
            "fisher.batch: a batch is told apart in fp32 alone, and the Fisher is taken at a bf16 copy; "
            "set fisher.batch to 1, or model.fisher_precision to fp32"
        )
    problems += one_of("evaluation.suite", evaluation.suite, ("choices", "benchmark"))
    problems += at_least("evaluation.batch_size", evaluation.batch_size, 1)
    problems += at_least("evaluation.max_questions", evaluation.max_questions, 0)
    problems += at_least("evaluation.max_texts", evaluation.max_texts, 0)
    trained = {group.domain for group in config.clients}
    for domain in evaluation.held_out:
        if domain in trained:
            problems.append(f"evaluation.held_out: {domain!r} is a client's domain, so it is not held out")
    problems += at_least("seeds.count", config.seeds.count, 1)
    for name in config.seeds.vary:
        problems += one_of("seeds.vary", name, SEEDS)
    if config.seeds.count > 1 and not config.seeds.vary:
        problems.append("seeds.vary: names nothing, so that seeds.count runs would all be the same")
    problems += simulation_problems(config.simulation)
    problems += quorum.problems(config.quorum, config.clients)
    return problems
