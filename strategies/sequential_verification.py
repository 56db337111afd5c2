"""Verification where the data are: the clients train served prefixes again, and hashes are compared.

It is the training of :class:`strategies.fedsgt.FedSGT` once more, in a scratch directory with a new run
id, so that nothing cached or stored takes part: the plan holds the prefixes to verify and nothing else,
and every client leaves out what was deleted from it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from flwr.serverapp import Grid

from fedforget.errors import PlanError
from fedforget.runs import RunDirectory
from fedforget.sequences.ledger import Deletion, Ledger
from fedforget.sequential.config import SequentialRunConfig
from fedforget.sequential.modules import PrefixModule, first_difference
from fedforget.sequential.plan import Prefix
from fedforget.sequential.verify import Verification, refuse_approximate
from strategies.fedsgt import FedSGT, Shapes


def verify_through_clients(
    grid: Grid,
    config: SequentialRunConfig,
    run: RunDirectory,
    prefixes: Iterable[Prefix] | None,
    shapes: Shapes,
    fingerprint: str,
    *,
    poll: float = 0.2,
) -> list[Verification]:
    """Let the clients train prefixes again without the deleted records, and compare every module.

    Parameters
    ----------
    grid : Grid
    config : SequentialRunConfig
    run : RunDirectory
        It is read, and not changed.
    prefixes : iterable of tuple of int or None
        What to verify; None for every prefix that serves.
    shapes, fingerprint, poll
        As for :class:`FedSGT`.

    Returns
    -------
    list of Verification
        One per module, by depth.

    Raises
    ------
    PlanError
        A prefix that is not in service.
    RunError
        A client is missing, failed, or holds other records than the ledger says.
    VerificationError
        What serves was made by an approximate method.
    """
    with Ledger(run.ledger, read_only=True) as ledger:
        refuse_approximate(run.path, ledger)
        live = ledger.live_modules()
        served = [prefix for prefix in dict.fromkeys(ledger.served_prefixes()) if prefix]
        wanted = served if prefixes is None else list(dict.fromkeys(map(tuple, prefixes)))
        for prefix in wanted:
            if any(prefix[:depth] not in live for depth in range(1, len(prefix) + 1)) or not prefix:
                raise PlanError(f"prefix {prefix}: its modules are not all in service")
        if not wanted:
            return []
        scratch = run.path / ".verification"
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            again = _scratch(scratch, config, ledger, wanted)
            again.update(own_data=run.own_data)
            strategy = FedSGT(config, again, shapes, fingerprint, poll=poll)
            try:
                strategy.start(grid)
                trained = strategy.ledger.live_modules()
            finally:
                strategy.close()
            found = []
            for prefix, module in trained.items():
                ours = live[prefix]
                same, difference = ours.sha256 == module.sha256, ""
                if not same:
                    stored = PrefixModule.load(run.path / ours.path, ours.sha256)
                    retrained = PrefixModule.load(again.path / module.path, module.sha256)
                    difference = first_difference(retrained.tensors, stored.tensors)
                found.append(Verification(prefix, same, ours.sha256, module.sha256, difference))
            return found
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _scratch(path: Path, config: SequentialRunConfig, ledger: Ledger, wanted: list[Prefix]) -> RunDirectory:
    """Make a run whose plan is the wanted prefixes, with everything deleted that was."""
    left = {(client, number): size for client, number, size in ledger.remaining_slices()}
    groups: list[list[tuple[str, int, int]]] = []
    deletions: list[Deletion] = []
    for group in ledger.groups():
        members = []
        for client, number, _ in group:
            gone = ledger.deleted_records(client, number)
            size = left.get((client, number), 0) + len(gone or ())
            members.append((client, number, max(size, 1)))
            if gone is None or gone:
                deletions.append(Deletion(f"verify-{len(deletions)}", client, number, gone))
        groups.append(members)
    again = RunDirectory.create(path, config, "verification")
    with Ledger.create(again.ledger, groups, wanted, ledger.seed()) as scratch:
        scratch.request_deletions(deletions)
        used = {group for prefix in wanted for group in prefix}
        repaired = sorted(used & scratch.deleted_groups())
        if repaired:
            scratch.repair(repaired)
    return again
