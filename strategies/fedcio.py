"""FedCIO (Qiu et al. 2023): clusters of clients, trained in isolation, aggregated once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from logging import INFO
from typing import Any

from flwr.serverapp import Grid
from flwr.supercore import log
from torch import Tensor

from fedforget.errors import PlanError
from fedforget.sequences import Slice
from fedforget.sequences.ledger import Ledger
from fedforget.sequential import protocol as words
from fedforget.sequential.clustering import cluster_clients
from fedforget.sequential.plan import SequentialPlan, clustered_plan
from fedforget.sequential.training import common_seed
from strategies.fedsgt import FedSGT
from strategies.sequential_exchange import Exchange
from strategies.sequential_round import Snapshot
from strategies.sequential_setup import Regroup, Setup
from strategies.similarity import client_updates


class FedCIO(FedSGT):
    """Clients clustered by their updates; each cluster trains a module of its own for T rounds.

    All clients train together for T_cluster rounds (``clustering.rounds``), their updates are
    clustered, and what was trained is dropped. Then every cluster trains alone, from an initial module
    that is drawn from the run's seed and common to all. Serving averages the clusters' predictions, or
    their parameters (``clustering.aggregation``). A deletion takes its cluster out of service
    until ``fedforget repair`` has trained it again without the data; the other clusters keep serving.

    Exactness holds *given the clustering*: a cluster that was repaired is bit-identical to one that
    never had the deleted data and has the same clients, and no tensor of the clustering stage is used
    again. Which clients share a cluster was read from updates that the deleted data took part in, and
    a repair leaves it as it is. ``fedforget retrain`` clusters anew, on what remains.

    Parameters as for :class:`strategies.fedsgt.FedSGT`; ``initial`` is needed.
    """

    def summary(self) -> None:
        """Log the strategy as a tree."""
        config, how = self.config, self.config.clustering
        log(INFO, "\t├──> Clients: %d, %d slices each", config.data.clients, config.data.slices)
        log(INFO, "\t├──> Clusters: %d, %s of %s similarity after %d round(s)",
            how.clusters, how.algorithm, how.metric, how.rounds)  # fmt: skip
        log(INFO, "\t├──> Module: %s and head", config.module.kind)
        log(INFO, "\t└──> Training: %d round(s), %d local epoch(s)",
            config.training.rounds, config.training.local_epochs)  # fmt: skip

    def setup(self, grid: Grid, timeout: float) -> Setup:
        """Return what opens the ledger, and clusters the clients where there is no plan yet."""
        return _Clusters(
            grid,
            self.config,
            self.run,
            self.clients,
            self._run_id,
            timeout,
            self.poll,
            exchange=self._exchange,
            initial=self.initial,
        )


class _Clusters(Setup):
    """Makes plans of the clusters that the clients' updates form."""

    def __init__(self, *args: Any, exchange: Exchange, initial: Callable[[int], dict[str, Tensor]]) -> None:
        super().__init__(*args)
        self._exchange, self._initial = exchange, initial

    def _first_plan(self) -> SequentialPlan:
        return self._clustered(self._ask().slices, {})

    def _next_plan(self, ledger: Ledger, regroup: Regroup) -> SequentialPlan:
        slices = [Slice(*item) for item in ledger.remaining_slices()]
        if not slices:
            raise PlanError("no data is left in this run; there is nothing to retrain on")
        if (clusters := regroup.get("groups")) is not None:
            clustering = replace(self._config.clustering, clusters=clusters)
            self._config = replace(self._config, clustering=clustering)
        before = SequentialPlan.of(ledger.groups(), ledger.sequences())
        return self._clustered(slices, Snapshot.of(ledger, before).without)

    def _clustered(self, slices: list[Slice], without: Mapping[str, words.Without]) -> SequentialPlan:
        config, how = self._config, self._config.clustering
        clients = len({item.client_id for item in slices})
        if clients < how.clusters:  # before any client trains for nothing
            raise PlanError(
                f"clustering.clusters: {clients} clients cannot form {how.clusters} clusters; "
                "ask for fewer clusters"
            )
        initial = self._initial(common_seed(config.seeds.training))
        updates = client_updates(self._grid, self._exchange, config, slices, without, initial, self._timeout)
        clusters = cluster_clients(
            updates,
            how.clusters,
            algorithm=how.algorithm,
            metric=how.metric,
            seed=config.seeds.grouping,
        )
        for i, names in enumerate(clusters):
            log(INFO, "\tcluster %d: %s", i, ", ".join(names))
        self._run.update(clusters=clusters)
        return clustered_plan(clusters, slices)
