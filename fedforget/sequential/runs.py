"""What a FedSGT run's directory says: its configuration, plan, live modules, and deletions."""

from __future__ import annotations

from pathlib import Path

from fedforget.errors import RunError
from fedforget.runs import RunDirectory
from fedforget.sequential import approximate
from fedforget.sequential.classifiers import load_classifier
from fedforget.sequential.config import APPROXIMATE, SequentialRunConfig
from fedforget.sequential.modules import PrefixModule
from fedforget.sequential.one_shot import averaged_chain
from fedforget.sequential.plan import Prefix, SequentialPlan
from fedforget.sequential.run_ledger import open_ledger
from fedforget.sequential.serving import Predictor

LEDGER = "ledger.sqlite"


class SequentialRun:
    """A run directory of FedSGT, for reading.

    Parameters
    ----------
    path : Path
        Holds ``run.json``, ``ledger.sqlite`` and the modules that the ledger names.

    Raises
    ------
    RunError
        The directory is not a FedSGT run.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser().resolve()
        for name in ("run.json", LEDGER):
            if not (self.path / name).is_file():
                raise RunError(f"{self.path}: not the directory of a FedSGT run (it has no {name})")
        directory = RunDirectory(self.path)
        self.config: SequentialRunConfig = directory.sequential
        self.ledger = open_ledger(directory, read_only=True)

    def plan(self) -> SequentialPlan:
        """Return the plan of the current generation."""
        return SequentialPlan.of(self.ledger.groups(), self.ledger.sequences())

    def modules(self) -> dict[Prefix, PrefixModule]:
        """Load every active module, checked against the hash on record.

        Raises
        ------
        ModelError
            A file is missing, damaged, or not the one that was recorded.
        """
        return {
            prefix: PrefixModule.load(self.path / entry.path, entry.sha256)
            for prefix, entry in self.ledger.live_modules().items()
        }

    def without(self) -> dict[tuple[str, int], tuple[str, ...] | None]:
        """Return what was deleted from each slice of the plan: record ids, or None for all of it."""
        gone: dict[tuple[str, int], tuple[str, ...] | None] = {}
        for group in self.ledger.groups():
            for client, slice_id, _ in group:
                names = self.ledger.deleted_records(client, slice_id)
                if names is None or names:
                    gone[client, slice_id] = names
        return gone

    def predictor(self, rule: str | None = None) -> Predictor:
        """Return what serves now, by the configuration's rule or another."""
        serving, module = self.config.serving, self.config.module
        modules, sequences = self.modules(), self.ledger.sequences()
        if self.config.method in APPROXIMATE and (made := approximate.load(self.path, self.ledger)):
            modules[made.prefix] = made
        if modules and self.config.method == "fedcio" and self.config.clustering.aggregation == "parameters":
            chain = averaged_chain([modules[prefix] for prefix in sorted(modules)], module.kind)
            modules, sequences = {one.prefix: one for one in chain}, [chain[-1].prefix]
        return Predictor(
            load_classifier(self.config),
            module,
            modules,
            sequences,
            rule or serving.rule,
            serving.batch_size,
        )


def open_predictor(run: str | Path, rule: str | None = None) -> Predictor:
    """Open a run directory and return what serves now; see :class:`Predictor`.

    Raises
    ------
    RunError, LedgerError, ModelError
        The run, its ledger or a module cannot be read.
    """
    return SequentialRun(run).predictor(rule)
