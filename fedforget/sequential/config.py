"""The typed configuration of a FedSGT run, or of a baseline: what a preset with ``kind: fedsgt`` may say."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedforget.config import DeploymentConfig, SimulationConfig

KIND = "fedsgt"

METHODS = ("fedsgt", "fedavg", "fedretrain", "fedcio", "federaser", "gradient_ascent")
APPROXIMATE = ("federaser", "gradient_ascent")
"""Methods after whose recovery what serves may still depend on what was deleted."""


@dataclass
class PretrainConfig:
    """The small encoders that the project trains itself, on public records alone (no download)."""

    layers: int = 2
    width: int = 32
    heads: int = 2
    patch: int = 2  # digits-vit: pixels per side of a patch of the 8 x 8 images
    steps: int = 150  # 0 leaves the random initialisation: for tests of the plumbing alone
    batch_size: int = 32
    learning_rate: float = 2.0e-3


@dataclass
class ClassifierConfig:
    """The frozen classifier below every module."""

    # "digits-vit" or "statements-encoder" (trained once from a seed, see the section below), a hub
    # id, or a local directory of a transformers model.
    path: str = "digits-vit"
    revision: str | None = None
    precision: str = "fp32"  # fp32, or bf16: computes in bfloat16, weights and modules stay fp32
    device: str = "auto"  # auto takes the GPU that Flower gave the client, else CUDA, MPS, CPU
    image_size: int = 0  # pixels per side; 0: the model's own
    max_length: int = 128  # tokens per text
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)


@dataclass
class ModuleConfig:
    """The module that each phase trains: an adapter and a classification head."""

    kind: str = "lora"  # lora, dora or ia3
    r: int = 8  # lora, dora
    alpha: float = 16.0  # lora, dora
    dropout: float = 0.0  # lora, dora
    targets: list[str] = field(default_factory=lambda: ["q_proj", "v_proj"])
    layers: list[int] = field(default_factory=list)  # blocks of the encoder, from 0; empty means all
    # ia3: those of the targets whose input is scaled instead of their output
    feedforward: list[str] = field(default_factory=list)
    # How the head of a module of depth 1 begins: "backbone" copies the frozen classifier's own
    # head (trained on public data), "seeded" draws it from the prefix's seed. At greater depths it
    # begins as the head of the prefix without its last group.
    head: str = "seeded"


@dataclass
class ColumnsConfig:
    """Column names of a data set that is read through ``datasets``; empty: the family's own."""

    id: str = ""
    image: str = ""
    text: str = ""
    text_pair: str = ""
    label: str = ""


@dataclass
class RecordsConfig:
    """The records, and how clients and slices share them."""

    # digits (scikit-learn's), statements (plain facts of fedforget.data, by subject), cifar10, cifar100,
    # sst2, qqp, qnli, mnli, or images / texts (any data set; give path and columns).
    family: str = "digits"
    # Hub id or local path (a directory or a file of parquet, json or csv); empty: the family's hub id.
    path: str = ""
    subset: str = ""  # configuration name on the hub, e.g. sst2; empty: the family's own
    train_split: str = "train"
    test_split: str = ""  # empty: the family's own
    columns: ColumnsConfig = field(default_factory=ColumnsConfig)
    max_records: int = 0  # of the federated records, drawn with the data seed; 0: all
    clients: int = 10
    # Ids of the clients, as deployed nodes declare them, e.g. [hospital-a, hospital-b]; empty: client-00, ...
    names: list[str] = field(default_factory=list)
    slices: int = 5  # S, per client
    partition: str = "iid"  # iid or dirichlet (label skew)
    dirichlet_alpha: float = 0.3


@dataclass
class GroupingConfig:
    """How slices form groups: FedSGT, section 4.1."""

    method: str = "random"  # random or barycentre (reads embeddings of the data)
    groups: int = 6  # L
    client_budget: int = 0  # B_i, the most groups one client may be in; 0: no limit


@dataclass
class SequencesConfig:
    """Which orders of the groups are trained: FedSGT, section 4.2."""

    budget: int = 6  # B
    # Disjoint chains of consecutive groups instead of B orders of all groups: SISA's shards, of
    # groups / shards slices each. 0: the paper's orders.
    shards: int = 0
    prior: list[float] = field(default_factory=list)  # per group, relative odds of a deletion; empty: none


