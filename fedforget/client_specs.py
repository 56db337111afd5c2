"""Logical clients, as the groups of a configuration are expanded to them."""

from __future__ import annotations

from dataclasses import dataclass

from fedforget.config import ClientGroup


@dataclass(frozen=True)
class ClientSpec:
    """One logical client, expanded from a :class:`ClientGroup`.

    Attributes
    ----------
    id : str
        ``<role>-<domain>-<shard>``.
    role, domain : str
        As in the group.
    shard, num_shards : int
        Which disjoint part of the domain's training data is this client's.
    path : str
        The client's own data file, or empty for the family's.
    max_examples : int
        0 for no limit.
    retain_domain : str
        The retain domain that a forget client holds a shard of as well, or empty.
    partition : str
        ``iid``, ``contiguous`` or ``dirichlet``.
    dirichlet_alpha : float
        Of the Dirichlet partition.
    """

    id: str
    role: str
    domain: str
    shard: int
    num_shards: int
    path: str = ""
    max_examples: int = 0
    retain_domain: str = ""
    partition: str = "iid"
    dirichlet_alpha: float = 0.3


def expand_clients(groups: list[ClientGroup]) -> list[ClientSpec]:
    """Expand client groups to logical clients, ordered by id."""
    specs = [
        ClientSpec(
            id=f"{group.role}-{group.domain}-{shard}",
            role=group.role,
            domain=group.domain,
            shard=shard,
            num_shards=group.count,
            path=group.path,
            max_examples=group.max_examples,
            retain_domain=group.retain_domain,
            partition=group.partition,
            dirichlet_alpha=group.dirichlet_alpha,
        )
        for group in groups
        for shard in range(group.count)
    ]
    return sorted(specs, key=lambda spec: spec.id)
