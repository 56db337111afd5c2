"""FedSGT, and what it is compared with, in the ServerApp: train what is due, then measure what is served."""

from __future__ import annotations

from logging import INFO
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.supercore import log

from fedforget.errors import RunError
from fedforget.runs import RunDirectory
from fedforget.sequential_config import SequentialRunConfig

if TYPE_CHECKING:
    from torch import Tensor


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
    from fedforget.borrowing import borrowed_stack
    from fedforget.served import measure
    from strategies.methods import strategy_of

    def initial(seed: int) -> dict[str, Tensor]:
        with borrowed_stack(config) as stack:
            return stack.initial((), seed)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        del server_round, arrays
        found = measure(run)
        run.update_metrics(kind=config.kind, served=found)
        log(INFO, "served: accuracy %.3f of %d test records, %d modules live",
            found["accuracy"], found["records"], found["modules"])  # fmt: skip
        return MetricRecord({"accuracy": found["accuracy"], "modules": found["modules"]})

    try:
        with FileLock(run.path / ".training.lock", timeout=0):
            with borrowed_stack(config) as stack:
                fingerprint = stack.classifier.fingerprint
                shapes = {name: (tuple(t.shape), t.dtype) for name, t in stack.initial((), 0).items()}
                size = stack.module_bytes
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
