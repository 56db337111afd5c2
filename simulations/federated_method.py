"""Methods whose state is a run directory with a ledger: the adapter between them and an experiment."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedforget.data.records import Records
from fedforget.errors import RunError
from fedforget.files import read_json, write_json
from fedforget.presets import to_yaml
from fedforget.runs import RunDirectory
from fedforget.sequences.ledger import UNKNOWN, Deletion, Ledger
from fedforget.sequential import approximate
from fedforget.sequential.config import SequentialRunConfig
from fedforget.sequential.deletions import forget
from fedforget.sequential.runs import open_predictor
from fedforget.sequential.serving import Predictor
from simulations.inline import task_identity
from simulations.measured_grid import MeasuredGrid
from simulations.methods import Cost
from simulations.sequential import train_sequential
from simulations.sequential_upkeep import due, prepare_repair


class FederatedMethod:
    """A method with a ledger. What a request switches off is trained again by ``recover``.

    Parameters
    ----------
    name : str
        As tables show it.
    config : SequentialRunConfig
    out : Path
        Made if it is not there.

    Raises
    ------
    RunError
        The directory is no run, or one of another configuration.
    """

    exact = True

    def __init__(self, name: str, config: SequentialRunConfig, out: Path) -> None:
        self.name = name
        self.config = config
        self.run = _open(Path(out), name, config)
        self._predictor: tuple[str, Predictor] | None = None

    def train(self) -> None:
        """Train what is due; nothing where that has been done."""
        if self.run.record.get("status") == "completed":
            return
        self._train()

    def forget(self, request: Deletion) -> bool:
        """Carry a request out in the ledger, and tell whether anything still serves."""
        (outcome,) = forget(self.run, [request])
        if outcome.status == UNKNOWN:
            raise RunError(f"{self.name}: request {request.request_id!r}: {outcome.message}")
        with Ledger(self.run.ledger, read_only=True, verify=False) as ledger:
            return any(ledger.served_prefixes())

    def recover(self) -> bool:
        """Train the modules that are off again, on what is left of their data."""
        prepare_repair(self.run)
        if not due(self.run):
            return False
        self._train()
        return True

    def probabilities(self, records: Records) -> NDArray[np.float64] | None:
        """Return class probabilities, shape ``[n, classes]``; None where service has ended."""
        with Ledger(self.run.ledger, read_only=True, verify=False) as ledger:
            head = ledger.head().sha256
        if self._predictor is None or self._predictor[0] != head:
            self._predictor = (head, open_predictor(self.run.path))
        predictor = self._predictor[1]
        return predictor.probabilities(records.inputs) if predictor.available else None

    def cost(self) -> Cost:
        """Return what training and recovering have cost so far, and what is on disk now."""
        stored = sum(path.stat().st_size for path in self.run.path.rglob("*") if path.is_file())
        return dataclasses.replace(self._spent(), storage_bytes=stored)

    def close(self) -> None:
        """Let go of what serves."""
        self._predictor = None

    def _train(self) -> None:
        self._predictor = None
        with self._measured() as grid:
            train_sequential(grid, self.config, self.run, poll=0.0, measured=False)
        self.run.update(status="completed", error=None)

    def _spent(self) -> Cost:
        path = self.run.path / "cost.json"
        return Cost(**read_json(path)) if path.is_file() else Cost()

    @contextmanager
    def _measured(self) -> Iterator[MeasuredGrid]:
        """Yield a grid, and add to the method's cost what the block took; a failed attempt counts too."""
        from clients.client_app import app

        count = self.config.simulation.nodes
        grid = MeasuredGrid(app, [{"partition-id": i, "num-partitions": count} for i in range(count)])
        attempts = len(self.run.record.get("trainings", []))
        started = time.monotonic()
        try:
            with task_identity():
                yield grid
        finally:
            before, noted = self._spent(), self.run.record.get("trainings", [])[attempts:]
            spent = Cost(
                seconds=before.seconds + time.monotonic() - started,
                client_seconds=before.client_seconds + sum(one["client_seconds"] for one in noted),
                bytes_sent=before.bytes_sent + grid.bytes_sent,
                bytes_received=before.bytes_received + grid.bytes_received,
                participations=before.participations + grid.participations,
                visits=before.visits + grid.visits,
                examples=before.examples + grid.examples,
                rounds=before.rounds + sum(one.get("rounds", 0) for one in noted),
            )
            write_json(self.run.path / "cost.json", dataclasses.asdict(spent))


class FedAvgMethod(FederatedMethod):
    """FedAvg, which does not unlearn: the first request that hits it ends its service."""

    def recover(self) -> bool:
        """Do nothing."""
        return False


class FedRetrainMethod(FederatedMethod):
    """FedRetrain: ``recover`` trains a new generation on what remains."""

    def recover(self) -> bool:
        """Train everything again; nothing where no data was deleted since, or none is left."""
        with Ledger(self.run.ledger, read_only=True, verify=False) as ledger:
            idle = not ledger.deleted_groups() or not ledger.remaining_slices()
        if idle and not due(self.run):
            return False
        self._train()
        return True


class ApproximateMethod(FederatedMethod):
    """FedEraser and gradient ascent: ``recover`` unlearns, and what serves then is not exact."""

    exact = False

    def recover(self) -> bool:
        """Unlearn the last requests; nothing where no client is left that the method could work with."""
        with Ledger(self.run.ledger, read_only=True, verify=False) as ledger:
            named = approximate.hit(self.run.path, ledger, self.config.method)
            if not approximate.retained(ledger, named):
                return False
        return super().recover()


ADAPTERS: dict[str, type[FederatedMethod]] = {
    "FedAvg": FedAvgMethod,
    "FedRetrain": FedRetrainMethod,
    "FedEraser": ApproximateMethod,
    "GradientAscent": ApproximateMethod,
}
"""Methods that recover in their own way; :class:`FederatedMethod` serves the others."""


def _open(path: Path, name: str, config: SequentialRunConfig) -> RunDirectory:
    if not path.exists():
        return RunDirectory.create(path, config, name)
    run = RunDirectory(path)
    if run.record.get("config") != to_yaml(config):
        raise RunError(f"{run.path}: holds a run of another configuration; choose another directory")
    return run
