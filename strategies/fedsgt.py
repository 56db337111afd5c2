"""FedSGT as a Flower strategy: one module per ordered prefix of groups, phase by phase."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from logging import INFO
from typing import TypeVar

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log
from torch import Tensor

from fedforget.errors import RunError
from fedforget.presets import to_yaml
from fedforget.run_metrics import export
from fedforget.runs import RunDirectory
from fedforget.sequences.ledger import Ledger
from fedforget.sequential.config import SequentialRunConfig
from fedforget.sequential.deletions import purge
from fedforget.sequential.modules import PrefixModule
from fedforget.sequential.plan import Prefix, SequentialPlan
from strategies.sequential_exchange import Exchange
from strategies.sequential_phase import Phase
from strategies.sequential_record import average, note_training, record
from strategies.sequential_roles import discover_clients
from strategies.sequential_round import Outbox
from strategies.sequential_setup import Regroup, Setup, departed
from strategies.sequential_spool import Request, ResultSpool

Shapes = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
Initial = Callable[[int], dict[str, Tensor]]
_Begun = TypeVar("_Begun")


class FedSGT(Strategy):
    """Sequential group training over a prefix tree (FedSGT), with a ledger of what was trained.

    Phase i trains the module of every prefix of i groups: all of them in the same rounds, one
    message per client and round. Each client trains on its records of the prefix's groups, on top
    of the frozen modules of the shorter prefixes; the results are averaged by number of examples.
    Modules are written to ``modules/`` under their hash and entered in ``ledger.sqlite``.

    Every client that holds data of a prefix is needed: where one is missing, the run ends with a
    :class:`RunError` that names it. Started again on the same run directory, the strategy trains
    what the ledger says is missing: after a crash, after a repair, or of a new generation. A
    deletion that comes meanwhile takes the modules of its group out of the training.

    Parameters
    ----------
    config : SequentialRunConfig
    run : RunDirectory
    shapes : mapping of str to (tuple of int, dtype)
        The tensors of a module.
    fingerprint : str
        The backbone's; clients with another one are refused.
    regroup : mapping, optional
        Begin a new generation: group what remains afresh, and train on that. ``generation`` is
        the one that it follows (nothing is done where that has been done already); ``groups`` and
        ``sequences``, where given, are used instead of the configuration's.
    poll : float
        Seconds between two rounds of asking for replies.
    initial : callable, optional
        Draws the tensors that a module of depth 1 begins with, from a seed, as clients do; for methods
        that compare with them.
    """

    def __init__(
        self,
        config: SequentialRunConfig,
        run: RunDirectory,
        shapes: Shapes,
        fingerprint: str,
        *,
        regroup: Regroup | None = None,
        poll: float = 0.2,
        initial: Initial | None = None,
    ) -> None:
        self.config = config
        self.run = run
        self.fingerprint = fingerprint
        self.regroup = dict(regroup or {})
        self.poll = poll
        self._initial = initial
        self.trained: list[Prefix] = []
        self.spool = ResultSpool(run.path / "spool", shapes)
        self.outbox = Outbox(run.path)
        if not run.record.get("run_id"):
            run.update(run_id=secrets.token_hex(8))
        self._run_id = str(run.record["run_id"])
        self._exchange = Exchange(
            self.spool, self.outbox, to_yaml(config), self._run_id, poll, lambda: run.own_data
        )
        self._ledger: Ledger | None = None
        self._plan: SequentialPlan | None = None
        self._phase: Phase | None = None

    @property
    def clients(self) -> dict[str, int]:
        """Node id by client id; found by :meth:`prepare`."""
        return self._exchange.clients

    @property
    def ledger(self) -> Ledger:
        """The run's ledger; opened by :meth:`prepare`."""
        return _begun(self._ledger)

    @property
    def plan(self) -> SequentialPlan:
        """The current generation's plan; made or read by :meth:`prepare`."""
        return _begun(self._plan)

    @property
    def phase(self) -> Phase:
        """The phase under way; begun by :meth:`configure_train`."""
        return _begun(self._phase)

    def initial(self, seed: int) -> dict[str, Tensor]:
        """Return the tensors that a module of depth 1 begins with.

        Raises
        ------
        RunError
            The strategy was made without a way to draw them.
        """
        if self._initial is None:
            raise RunError(f"{type(self).__name__} compares with initial modules; give it initial=")
        return self._initial(seed)

    def close(self) -> None:
        """Close the ledger."""
        if self._ledger is not None:
            self._ledger.close()

    def summary(self) -> None:
        """Log the strategy as a tree."""
        config = self.config
        log(INFO, "\t├──> Clients: %d, %d slices each", config.data.clients, config.data.slices)
        log(INFO, "\t├──> Groups: %d, %s", config.grouping.groups, config.grouping.method)
        log(INFO, "\t├──> Sequences: %d", config.sequences.budget)
        log(INFO, "\t├──> Module: %s and head", config.module.kind)
        log(INFO, "\t└──> Training: %d round(s) per phase, %d local epoch(s)",
            config.rounds_per_phase, config.training.local_epochs)  # fmt: skip

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 0,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Train every module that is due.

        Parameters
        ----------
        grid : Grid
        initial_arrays : ArrayRecord, optional
            Not sent: every client loads the same frozen backbone by itself.
        num_rounds : int
            0, or the plan's own number: phases times rounds per phase.
        timeout : float, optional
            Seconds for the replies of one round; ``config.simulation.timeout`` by default.
        train_config, evaluate_config : ConfigRecord, optional
            Not used.
        evaluate_fn : callable, optional
            Called after the last phase with its round.

        Returns
        -------
        Result
            Figures of each round. The modules are in the run's directory.

        Raises
        ------
        RunError
            A client is missing, failed, or sent what cannot be averaged; names each and why.
        """
        del train_config, evaluate_config
        timeout = self.config.simulation.timeout if timeout is None else timeout
        arrays = ArrayRecord() if initial_arrays is None else initial_arrays
        started = time.monotonic()
        log(INFO, "Starting %s:", type(self).__name__)
        self.summary()
        result = Result()
        self.prepare(grid, timeout)
        rounds = self.plan.tree.max_depth * self.config.rounds_per_phase
        if num_rounds not in (0, rounds):
            raise RunError(f"this plan takes {rounds} rounds, not {num_rounds}; set num_rounds=0")
        self.train_due(grid, timeout, rounds, result)
        if self.trained or self._exchange.traffic["rounds"]:
            self._exchange.release(grid, timeout)
        shutil.rmtree(self.spool.folder, ignore_errors=True)
        purge(self.run, self.ledger)
        if evaluate_fn and (metrics := evaluate_fn(rounds, arrays)) is not None:
            result.evaluate_metrics_serverapp[rounds] = metrics
        seconds = time.monotonic() - started
        note_training(self.run, self.ledger, len(self.trained), seconds, self._exchange.traffic)
        log(INFO, "%d modules trained in %.1f s", len(self.trained), seconds)
        return result

    def train_due(self, grid: Grid, timeout: float, rounds: int, result: Result) -> None:
        """Go through all rounds, and train in each what is due in it."""
        for server_round in range(1, rounds + 1):
            self.configure_train(server_round, ArrayRecord(), ConfigRecord(), grid)
            if not self.phase.keys:
                continue
            self._exchange.collect(grid, timeout)
            _, metrics = self.aggregate_train(server_round, [])
            if metrics is not None:
                result.train_metrics_clientapp[server_round] = metrics
            export(self.run, self._exchange.traffic)

    def prepare(self, grid: Grid, timeout: float) -> None:
        """Find the clients, and open the ledger; a new one is created with a plan for their slices."""
        self._exchange.clients = discover_clients(
            grid,
            self.config,
            self.fingerprint,
            timeout=timeout,
            poll=self.poll,
            departed=departed(self.run, self.config),
        )
        self._ledger, self._plan = self.setup(grid, timeout).open(self.regroup)
        tree = self.plan.tree
        log(INFO, "Plan: %d groups, %d sequences, %d modules, %d phases",
            len(self.plan.groups), len(self.plan.sequences), len(tree), tree.max_depth)  # fmt: skip

    def setup(self, grid: Grid, timeout: float) -> Setup:
        """Return what opens the ledger and makes plans."""
        return Setup(grid, self.config, self.run, self.clients, self._run_id, timeout, self.poll)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return this round's messages: one per client that has data for a module that is due.

        Results that are on disk from an interrupted attempt are not asked for again.
        """
        del arrays, config, grid
        per_phase = self.config.rounds_per_phase
        depth, step = (server_round - 1) // per_phase + 1, (server_round - 1) % per_phase + 1
        if step == 1:
            self._phase = Phase(self.ledger, self.plan, depth, self.outbox)
        phase = self.phase
        requests = phase.ask(step, self.config)
        if not phase.keys:
            self._exchange.clear()
            return []
        self._exchange.ask(requests, phase.snapshot.without, phase.cacheable())
        log(INFO, "[PHASE %d, ROUND %d/%d] %d modules, %d clients",
            depth, step, per_phase, len(phase.keys), len(self._exchange.asked))  # fmt: skip
        return self._exchange.messages()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Keep the replies that are given, average each module, and in a phase's last round record it.

        Raises
        ------
        RunError
            A result is missing or not usable; names each client and why.
        """
        phase = self.phase
        self._exchange.complete(replies, phase.asked)
        last = server_round % self.config.rounds_per_phase == 0
        examples = 0
        for prefix, requests in phase.requests.items():
            module, count = average(self.spool, prefix, requests)
            examples += count
            self.averaged(server_round, module, requests)
            if not last:
                phase.hold(module)
                continue
            names = [one.client_id for one in requests]
            if record(self.run, self.ledger, module, phase.keys[prefix], names, count):
                self.trained.append(prefix)
            self.spool.remove(requests)
        if last:
            phase.end()
        return None, MetricRecord(
            {"modules": len(phase.keys), "clients": len(self._exchange.asked), "examples": examples}
        )

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Ask nothing: what is served is measured by the server, on the test records."""
        del server_round, arrays, config, grid
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return nothing; see :meth:`configure_evaluate`."""
        del server_round, replies
        return None

    def averaged(self, server_round: int, module: PrefixModule, requests: list[Request]) -> None:
        """Be told of a module as it was averaged, while the clients' results are in the spool."""


def _begun(value: _Begun | None) -> _Begun:
    if value is None:
        raise RunError("the strategy has not been started; call start or prepare first")
    return value
