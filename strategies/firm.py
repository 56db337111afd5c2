"""FIRM as a Flower strategy: one round, one summary per client, then a merge and a projection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from logging import INFO

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log

from fedforget import protocol
from fedforget.client_specs import ClientSpec
from fedforget.codecs import instructions
from fedforget.config import RunConfig
from fedforget.errors import RunError
from fedforget.presets import to_yaml
from fedforget.run_metrics import export
from fedforget.runs import RunDirectory
from fedforget.updates import needs_fisher
from strategies.dispatch import Task, dispatch, raise_failures, storing, take
from strategies.records import mean_losses, timed, update_record
from strategies.roles import GONE, Assignment, check_codecs, discover, without_failed
from strategies.spool import Spool
from strategies.spool_merge import merge_spool
from strategies.two_phase import second_phase


class Firm(Strategy):
    """Fisher-weighted merging of task vectors, with a retention projection (FIRM).

    Every client is asked once; its summary is checked and spooled to the run directory as it
    arrives, then the spool is merged tensor by tensor. The other merge methods are this strategy
    with another ``config.merge.method``: they see the same summaries.

    Where a client is missing or sends something unusable, ``config.quorum`` decides: by default every
    client is needed, and the run ends with a :class:`RunError` that names it. Otherwise the round goes
    on without it, and ``run.json`` says who was left out and why. Started again on the same run
    directory, it asks only the clients whose summaries are not there yet.

    Parameters
    ----------
    config : RunConfig
    run : RunDirectory
        Where summaries, the merged update and the records of the round are written.
    shapes : mapping of str to tuple of int
        The backbone's adapted weights.
    fingerprint : str
        The backbone's; clients with another one are refused.
    norms : mapping of str to float, optional
        Norms of the backbone's adapted weights, which task vectors are compared with.
    poll : float
        Seconds between two rounds of asking for replies.
    keep_arrays : bool
        Return the merged update in :attr:`Result.arrays` too; otherwise it is on disk alone.
    evaluate_clients : bool
        Ask the clients for their own loss with the merged update applied.

    Attributes
    ----------
    assignments : list of Assignment
        The clients that take part.
    left_out : dict of str to str
        Why a client, or a node that did not say whose it is, does not.
    """

    def __init__(
        self,
        config: RunConfig,
        run: RunDirectory,
        shapes: Mapping[str, tuple[int, ...]],
        fingerprint: str,
        *,
        norms: Mapping[str, float] | None = None,
        poll: float = 0.2,
        keep_arrays: bool = True,
        evaluate_clients: bool = False,
    ) -> None:
        self.config = config
        self.run = run
        self.shapes = dict(shapes)
        self.fingerprint = fingerprint
        self.poll = poll
        self.keep_arrays = keep_arrays
        self.evaluate_clients = evaluate_clients
        self.assignments: list[Assignment] = []
        self.left_out: dict[str, str] = {}
        self._text = to_yaml(config)
        self._asked: list[Task] = []
        limit = config.communication.norm_limit
        largest = {name: limit * norm for name, norm in (norms or {}).items() if limit}
        self.spool = Spool(
            run.summaries, self.shapes, fingerprint, needs_fisher(config.merge.method), largest
        )

    def summary(self) -> None:
        """Log the strategy as a tree."""
        merge, config = self.config.merge, self.config
        roles = {
            role: sum(g.count for g in config.clients if g.role == role) for role in ("forget", "retain")
        }
        budget = f"{merge.epsilon:g}"
        if merge.epsilon_fraction:
            budget = f"{merge.epsilon_fraction:g} of the damage at gamma {merge.epsilon_gamma:g}"
        log(INFO, "\t├──> Clients: %d forget, %d retain", roles["forget"], roles["retain"])
        log(
            INFO,
            "\t├──> Summary: %d weights, Fisher of %d sequences",
            len(self.shapes),
            config.fisher.num_sequences,
        )
        log(INFO, "\t├──> Merge: %s", merge.method)
        log(INFO, "\t│\t├── gamma: %g", merge.gamma)
        log(INFO, "\t│\t├── alpha: %g", merge.alpha)
        log(INFO, "\t│\t└── further parameters: %s", dict(merge.parameters) or "none")
        log(INFO, "\t└──> Projection: epsilon %s, solver %s", budget, merge.solver)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 1,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the round.

        Unlike the base class, this takes replies one at a time, and an error ends the run.

        Parameters
        ----------
        grid : Grid
        initial_arrays : ArrayRecord, optional
            Not sent: every client loads the same pretrained backbone by itself.
        num_rounds : int
            1, the only number that FIRM has.
        timeout : float, optional
            Seconds for the round's replies; ``config.simulation.timeout`` by default.
        train_config, evaluate_config : ConfigRecord, optional
            Further keys for the clients' messages.
        evaluate_fn : callable, optional
            Called with 0 before the round and with 1 after it; reads the update from the run.

        Returns
        -------
        Result

        Raises
        ------
        RunError
            A client is missing, failed, or sent what cannot be merged; names each and why.
        """
        if num_rounds != 1:
            raise RunError(f"FIRM takes one round, not {num_rounds}; set num_rounds=1")
        timeout = self.config.simulation.timeout if timeout is None else timeout
        arrays = ArrayRecord() if initial_arrays is None else initial_arrays
        log(INFO, "Starting %s:", type(self).__name__)
        self.summary()
        result = Result()
        timings: dict[str, float] = {}
        if evaluate_fn:
            with timed(timings, "evaluate_before"):
                self._keep(result.evaluate_metrics_serverapp, 0, evaluate_fn(0, arrays))
        with timed(timings, "clients"):
            self.configure_train(1, arrays, ConfigRecord() if train_config is None else train_config, grid)
            specs = {a.spec.id: a.spec for a in self.assignments}
            log(INFO, "Asking %d of %d clients for their summaries", len(self._asked), len(specs))
            failed = dispatch(
                grid,
                self._asked,
                lambda key, reply: self._receive(specs[key], reply),
                timeout=timeout,
                poll=self.poll,
                total=len(self.assignments),
            )
            self._leave_out(failed)
            second_phase(
                grid,
                self.spool,
                self.assignments,
                self._message,
                self._stored,
                timeout=timeout,
                poll=self.poll,
            )
        with timed(timings, "merge"):
            merged, metrics = self.aggregate_train(1, [])
        if merged is not None:
            result.arrays = merged
        self._keep(result.train_metrics_clientapp, 1, metrics)
        if self.evaluate_clients:
            asked = self.configure_evaluate(1, result.arrays, evaluate_config or ConfigRecord(), grid)
            replies: list[Message] = []
            tasks = [Task(f"evaluate {i}", message) for i, message in enumerate(asked)]
            failed = dispatch(
                grid, tasks, lambda _, reply: replies.append(reply), timeout=timeout, poll=self.poll
            )
            raise_failures(failed, "the clients' evaluation")
            self._keep(result.evaluate_metrics_clientapp, 1, self.aggregate_evaluate(1, replies))
        if evaluate_fn:
            with timed(timings, "evaluate_after"):
                self._keep(result.evaluate_metrics_serverapp, 1, evaluate_fn(1, result.arrays))
        self.run.update(timings={name: round(seconds, 3) for name, seconds in timings.items()})
        log(INFO, "Finished in %.1f s", sum(timings.values()))
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Find out who is there, and ask every client whose summary is not in the spool yet.

        Returns
        -------
        list of Message
            One per logical client; a node can receive several.
        """
        del arrays
        self.assignments, silent = discover(
            grid,
            self.config,
            self.fingerprint,
            timeout=self.config.simulation.timeout,
            poll=self.poll,
            delivered=self.spool.delivered(self.run.as_received),
        )
        self.left_out = dict(silent)
        self._asked = []
        self.spool.asked = instructions(self.config, [a.spec for a in self.assignments])
        check_codecs(self.assignments, self.spool.asked)
        for assignment in self.assignments:
            if self.spool.holds(assignment.spec, self.run.as_received):
                log(INFO, "\t%s: its summary is in the run already", assignment.spec.id)
                continue
            told = ConfigRecord({**config, protocol.FISHER: self.spool.asked[assignment.spec.id].to_json()})
            message = self._message(assignment, protocol.UNLEARN, told, f"{server_round}")
            self._asked.append(Task(assignment.spec.id, message))
        return [task.message for task in self._asked]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Spool the replies that are given, then merge and project all summaries of the round.

        Raises
        ------
        RunError
            A client's summary is missing or not usable; names each and why.
        """
        del server_round
        specs = {a.spec.id: a.spec for a in self.assignments}
        names = {task.message.metadata.message_id: task.key for task in self._asked}
        failed = take(replies, names, lambda name, reply: self._receive(specs[name], reply))
        for name in specs:
            if name not in failed and not self.spool.has(name):
                half = self.spool.has_first(name)
                failed[name] = "two-phase pooling needs the second trip of start()" if half else "no reply"
        self._leave_out(failed)
        summaries = self.spool.load(sorted(a.spec.id for a in self.assignments))
        metrics = merge_spool(self.run, self.config, summaries, self.left_out)
        return (update_record(self.run) if self.keep_arrays else None), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Ask every client for the loss on its own examples, with the update in ``arrays`` applied."""
        del grid
        if not self.evaluate_clients:
            return []
        extra = ConfigRecord(dict(config))
        if arrays:
            extra["tensors"] = list(arrays)
            extra["dtypes"] = [array.dtype for array in arrays.values()]
        messages = []
        for assignment in self.assignments:
            if assignment.node_id == GONE:  # it delivered in an earlier attempt, and is not connected
                continue
            message = self._message(assignment, protocol.EVALUATE, extra, f"{server_round}")
            message.content[protocol.ARRAYS] = arrays
            messages.append(message)
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the mean loss per role, weighted by the number of examples."""
        del server_round
        roles = {a.node_id: a.spec.role for a in self.assignments}
        return mean_losses(replies, roles)

    def _message(self, assignment: Assignment, kind: str, config: ConfigRecord, group: str) -> Message:
        record = ConfigRecord({**config, protocol.RUN_CONFIG: self._text})
        if assignment.declared:
            record[protocol.DECLARED] = assignment.spec.id
        else:
            record[protocol.CLIENT] = protocol.spec_to_json(assignment.spec)
        content = RecordDict({protocol.CONFIG: record})
        return Message(content, dst_node_id=assignment.node_id, message_type=kind, group_id=group)

    def _receive(self, spec: ClientSpec, reply: Message) -> None:
        with storing(self.run.path):
            self.spool.receive(spec, reply)
            if self.spool.has(spec.id):
                self._stored(spec.id)

    def _stored(self, name: str) -> None:
        self.run.record_received(name, self.spool.received[name])
        export(self.run)

    def _leave_out(self, failed: Mapping[str, str]) -> None:
        self.assignments = without_failed(self.config, self.assignments, failed)
        self.left_out.update(failed)

    @staticmethod
    def _keep(history: dict[int, MetricRecord], server_round: int, metrics: MetricRecord | None) -> None:
        if metrics is not None:
            history[server_round] = metrics
