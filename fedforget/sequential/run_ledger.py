"""The ledger of a run's directory, opened against the head that ``run.json`` keeps of it."""

from __future__ import annotations

from fedforget.errors import LedgerError, RunError
from fedforget.runs import RunDirectory
from fedforget.sequences.ledger import Head, Ledger


def open_ledger(run: RunDirectory, *, read_only: bool = False) -> Ledger:
    """Open a run's ledger and check it, also against the head that was noted last.

    A ledger that was set back, by a copy of an earlier day or a lost write-ahead file, would bring back
    what was deleted since. Nothing goes on with it, and the noted head stays as it is.

    Raises
    ------
    RunError
        The directory is no FedSGT run, or the noted head cannot be read.
    LedgerError
        Nothing was trained in this run yet, or the ledger cannot be read or trusted.
    """
    _ = run.sequential
    if not run.ledger.is_file():
        raise LedgerError(f"{run.path}: has no ledger; nothing was trained in this run yet")
    noted = noted_head(run)  # before the ledger: it may only be older
    ledger = Ledger(run.ledger, read_only=read_only, verify=False)
    try:
        ledger.check(noted)
    except BaseException:
        ledger.close()
        raise
    return ledger


def noted_head(run: RunDirectory) -> Head | None:
    """Return the head of the ledger that ``run.json`` keeps; None if it holds none.

    Raises
    ------
    RunError
        What it holds is no head.
    """
    noted = run.record.get("ledger_head")
    if not noted:
        return None
    if isinstance(noted, dict):
        number, sha256 = noted.get("number"), noted.get("sha256")
        if isinstance(number, int) and number > 0 and isinstance(sha256, str):
            return Head(number, sha256)
    raise RunError(
        f"{run.path / 'run.json'}: its ledger_head is {noted!r}, not the number and hash of an event; "
        "restore the file"
    )


def note_head(run: RunDirectory, ledger: Ledger) -> None:
    """Note the ledger's last event in ``run.json``, so that a ledger set back to before it shows."""
    head = ledger.head()
    run.update(ledger_head={"number": head.number, "sha256": head.sha256})
