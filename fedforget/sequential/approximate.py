"""What approximate methods keep beside the ledger: the module that serves, and results of clients.

The ledger holds modules that depend on nothing but the data under their data key. What FedEraser or
gradient ascent makes is no such module, so it is never entered there: it is noted in
``approximate.json``, serves only while the data are those that it was made for, and ``fedforget verify``
refuses it. Results of clients that the methods need later are in ``history/<generation>/``.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedforget.errors import LedgerError
from fedforget.files import read_json, write_json
from fedforget.sequences.ledger import Ledger
from fedforget.sequential.config import APPROXIMATE
from fedforget.sequential.modules import PrefixModule
from fedforget.sequential.plan import Prefix

NOTE = "approximate.json"
WHOLE: Prefix = (0,)
"""The one prefix of methods without phases: all data."""


def history(run: Path, ledger: Ledger) -> Path:
    """Return the folder of clients' results of the current generation."""
    return run / "history" / str(ledger.generation())


def note(run: Path, ledger: Ledger, method: str, module: PrefixModule, data_key: str) -> None:
    """Put a module in service that a method made without training anew."""
    path = run / "approximate" / f"{module.sha256}.safetensors"
    module.save(path)
    write_json(
        run / NOTE,
        {
            "method": method,
            "generation": ledger.generation(),
            "data_key": data_key,
            "sha256": module.sha256,
            "path": str(path.relative_to(run)),
            "requests": [one.outcome.request_id for one in ledger.requests()],
        },
    )


def noted(run: Path) -> dict[str, Any]:
    """Return what was noted last, whether it still serves or not; empty if nothing was."""
    path = run / NOTE
    return dict(read_json(path)) if path.is_file() else {}


def serving(run: Path, ledger: Ledger) -> dict[str, Any]:
    """Return what was noted, if it was made for the data that are left now; else an empty mapping."""
    found = noted(run)
    try:
        fits = bool(found) and found["data_key"] == ledger.data_key(WHOLE)
    except LedgerError:  # deleted, and not taken up yet
        fits = False
    return found if fits else {}


def load(run: Path, ledger: Ledger) -> PrefixModule | None:
    """Load the module that serves, if there is one.

    Raises
    ------
    ModelError
        Its file is missing, damaged or another one.
    """
    found = serving(run, ledger)
    return PrefixModule.load(run / found["path"], found["sha256"]) if found else None


def hit(run: Path, ledger: Ledger, method: str) -> list[str]:
    """Return the clients whose kept results saw data that are deleted now, in order.

    For FedEraser those are all that a request of this generation named: it never renews what it
    stored. Gradient ascent trains all clients a little afterwards and keeps those results instead, so for
    it they are the clients of requests that came since.
    """
    done = set(noted(run).get("requests", ())) if method == "gradient_ascent" else set()
    current = ledger.generation()
    return sorted(
        {
            one.client
            for one in ledger.requests()
            if one.outcome.generation == current and one.outcome.request_id not in done
        }
    )


def retained(ledger: Ledger, clients: Iterable[str]) -> list[str]:
    """Return the clients that have records left and are not among ``clients``, in order."""
    return sorted({client for client, _, _ in ledger.remaining_slices()} - set(clients))


def drop_stale(run: Path, ledger: Ledger, method: str) -> None:
    """Remove the files of a module that serves no longer, and results that saw deleted data."""
    if method not in APPROXIMATE:
        return
    kept = serving(run, ledger).get("path")
    for path in (run / "approximate").glob("*.safetensors"):
        if str(path.relative_to(run)) != kept:
            path.unlink(missing_ok=True)
    current = history(run, ledger)
    for folder in current.parent.glob("*"):
        if folder != current:
            shutil.rmtree(folder, ignore_errors=True)
    for client in hit(run, ledger, method):
        for path in current.glob(f"*/{client}.safetensors"):
            path.unlink(missing_ok=True)
