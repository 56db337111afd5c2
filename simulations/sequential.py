"""FedSGT, and what it is compared with, in the ServerApp: train what is due, then measure what is served."""

from __future__ import annotations

import time
from logging import INFO
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.supercore import log

from fedforget.errors import FedForgetError, RunError
from fedforget.runs import RunDirectory
from fedforget.sequential.config import SequentialRunConfig

if TYPE_CHECKING:
    from torch import Tensor

    from strategies.fedsgt import Shapes

VERIFY = "verify"  # the ServerApp's action beside "carry on"


def train_sequential(
    grid: Grid, config: SequentialRunConfig, run: RunDirectory, poll: float, *, measured: bool = True
) -> None:
    """Train what is due in a run, by its method, and measure what is served after it.

    Parameters
    ----------
    grid, config, run
    poll : float
        Seconds between two rounds of asking for replies.
    measured : bool
        False leaves the measuring to the caller.

    Raises
    ------
    RunError
        Another process is training this run, or the training failed; see :meth:`FedSGT.start`.
    """
    # Torch and transformers take seconds to import; a wrong configuration is told before that.
    from fedforget.sequential.borrowing import borrowed_stack
    from fedforget.sequential.served import measure
    from strategies.methods import strategy_of

    def initial(seed: int) -> dict[str, Tensor]:
        with borrowed_stack(config) as stack:
            return stack.initial((), seed)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        del server_round, arrays
        found = measure(run)
        run.update_metrics(kind=config.kind, served=found)
        if found["accuracy"] is None:
            log(INFO, "nothing serves: a deletion came meanwhile")
            return None
        log(INFO, "served: accuracy %.3f of %d test records, %d modules live",
            found["accuracy"], found["records"], found["modules"])  # fmt: skip
        return MetricRecord({"accuracy": found["accuracy"], "modules": found["modules"]})

    try:
        with FileLock(run.path / ".training.lock", timeout=0):
            shapes, fingerprint, size = _module_of(config)
            run.update(
                backbone={"path": config.model.path, "fingerprint": fingerprint},
                module_bytes=size,
            )
            strategy = strategy_of(config.method)(
                config,
                run,
                shapes,
                fingerprint,
                regroup=run.record.get("regroup"),
                poll=poll,
                initial=initial,
            )
            try:
                strategy.start(grid, evaluate_fn=evaluate if measured else None)
            finally:
                strategy.close()
            run.update(regroup=None)
    except Timeout:
        raise RunError(f"{run.path}: another process is training this run; wait for it to end") from None


def verify_sequential(grid: Grid, config: SequentialRunConfig, run: RunDirectory, poll: float) -> None:
    """Let the clients train what serves again, and write the comparison to the run's metrics.

    The prefixes are those in the run's record under ``to_verify``; all that serve where there are none.

    Raises
    ------
    VerificationError
        A module differs; names the first. What was found is in the metrics then, too.
    FedForgetError
        The clients could not train; as :func:`verify_through_clients`.
    """
    from fedforget.sequential.verify import require
    from strategies.sequential_verification import verify_through_clients

    wanted = run.record.get("to_verify")
    prefixes = None if wanted is None else [tuple(prefix) for prefix in wanted]
    try:
        shapes, fingerprint, _ = _module_of(config)
        found = verify_through_clients(grid, config, run, prefixes, shapes, fingerprint, poll=poll)
    except FedForgetError as error:
        run.update_metrics(verification={"error": str(error)})
        raise
    modules = [{**vars(one), "prefix": list(one.prefix)} for one in found]
    run.update_metrics(verification={"at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "modules": modules})
    log(INFO, "%d of %d modules came out as the same bits", sum(one.ok for one in found), len(found))
    require(found)


def _module_of(config: SequentialRunConfig) -> tuple[Shapes, str, int]:
    """Return the tensors of a run's modules, the backbone's fingerprint, and a module's size in bytes."""
    from fedforget.sequential.borrowing import borrowed_stack

    with borrowed_stack(config) as stack:
        shapes = {name: (tuple(t.shape), t.dtype) for name, t in stack.initial((), 0).items()}
        return shapes, stack.classifier.fingerprint, stack.module_bytes
