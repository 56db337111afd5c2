"""Showing that what is served never saw the deleted data: it is trained again without them, bit for bit.

A served prefix is retrained from scratch, its first module included, on data from which the deleted
records, and every group outside the prefix, are physically absent. If the modules that come out have the
hashes of those that serve, no deleted record can have reached them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedforget.errors import FedForgetError, PlanError, RunError
from fedforget.runs import RunDirectory
from fedforget.sequences.ledger import Ledger
from fedforget.sequential.approximate import serving
from fedforget.sequential.config import SequentialRunConfig
from fedforget.sequential.modules import PrefixModule, first_difference
from fedforget.sequential.plan import Prefix, SequentialPlan
from fedforget.sequential.reference import Without, train_sequences_locally
from fedforget.sequential.runs import SequentialRun
from fedforget.sequential.stack import ModuleStack


class VerificationError(FedForgetError):
    """A served module differs from the one that the remaining data give; names the first tensor."""


@dataclass(frozen=True)
class Verification:
    """One module of a served prefix, compared.

    Attributes
    ----------
    prefix : tuple of int
        The module's own prefix.
    ok : bool
        The hashes are equal.
    stored, retrained : str
        SHA-256 of the module that serves and of the one that was trained again.
    difference : str
        The first tensor that differs, and by how much; empty if none does.
    """

    prefix: Prefix
    ok: bool
    stored: str
    retrained: str
    difference: str


def verify_prefixes(
    config: SequentialRunConfig,
    plan: SequentialPlan,
    stored: Mapping[Prefix, PrefixModule],
    prefixes: Iterable[Prefix],
    *,
    without: Without | None = None,
    stack: ModuleStack | None = None,
    on_result: Callable[[Verification], None] | None = None,
) -> list[Verification]:
    """Train prefixes again and compare every module on the way with the stored one.

    Each prefix is trained by itself, on data that hold its own groups and nothing else; modules that an
    earlier prefix had in common with it are not used again.

    Parameters
    ----------
    config, plan
        Those of the run.
    stored : mapping of prefix to PrefixModule
        What serves: at least the prefixes and their beginnings.
    prefixes : iterable of tuple of int
        What to verify.
    without : mapping, optional
        The deleted records, by (client, slice).
    stack : ModuleStack, optional
        To train on; a new one by default.
    on_result : callable, optional
        Told of each comparison as it is made.

    Returns
    -------
    list of Verification
        One per module, in the order of training; a module that several prefixes share comes once.

    Raises
    ------
    PlanError
        A prefix that is not in the plan, or has a module that is not stored.
    """
    wanted = [tuple(prefix) for prefix in dict.fromkeys(prefixes)]
    for prefix in wanted:
        for depth in range(1, len(prefix) + 1):
            if prefix[:depth] not in stored:
                raise PlanError(f"prefix {prefix}: its module {prefix[:depth]} is not in service")
    found: dict[Prefix, Verification] = {}

    def compare(module: PrefixModule) -> None:
        if module.prefix in found:
            return
        ours = stored[module.prefix]
        same = ours.sha256 == module.sha256
        difference = "" if same else first_difference(module.tensors, ours.tensors)
        found[module.prefix] = Verification(module.prefix, same, ours.sha256, module.sha256, difference)
        if on_result is not None:
            on_result(found[module.prefix])

    for prefix in wanted:
        train_sequences_locally(
            config, plan, prefixes=[prefix], without=without, stack=stack, on_module=compare
        )
    return list(found.values())


def verify_run(
    run: str | Path,
    prefixes: Iterable[Prefix] | None = None,
    *,
    on_result: Callable[[Verification], None] | None = None,
) -> list[Verification]:
    """Verify what a run directory serves.

    Parameters
    ----------
    run : Path
        A FedSGT run.
    prefixes : iterable of tuple of int, optional
        By default every prefix that serves.
    on_result : callable, optional
        Told of each comparison as it is made.

    Raises
    ------
    RunError, LedgerError, ModelError
        The run, its ledger or a module cannot be read; or a client has data of its own on its node.
    PlanError
        A prefix that is not in service.
    VerificationError
        What serves was made by an approximate method.
    """
    opened = SequentialRun(run)
    refuse_approximate(opened.path, opened.ledger)
    own = RunDirectory(run).own_data
    if own:
        raise RunError(
            f"{opened.path}: {', '.join(own)} have data of their own on their nodes, out of this machine's "
            "reach; let the clients train instead: fedforget verify RUN --through-clients"
        )
    served = [prefix for prefix in opened.ledger.served_prefixes() if prefix]
    return verify_prefixes(
        opened.config,
        opened.plan(),
        opened.modules(),
        served if prefixes is None else prefixes,
        without=opened.without(),
        on_result=on_result,
    )


def refuse_approximate(path: Path, ledger: Ledger) -> None:
    """Raise where what serves is no one training's result, and so cannot be trained again.

    Raises
    ------
    VerificationError
        It was made by an approximate method.
    """
    made = serving(path, ledger)
    if made:
        raise VerificationError(
            f"{path}: what serves was made by {made['method']}, which is approximate and cannot be verified: "
            "it may depend on deleted data; `fedforget retrain` trains what can be"
        )


def require(results: Iterable[Verification]) -> None:
    """Raise at the first module that differs.

    Raises
    ------
    VerificationError
        Names the module and the first tensor.
    """
    for result in results:
        if not result.ok:
            raise VerificationError(
                f"module {result.prefix}: what serves is not what the remaining data give "
                f"({result.difference})"
            )
