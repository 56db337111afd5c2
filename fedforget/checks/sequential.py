"""What a well-typed FedSGT configuration can still get wrong: ranges and contradictions."""

from __future__ import annotations

import math

from fedforget.checks.methods import method_contradictions
from fedforget.checks.ranges import at_least, one_of, positive
from fedforget.checks.run import DEVICES
from fedforget.checks.simulation import simulation_problems
from fedforget.sequential.config import KIND, SequentialRunConfig
from fedforget.summaries import is_client_id

MODULE_KINDS = ("lora", "dora", "ia3")
REQUEST_KINDS = ("uniform", "bursts", "skewed", "withdrawal", "adversarial")
RULES = ("AllSeq", "MinSeq", "LongSeq")
BUILT_IN_FAMILIES = ("digits", "statements")
IMAGE_FAMILIES = ("digits", "cifar10", "cifar100", "images")
TEXT_FAMILIES = ("statements", "sst2", "qqp", "qnli", "mnli", "texts")
FAMILIES = tuple(dict.fromkeys(IMAGE_FAMILIES + TEXT_FAMILIES))
BUILT_IN_MODELS = {"digits-vit": "digits", "statements-encoder": "statements"}

_PROMPTS = ("prompt", "prompt_tuning", "prompt-tuning", "prefix_tuning", "prefix-tuning", "p_tuning")


def sequential_contradictions(config: SequentialRunConfig) -> list[str]:
    """Return one sentence per value out of range and per contradiction; empty if there is none."""
    return [
        *([] if config.kind == KIND else [f"kind: {config.kind!r} is not {KIND}"]),
        *_model(config),
        *_module(config),
        *_data(config),
        *_sequences(config),
        *_training(config),
        *simulation_problems(config.simulation),
        *_requests(config),
        *method_contradictions(config),
    ]


def _model(config: SequentialRunConfig) -> list[str]:
    model, family = config.model, config.data.family
    problems = []
    problems += one_of("model.precision", model.precision, ("fp32", "bf16"))
    problems += one_of("model.device", model.device.split(":")[0], DEVICES)
    problems += at_least("model.image_size", model.image_size, 0)
    problems += at_least("model.max_length", model.max_length, 2)
    own = BUILT_IN_MODELS.get(model.path)
    if own is not None and own != family:
        problems.append(
            f"model.path: {model.path} classifies {own} and the data are {family}; "
            f"set data.family to {own}, or give a hub id or a local directory"
        )
    if own is not None:
        problems += _pretrain(config)
    return problems


def _pretrain(config: SequentialRunConfig) -> list[str]:
    pretrain = config.model.pretrain
    problems = []
    for name in ("layers", "width", "heads", "patch", "batch_size"):
        problems += at_least(f"model.pretrain.{name}", getattr(pretrain, name), 1)
    problems += at_least("model.pretrain.steps", pretrain.steps, 0)
    problems += positive("model.pretrain.learning_rate", pretrain.learning_rate)
    if pretrain.heads >= 1 and pretrain.width % pretrain.heads:
        problems.append(
            f"model.pretrain.width: {pretrain.width} is not a multiple of "
            f"model.pretrain.heads ({pretrain.heads})"
        )
    if pretrain.patch >= 1 and 8 % pretrain.patch and config.model.path == "digits-vit":
        problems.append(f"model.pretrain.patch: {pretrain.patch} does not divide the images' 8 pixels")
    return problems


def _module(config: SequentialRunConfig) -> list[str]:
    module = config.module
    problems = []
    if module.kind in _PROMPTS:
        problems.append(
            f"module.kind: {module.kind} cannot be used, because PEFT applies one prompt at a time and a "
            f"sequence stacks several modules; choose one of {', '.join(MODULE_KINDS)}"
        )
    else:
        problems += one_of("module.kind", module.kind, MODULE_KINDS)
    problems += at_least("module.r", module.r, 1)
    problems += positive("module.alpha", module.alpha)
    problems += one_of("module.head", module.head, ("seeded", "backbone"))
    if not 0.0 <= module.dropout < 1.0:
        problems.append(f"module.dropout: {module.dropout} is outside [0, 1)")
    if not module.targets:
        problems.append("module.targets: name at least one layer to adapt, e.g. [q_proj, v_proj]")
    if any(layer < 0 for layer in module.layers):
        problems.append(f"module.layers: {module.layers} holds a negative block number")
    beyond = [name for name in module.feedforward if name not in module.targets]
    if beyond:
        problems.append(f"module.feedforward: {beyond[0]!r} is not among module.targets")
    if module.feedforward and module.kind != "ia3":
        problems.append(f"module.feedforward: is for ia3 alone, and module.kind is {module.kind}")
    return problems


