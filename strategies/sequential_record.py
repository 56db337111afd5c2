"""Which modules are due, and how what was trained comes on record."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from logging import WARNING

from flwr.supercore import log

from fedforget.errors import LedgerError
from fedforget.runs import RunDirectory
from fedforget.sequences.ledger import Ledger
from fedforget.sequential.averaging import FedAvg
from fedforget.sequential.modules import PrefixModule
from fedforget.sequential.plan import Prefix, SequentialPlan
from fedforget.sequential.run_ledger import note_head
from strategies.sequential_spool import Request, ResultSpool


def due(ledger: Ledger, plan: SequentialPlan, depth: int) -> dict[Prefix, str]:
    """Return the modules of one depth that are to be trained, each with its data key.

    Those whose groups are all in service, whose shorter prefixes have their modules, and that have
    none themselves.
    """
    live, gone = ledger.live_modules(), ledger.deleted_groups()
    found: dict[Prefix, str] = {}
    for prefix in plan.tree.depth(depth):
        if prefix in live or not gone.isdisjoint(prefix) or (depth > 1 and prefix[:-1] not in live):
            continue
        try:
            found[prefix] = ledger.data_key(prefix)
        except LedgerError:  # deleted this very moment
            continue
    return found


def changed(ledger: Ledger, prefix: Prefix, data_key: str) -> bool:
    """Tell whether the data of a prefix have changed since its data key was taken."""
    try:
        return ledger.data_key(prefix) != data_key
    except LedgerError:
        return True


def average(spool: ResultSpool, prefix: Prefix, requests: Iterable[Request]) -> tuple[PrefixModule, int]:
    """Return the average of the clients' results by number of examples, and their examples.

    Clients come in the order of their ids, whoever answered first; one client's tensors are in memory
    at a time.
    """
    total = FedAvg()
    for one in sorted(requests, key=lambda one: one.client_id):
        total.add(one.client_id, one.examples, spool.load(one).tensors)
    return PrefixModule(prefix, total.result()), total.num_examples


def record(
    run: RunDirectory,
    ledger: Ledger,
    module: PrefixModule,
    data_key: str,
    participants: Iterable[str],
    examples: int,
) -> bool:
    """Write a module's file and enter it in the ledger.

    Returns
    -------
    bool
        False where a deletion came since ``data_key`` was taken: the module saw what was deleted,
        and is dropped.
    """
    path = run.modules / f"{module.sha256}.safetensors"
    if not path.is_file():
        module.save(path)
        with open(path, "rb") as file:
            os.fsync(file.fileno())  # the ledger's entry must not outlive the file
    try:
        ledger.record_module(
            module.prefix,
            data_key=data_key,
            sha256=module.sha256,
            path=str(path.relative_to(run.path)),
            participants=participants,
            examples=examples,
        )
    except LedgerError:
        if not changed(ledger, module.prefix, data_key):
            raise
        path.unlink(missing_ok=True)
        log(WARNING, "\tmodule %s: data it was trained on were deleted meanwhile; dropped", [*module.prefix])
        return False
    return True


def note_training(
    run: RunDirectory, ledger: Ledger, modules: int, seconds: float, traffic: Mapping[str, float]
) -> None:
    """Add what a training did and cost to ``run.json``, and the ledger's head after it."""
    training = {
        "generation": ledger.generation(),
        "modules": modules,
        "seconds": round(seconds, 3),
        **{key: round(value, 3) for key, value in traffic.items()},
    }
    run.update(trainings=[*run.record.get("trainings", []), training])
    note_head(run, ledger)
