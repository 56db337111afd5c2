"""What a repair and a new generation begin with, before any client is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fedforget.errors import LedgerError, RunError
from fedforget.runs import RunDirectory
from fedforget.sequences import Slice
from fedforget.sequential import approximate
from fedforget.sequential.config import SequentialRunConfig
from fedforget.sequential.plan import Prefix, SequentialPlan, asks_clients, make_plan
from fedforget.sequential.run_ledger import note_head, open_ledger
from simulations.options import Backend
from strategies.sequential_setup import regrouped

if TYPE_CHECKING:
    from simulations.federate import Superlink


def prepare_repair(run: RunDirectory, groups: str = "") -> list[int]:
    """Mark deleted groups for repair in the ledger, and return which.

    A retraining that was asked for and has not begun is called off.

    Parameters
    ----------
    run : RunDirectory
    groups : str
        ``"1,4"``; empty for every deleted group that has data left.

    Raises
    ------
    RunError
        ``groups`` cannot be read.
    LedgerError
        A named group is not deleted, or nothing is left of it.
    """
    try:
        named = [int(word) for word in groups.replace(",", " ").split()]
    except ValueError:
        raise RunError(f"--groups {groups!r}: give numbers of groups, e.g. 1,4") from None
    with open_ledger(run) as ledger:
        pending = run.record.get("regroup")
        if pending and pending["generation"] == ledger.generation():
            # A new generation was asked for and never begun. Whoever repairs wants what survives to serve on.
            run.update(regroup=None)
        if not named:
            left = {item[:2] for item in ledger.remaining_slices()}
            named = [
                number
                for number, group in enumerate(ledger.groups())
                if number in ledger.deleted_groups() and any(item[:2] in left for item in group)
            ]
        if named:
            ledger.repair(named)
            note_head(run, ledger)
    return named


def repair_here(run: RunDirectory) -> list[int]:
    """Repair every deleted group that has data left, with the clients in this process; return which."""
    groups = prepare_repair(run)
    if groups:
        carry_on(run, Backend.INLINE)
    return groups


def carry_on(
    run: RunDirectory,
    where: Backend | Superlink,
    action: str = "carry on",
    say: Callable[[str], None] = print,
) -> RunDirectory:
    """Train what is due in a run, or take another action of the ServerApp's.

    Parameters
    ----------
    run : RunDirectory
    where : Backend or Superlink
        Simulated clients, or those that are connected to a SuperLink on this machine.
    action : str
    say : callable
        Where to tell what is going on.

    Raises
    ------
    RunError
        Clients have data of their own, which simulated ones cannot read; or the action failed.
    """
    if not isinstance(where, Backend):
        from simulations.federate import federate

        federate(where, "", "", str(run.path), action=action, say=say)
        return RunDirectory(run.path)
    if run.own_data:
        raise RunError(
            f"{run.path}: {', '.join(run.own_data)} have data of their own on their nodes, which a simulated "
            "federation cannot read; name the deployed one with --superlink"
        )
    if where is Backend.INLINE:
        from simulations.inline import run_inline

        return run_inline("", "", run.path, action=action)
    from simulations.flwr_run import run_flower

    return run_flower("", "", run.path, say=say, action=action)


def due(run: RunDirectory) -> list[Prefix]:
    """Return the modules that could be active and are not."""
    with open_ledger(run) as ledger:
        plan = SequentialPlan.of(ledger.groups(), ledger.sequences())
        live = set(ledger.live_modules())
        if approximate.serving(run.path, ledger):
            live.add(approximate.WHOLE)
        return [prefix for prefix in plan.tree.live(ledger.deleted_groups()) if prefix not in live]


def prepare_retrain(run: RunDirectory, groups: int | None, sequences: int | None) -> str:
    """Ask, in the run's record, for a new generation; one asked for and not completed is kept.

    Returns
    -------
    str
        What will be done, in a sentence.
    """
    _check_options(run.sequential, groups, sequences)
    pending = run.record.get("regroup")
    with open_ledger(run) as ledger:
        generation = ledger.generation()
        slices = [Slice(*item) for item in ledger.remaining_slices()]
    if pending and generation > pending["generation"]:
        given = {"groups": groups, "sequences": sequences}
        if any(value is not None and pending.get(key) != value for key, value in given.items()):
            raise RunError(
                f"{run.path}: a retraining with {_numbers(pending)} was begun and is not complete; "
                "run `fedforget retrain` without options to carry on with it"
            )
        return f"generation {generation}: carrying on with the retraining that was begun"
    if not slices:
        raise LedgerError(f"{run.ledger}: no data is left; there is nothing to retrain on")
    request = {"generation": generation, "groups": groups, "sequences": sequences}
    config = regrouped(run.sequential, request)
    if not asks_clients(config):
        make_plan(config, slices)  # what cannot be planned is told before anything is started
    run.update(regroup=request)
    records = sum(item.size for item in slices)
    return f"generation {generation + 1}: {len(slices)} slices with {records} records are grouped anew"


def _check_options(config: SequentialRunConfig, groups: int | None, sequences: int | None) -> None:
    if config.method == "fedsgt":
        return
    if sequences is not None or (groups is not None and config.method != "fedcio"):
        option = "sequences" if sequences is not None else "groups"
        raise RunError(f"--{option}: {config.method} has no {option} to choose; leave it out")


def _numbers(request: dict[str, int | None]) -> str:
    shown = [f"{request[key]} {key}" for key in ("groups", "sequences") if request.get(key) is not None]
    return " and ".join(shown) or "the configuration's groups and sequences"
