"""What a configuration can get wrong about its method: FedCIO's clusters, SISA's shards, and the like."""

from __future__ import annotations

from fedforget.checks.ranges import at_least, one_of, positive
from fedforget.errors import nearest
from fedforget.sequential.config import METHODS, SequentialRunConfig

ALGORITHMS = ("kmeans", "agglomerative", "spectral")
METRICS = ("cosine", "euclidean")
AGGREGATIONS = ("predictions", "parameters")


def method_contradictions(config: SequentialRunConfig) -> list[str]:
    """Return one sentence per value out of range and per contradiction; empty if there is none."""
    if config.method not in METHODS:
        hint = nearest(config.method, METHODS)
        return [f"method: {config.method!r} is not one of {', '.join(METHODS)}{hint}"]
    return [*_clustering(config), *_shards(config), *_approximate(config)]


def _clustering(config: SequentialRunConfig) -> list[str]:
    clustering, fedcio = config.clustering, config.method == "fedcio"
    problems = []
    problems += one_of("clustering.algorithm", clustering.algorithm, ALGORITHMS)
    problems += one_of("clustering.metric", clustering.metric, METRICS)
    problems += one_of("clustering.aggregation", clustering.aggregation, AGGREGATIONS)
    problems += at_least("clustering.clusters", clustering.clusters, 1)
    problems += at_least("clustering.rounds", clustering.rounds, 1)
    if fedcio and clustering.clusters > config.data.clients:
        problems.append(
            f"clustering.clusters: {config.data.clients} clients cannot form {clustering.clusters} clusters; "
            "ask for fewer clusters"
        )
    if fedcio and clustering.aggregation == "parameters" and config.module.kind == "dora":
        problems.append(
            "clustering.aggregation: the parameters of dora modules have no average that is a module; "
            "choose predictions, or module.kind lora or ia3"
        )
    return problems


def _shards(config: SequentialRunConfig) -> list[str]:
    shards, groups = config.sequences.shards, config.grouping.groups
    problems = at_least("sequences.shards", shards, 0)
    if shards > 0 and groups % shards:
        problems.append(
            f"sequences.shards: {groups} groups cannot be cut into {shards} shards of equal length; "
            "make grouping.groups a multiple of it"
        )
    if shards > 0 and config.sequences.prior:
        problems.append("sequences.prior: has no effect on shards; leave one of the two out")
    return problems


def _approximate(config: SequentialRunConfig) -> list[str]:
    ascent, calibration = config.ascent, config.calibration
    problems = []
    problems += at_least("training.rounds", config.training.rounds, 1)
    problems += at_least("calibration.interval", calibration.interval, 1)
    problems += at_least("calibration.local_epochs", calibration.local_epochs, 1)
    problems += at_least("ascent.epochs", ascent.epochs, 1)
    problems += at_least("ascent.batch_size", ascent.batch_size, 1)
    problems += at_least("ascent.rounds", ascent.rounds, 0)
    problems += at_least("ascent.radius", ascent.radius, 0)
    problems += at_least("ascent.max_grad_norm", ascent.max_grad_norm, 0)
    problems += positive("ascent.learning_rate", ascent.learning_rate)
    return problems