@dataclass
class LocalTrainingConfig:
    """What a client does in one round for one module."""

    rounds_per_phase: int = 1
    rounds: int = 10  # T: rounds of the methods without phases, which are all but fedsgt
    local_epochs: int = 3  # E
    batch_size: int = 16
    learning_rate: float = 5.0e-3  # falls linearly to zero over the client's steps
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0  # 0: no clipping
    # Bits depend on the number of threads, so it is part of the configuration, not of the machine.
    threads: int = 1


@dataclass
class ClusteringConfig:
    """FedCIO: how clients are clustered, and how the clusters' models answer together."""

    clusters: int = 5  # c
    algorithm: str = "kmeans"  # kmeans, agglomerative or spectral
    metric: str = "cosine"  # between clients' flattened updates: cosine or euclidean
    rounds: int = 2  # T_cluster: rounds of all clients together that the similarities come from
    aggregation: str = "predictions"  # average the clusters' predictions, or their parameters


@dataclass
class CalibrationConfig:
    """FedEraser (approximate): which updates are stored, and how they are calibrated."""

    interval: int = 2  # of the training's rounds, one in so many is stored
    local_epochs: int = 1  # of a calibration round; the training's times the paper's ratio r


@dataclass
class AscentConfig:
    """Gradient-ascent unlearning (approximate)."""

    epochs: int = 10  # over the deleted records
    learning_rate: float = 5.0e-2  # of plain SGD; smaller ones leave the loss as it was on digits
    batch_size: int = 16
    max_grad_norm: float = 5.0  # 0: no clipping
    # l2 distance from the reference that the ascent may not leave; 0: a third of the reference's mean
    # distance to ten freshly drawn modules.
    radius: float = 0.0
    rounds: int = 1  # of ordinary training afterwards, on what remains


@dataclass
class ServingConfig:
    """Which sequences answer after deletions: FedSGT, section 4.3."""

    rule: str = "AllSeq"  # AllSeq, MinSeq or LongSeq
    batch_size: int = 128  # rows per pass; in a batched pass an input is one row per prefix


@dataclass
class RequestsConfig:
    """The stream of deletion requests that demonstrations and experiments send."""

    # uniform (independent, with repetition over slices: the paper's), bursts (runs from one client), skewed
    # (some clients ask more), withdrawal (whole clients), adversarial (the group most sequences begin with)
    kind: str = "uniform"
    records: int = 5  # records of one slice that each request names (the paper's: 100); 0: the slice
    limit: int = 0  # stop after so many requests; 0: until service ends
    burst: int = 5  # bursts: requests in a run
    skew: float = 1.0  # skewed: odds of the client of rank i are 1 / i ** skew
    # The demonstration's second course, on a copy of the trained run: it is repaired when this share of
    # the sequences serves nothing, at most so many times. 0 for either leaves it out.
    repair_at: float = 0.5
    repairs: int = 2
    file: str = ""  # replay this file (one JSON object a line) instead of drawing


@dataclass
class SequentialSeedsConfig:
    """Roots that every random draw is derived from, each for its own purpose."""

    data: int = 0
    model: int = 0
    grouping: int = 0
    training: int = 0
    requests: int = 0


@dataclass
class SequentialRunConfig:
    """One run of FedSGT, or of a method that it is compared with."""

    kind: str = KIND
    name: str = "fedsgt"
    method: str = "fedsgt"  # fedsgt, fedavg, fedretrain, fedcio, federaser or gradient_ascent
    model: ClassifierConfig = field(default_factory=ClassifierConfig)
    module: ModuleConfig = field(default_factory=ModuleConfig)
    data: RecordsConfig = field(default_factory=RecordsConfig)
    grouping: GroupingConfig = field(default_factory=GroupingConfig)
    sequences: SequencesConfig = field(default_factory=SequencesConfig)
    training: LocalTrainingConfig = field(default_factory=LocalTrainingConfig)
    clustering: ClusteringConfig = field(default_factory=ClusteringConfig)
    calibration: CalibrationConfig = field(default_factory=CalibrationConfig)
    ascent: AscentConfig = field(default_factory=AscentConfig)
    serving: ServingConfig = field(default_factory=ServingConfig)
    requests: RequestsConfig = field(default_factory=RequestsConfig)
    simulation: SimulationConfig = field(default_factory=SimulationConfig)
    deployment: DeploymentConfig = field(default_factory=DeploymentConfig)
    seeds: SequentialSeedsConfig = field(default_factory=SequentialSeedsConfig)

    @property
    def rounds_per_phase(self) -> int:
        """Rounds that each module is trained for."""
        return self.training.rounds_per_phase if self.method == "fedsgt" else self.training.rounds
