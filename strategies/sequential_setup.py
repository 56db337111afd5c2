"""The plan and the ledger of a FedSGT run: made, opened, or begun anew on what remains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from logging import INFO

from flwr.serverapp import Grid
from flwr.supercore import log

from fedforget.data.holdings import client_names
from fedforget.errors import PlanError
from fedforget.runs import RunDirectory
from fedforget.sequences import Slice
from fedforget.sequences.ledger import Ledger
from fedforget.sequential import protocol as words
from fedforget.sequential.config import SequentialRunConfig
from fedforget.sequential.plan import SequentialPlan, grouping_objectives, make_plan, reads_embeddings
from fedforget.sequential.run_ledger import open_ledger
from strategies.sequential_roles import Declared, Embeddings, ask_slices
from strategies.sequential_round import Snapshot

Regroup = Mapping[str, int | None]


class Setup:
    """Opens a run's ledger, and makes plans from what the clients declare.

    Parameters
    ----------
    grid : Grid
    config : SequentialRunConfig
    run : RunDirectory
    clients : mapping of client id to node id
    run_id : str
    timeout, poll : float
        Seconds for the clients' answers, and between two rounds of asking.
    """

    def __init__(
        self,
        grid: Grid,
        config: SequentialRunConfig,
        run: RunDirectory,
        clients: Mapping[str, int],
        run_id: str,
        timeout: float,
        poll: float,
    ) -> None:
        self._grid, self._config, self._run = grid, config, run
        self._clients, self._run_id = clients, run_id
        self._timeout, self._poll = timeout, poll

    def open(self, regroup: Regroup) -> tuple[Ledger, SequentialPlan]:
        """Return the run's ledger and the plan of its current generation.

        A ledger that is not there is created, with a plan for the slices that the clients declare.
        With ``regroup``, a generation is added first, unless that has been done already.
        """
        path, seed = self._run.ledger, self._config.seeds.training
        if not path.is_file():
            plan = self._first_plan()
            return Ledger.create(path, plan.groups, plan.sequences, seed), plan
        ledger = open_ledger(self._run)
        if regroup and ledger.generation() == regroup["generation"]:
            plan = self._next_plan(ledger, regroup)
            number = ledger.retrain(plan.groups, plan.sequences, seed)
            log(INFO, "Generation %d: what remains is grouped anew", number)
        return ledger, SequentialPlan.of(ledger.groups(), ledger.sequences())

    def _first_plan(self) -> SequentialPlan:
        if not reads_embeddings(self._config):
            return make_plan(self._config, self._ask().slices)
        found = self._ask(embeddings=True)
        return self._planned(self._config, found.slices, found.embeddings)

    def _next_plan(self, ledger: Ledger, regroup: Regroup) -> SequentialPlan:
        config = regrouped(self._config, regroup)
        slices = [Slice(*item) for item in ledger.remaining_slices()]
        if not slices:
            raise PlanError("no data is left in this run; there is nothing to retrain on")
        if not reads_embeddings(config):
            return make_plan(config, slices)
        before = SequentialPlan.of(ledger.groups(), ledger.sequences())
        left = {item.client_id for item in slices}  # the others have nothing to declare
        clients = {name: node for name, node in self._clients.items() if name in left}
        found = self._ask(Snapshot.of(ledger, before).without, embeddings=True, clients=clients)
        return self._planned(config, slices, found.embeddings)

    def _ask(
        self,
        without: Mapping[str, words.Without] | None = None,
        *,
        embeddings: bool = False,
        clients: Mapping[str, int] | None = None,
    ) -> Declared:
        """Ask the clients for their slices, and put on record who has data of its own."""
        found = ask_slices(
            self._grid,
            self._clients if clients is None else clients,
            self._config,
            self._run_id,
            without=without,
            embeddings=embeddings,
            timeout=self._timeout,
            poll=self._poll,
        )
        if found.own_data or self._run.own_data:
            asked = set(self._clients if clients is None else clients)
            kept = [name for name in self._run.own_data if name not in asked]
            self._run.update(own_data=sorted({*found.own_data, *kept}))
        return found

    def _planned(
        self, config: SequentialRunConfig, slices: list[Slice], points: Embeddings
    ) -> SequentialPlan:
        """Group by the embeddings, and put on record how much nearer to the global mean that is."""
        plan = make_plan(config, slices, points)
        self._run.update(grouping=grouping_objectives(config, plan, points))
        return plan


def departed(run: RunDirectory, config: SequentialRunConfig) -> set[str]:
    """Return the run's clients of whose data nothing is left, and who are needed no more."""
    if not run.ledger.is_file():
        return set()
    with open_ledger(run, read_only=True) as ledger:
        left = {client for client, _, _ in ledger.remaining_slices()}
    return set(client_names(config.data)) - left


def regrouped(config: SequentialRunConfig, regroup: Regroup) -> SequentialRunConfig:
    """Return the configuration with the numbers of groups and sequences of a new generation."""
    groups, sequences = regroup.get("groups"), regroup.get("sequences")
    if groups is not None:
        config = replace(config, grouping=replace(config.grouping, groups=groups))
    if sequences is not None:
        config = replace(config, sequences=replace(config.sequences, budget=sequences))
    return config