def _data(config: SequentialRunConfig) -> list[str]:
    data = config.data
    problems = []
    problems += one_of("data.family", data.family, FAMILIES)
    problems += one_of("data.partition", data.partition, ("iid", "dirichlet"))
    problems += positive("data.dirichlet_alpha", data.dirichlet_alpha)
    problems += at_least("data.clients", data.clients, 1)
    problems += _names(data.names, data.clients)
    problems += at_least("data.slices", data.slices, 1)
    problems += at_least("data.max_records", data.max_records, 0)
    if data.family in ("images", "texts") and not data.path:
        problems.append(f"data.path: is empty; family {data.family} needs a hub id or a local path")
    if data.family in BUILT_IN_FAMILIES and data.path:
        problems.append(
            f"data.path: family {data.family} comes with the project; choose another family, or drop path"
        )
    needed = data.clients * data.slices
    if 0 < data.max_records < needed:
        problems.append(
            f"data.max_records: {data.max_records} records cannot fill {data.clients} clients' "
            f"{data.slices} slices each; give at least {needed}"
        )
    return problems


def _names(names: list[str], clients: int) -> list[str]:
    problems = [
        f"data.names: {name!r} is not 1 to 128 letters, digits, '.', '_' or '-'"
        for name in names
        if not is_client_id(name)
    ]
    if len(set(names)) < len(names):
        problems.append("data.names: names a client twice")
    if names and len(names) != clients:
        problems.append(
            f"data.names: names {len(names)} clients, and data.clients is {clients}; make them agree"
        )
    return problems


def _sequences(config: SequentialRunConfig) -> list[str]:
    grouping, sequences, data = config.grouping, config.sequences, config.data
    L, B, slices = grouping.groups, sequences.budget, data.clients * data.slices
    problems = []
    problems += one_of("grouping.method", grouping.method, ("random", "barycentre"))
    problems += at_least("grouping.groups", L, 1)
    problems += at_least("grouping.client_budget", grouping.client_budget, 0)
    problems += at_least("sequences.budget", B, 1)
    if slices >= 1 and slices < L:
        problems.append(
            f"grouping.groups: {L} groups cannot be formed from {slices} slices "
            "(data.clients x data.slices); ask for fewer groups or more slices"
        )
    # Factorials beyond 20 exceed any budget, and a huge L would be slow to multiply out.
    if 1 <= L <= 20 and math.factorial(L) < B:
        problems.append(
            f"sequences.budget: {B} sequences asked for, and {L} groups have only {math.factorial(L)} orders"
        )
    if sequences.prior and len(sequences.prior) != L:
        problems.append(f"sequences.prior: has {len(sequences.prior)} weights for {L} groups")
    if any(not 0.0 <= weight < math.inf for weight in sequences.prior) or (
        sequences.prior and sum(sequences.prior) == 0
    ):
        problems.append("sequences.prior: give one number >= 0 per group, not all of them 0")
    problems += one_of("serving.rule", config.serving.rule, RULES)
    problems += at_least("serving.batch_size", config.serving.batch_size, 1)
    return problems


def _training(config: SequentialRunConfig) -> list[str]:
    training = config.training
    problems = []
    for name in ("rounds_per_phase", "local_epochs", "batch_size", "threads"):
        problems += at_least(f"training.{name}", getattr(training, name), 1)
    problems += positive("training.learning_rate", training.learning_rate)
    problems += at_least("training.weight_decay", training.weight_decay, 0)
    problems += at_least("training.max_grad_norm", training.max_grad_norm, 0)
    return problems


def _requests(config: SequentialRunConfig) -> list[str]:
    requests = config.requests
    problems = []
    problems += one_of("requests.kind", requests.kind, REQUEST_KINDS)
    problems += at_least("requests.records", requests.records, 0)
    problems += at_least("requests.limit", requests.limit, 0)
    problems += at_least("requests.burst", requests.burst, 1)
    problems += at_least("requests.skew", requests.skew, 0)
    problems += at_least("requests.repairs", requests.repairs, 0)
    if not 0.0 <= requests.repair_at <= 1.0:
        problems.append(f"requests.repair_at: {requests.repair_at} is not a share of the sequences, 0 to 1")
    return problems
