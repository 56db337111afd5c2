"""Who holds which records: the partition over clients, their slices, and what is left after deletions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from fedforget.data.corpora import load_corpus
from fedforget.data.partition import dirichlet, iid
from fedforget.data.records import Records, joined
from fedforget.errors import DataError, nearest
from fedforget.seeds import derive_seed
from fedforget.sequences import Slice
from fedforget.sequential.config import RecordsConfig, SequentialRunConfig

Holdings = dict[str, dict[int, tuple[str, ...]]]
"""Client id -> slice number -> record ids."""

Deleted = Mapping[int, Collection[str] | None]
"""Slice number -> the records deleted from it; None for all of them."""


@dataclass(frozen=True, eq=False)
class ClientRecords:
    """What one client holds, by slice. Data that were left out are not reachable from it."""

    client_id: str
    slices: dict[int, Records]

    def records(self, slices: Iterable[int]) -> Records:
        """Return the records of some slices together, ordered by id; slices left out or emptied add none.

        Raises
        ------
        DataError
            None of the slices has a record.
        """
        parts = [self.slices[i] for i in sorted(set(slices)) if i in self.slices and len(self.slices[i])]
        if not parts:
            raise DataError(f"client {self.client_id!r}: none of the slices asked for holds a record")
        return joined(parts)

    def size(self, slices: Iterable[int]) -> int:
        """Return how many records some slices hold together."""
        return sum(len(self.slices[i]) for i in set(slices) if i in self.slices)

    def declared(self) -> list[Slice]:
        """Return what the client tells the server: its slices and their sizes; empty ones left out."""
        return [Slice(self.client_id, i, len(part)) for i, part in sorted(self.slices.items()) if len(part)]


def client_names(cfg: RecordsConfig) -> list[str]:
    """Return the ids of all clients, in order."""
    if cfg.names:
        return sorted(cfg.names)
    width = max(2, len(str(cfg.clients - 1)))
    return [f"client-{i:0{width}d}" for i in range(cfg.clients)]


def holdings(cfg: RecordsConfig, federated: Records, seed: int) -> Holdings:
    """Spread records over clients, and each client's over its slices.

    It reads ids and, for the Dirichlet partition, labels. Deletions never change it: it is always
    made from all federated records, and what was deleted is left out afterwards.

    Parameters
    ----------
    cfg : RecordsConfig
        ``clients``, ``slices``, ``partition``, ``dirichlet_alpha``.
    federated : Records
        All of them.
    seed : int
        Data seed.

    Raises
    ------
    DataError
        There are too few records for that many clients and slices.
    """
    names = client_names(cfg)
    if len(federated) < cfg.clients * cfg.slices:
        raise DataError(
            f"{len(federated)} federated records cannot fill {cfg.clients} clients' {cfg.slices} slices "
            "each; lower data.clients or data.slices"
        )
    partition_seed = derive_seed(seed, "records", "clients")
    if cfg.partition == "iid":
        parts = iid(len(federated), cfg.clients, partition_seed)
    else:
        parts = dirichlet(
            federated.labels.tolist(),
            cfg.clients,
            cfg.dirichlet_alpha,
            partition_seed,
            min_examples=cfg.slices,
        )
    return {
        name: cut([federated.ids[i] for i in part], cfg.slices, derive_seed(seed, "records", "slices", name))
        for name, part in zip(names, parts, strict=True)
    }


def cut(ids: Iterable[str], num_slices: int, seed: int) -> dict[int, tuple[str, ...]]:
    """Cut one client's records into slices whose sizes differ by at most one.

    Parameters
    ----------
    ids : iterable of str
        In any order; the slices do not depend on it.
    num_slices : int
        S.
    seed : int
        Of the permutation.
    """
    ordered = sorted(ids)
    return {
        i: tuple(sorted(ordered[j] for j in part))
        for i, part in enumerate(iid(len(ordered), num_slices, seed))
    }


def client_records(
    config: SequentialRunConfig,
    client_id: str,
    *,
    slices: Collection[int] | None = None,
    without: Deleted | None = None,
    federated: Records | None = None,
) -> ClientRecords:
    """Build what one client holds, and nothing else.

    Parameters
    ----------
    config : SequentialRunConfig
        ``data`` and ``seeds.data`` say who holds what.
    client_id : str
        One of :func:`client_names`.
    slices : collection of int, optional
        Keep these alone; all by default.
    without : mapping, optional
        Records to leave out, by slice; None as a value leaves the slice out.
    federated : Records, optional
        All federated records, where they are loaded already.

    Raises
    ------
    DataError
        There is no such client or slice, or the data cannot be loaded.
    """
    if federated is None:
        federated = load_corpus(config.data, config.seeds.data).federated
    held = holdings(config.data, federated, config.seeds.data)
    if client_id not in held:
        raise DataError(
            f"there is no client {client_id!r}{nearest(client_id, held)}; data.clients is {len(held)}"
        )
    kept = remaining(held[client_id], slices, without or {}, client_id)
    return ClientRecords(client_id, {i: federated.subset(ids) for i, ids in kept.items()})


def remaining(
    held: Mapping[int, tuple[str, ...]], slices: Collection[int] | None, without: Deleted, client_id: str
) -> dict[int, tuple[str, ...]]:
    """Return the record ids of the wanted slices that were not deleted.

    Raises
    ------
    DataError
        A slice that the client does not have.
    """
    for i in [*(slices or ()), *without]:
        if i not in held:
            raise DataError(
                f"client {client_id!r}: there is no slice {i}; it has slices 0 to {len(held) - 1}"
            )
    kept: dict[int, tuple[str, ...]] = {}
    for i, ids in held.items():
        gone = without.get(i, ())
        if (slices is None or i in slices) and gone is not None:
            kept[i] = tuple(name for name in ids if name not in set(gone))
    return kept
