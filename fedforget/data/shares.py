"""Which of a family's examples each client holds."""

from __future__ import annotations

from fedforget.client_specs import ClientSpec
from fedforget.config import ClientGroup, RunConfig
from fedforget.data.benchmark import source_of
from fedforget.data.examples import SPLITS, Data, Example, interleave
from fedforget.data.jsonl import JsonlData
from fedforget.data.own_tables import own_file
from fedforget.data.partition import contiguous, dirichlet, iid
from fedforget.data.registry import load_data
from fedforget.errors import DataError
from fedforget.seeds import derive_seed


def client_examples(config: RunConfig, spec: ClientSpec) -> list[Example]:
    """Return one client's training examples.

    The examples come from ``spec.path`` where the client has a file of its own, else from the
    configured family. The clients of a group hold disjoint shards that together are all of the
    domain's training data; a shard never splits a fact. Sizes differ by at most one fact (elsewhere,
    one row), unless the partition is skewed by labels.

    Parameters
    ----------
    config : RunConfig
        The run; ``seeds.data`` decides the shards.
    spec : ClientSpec
        The client.

    Returns
    -------
    list of Example
        At least one, at most ``spec.max_examples`` where that is not 0. Each fact comes once
        before any comes in a second wording, so a prefix covers as many facts as it can.

    Raises
    ------
    DataError
        Names the client: its file is malformed, or it has no examples.
    """
    return _share(config, spec, spec.domain, spec.role)


def client_retain_examples(config: RunConfig, spec: ClientSpec) -> list[Example]:
    """Return the retain data that a forget client holds as well: its shard of ``spec.retain_domain``.

    Otherwise as :func:`client_examples`; empty where the client names no retain domain.
    """
    return _share(config, spec, spec.retain_domain, "retain") if spec.retain_domain else []


def unasked(config: RunConfig, data: Data) -> list[str]:
    """Return the clients' domains that nothing is asked of: data that users bring may hold no questions."""
    return sorted({group.domain for group in config.clients if _silent(group, data)})


def _silent(group: ClientGroup, data: Data) -> bool:
    source = source_of(data, group.domain)
    if isinstance(source, JsonlData):
        return not any(source.questions(group.domain, group.role, split) for split in SPLITS)
    return source is None and bool(group.path)


def _share(config: RunConfig, spec: ClientSpec, domain: str, role: str) -> list[Example]:
    seed = config.seeds.data
    try:
        data = own_file(spec.path, config.data, seed, domain) if spec.path else load_data(config.data, seed)
        units = data.units(domain, role)
    except DataError as error:
        raise DataError(f"client {spec.id!r}: {error}") from error
    if not 0 <= spec.shard < spec.num_shards:
        raise DataError(f"client {spec.id!r}: shard {spec.shard} is not one of 0 to {spec.num_shards - 1}")
    shards = _shards(units, spec, domain, derive_seed(seed, "data", domain, "shards"))
    examples = interleave([units[i] for i in shards[spec.shard]])
    if not examples:
        raise DataError(
            f"client {spec.id!r} has no examples: domain {domain!r} holds {len(units)} for role "
            f"{role!r}, shared by {spec.num_shards} clients; lower the group's count or add data"
        )
    return examples[: spec.max_examples] if spec.max_examples else examples


def _shards(units: list[list[Example]], spec: ClientSpec, domain: str, seed: int) -> list[list[int]]:
    if spec.partition == "contiguous":
        return contiguous(len(units), spec.num_shards)
    if spec.partition == "iid":
        return iid(len(units), spec.num_shards, seed)
    labels = [unit[0].label for unit in units]
    if not all(labels):
        raise DataError(
            f"client {spec.id!r}: the examples of domain {domain!r} have no labels to skew a Dirichlet "
            "partition by; take partition: iid"
        )
    try:
        return dirichlet(labels, spec.num_shards, spec.dirichlet_alpha, seed)
    except DataError as error:
        raise DataError(f"client {spec.id!r}: {error}") from error
