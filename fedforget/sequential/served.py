"""What a FedSGT run serves now, and how well."""

from __future__ import annotations

from typing import Any

from fedforget.data.corpora import load_corpus
from fedforget.runs import RunDirectory
from fedforget.sequences.ledger import Ledger
from fedforget.sequential.approximate import WHOLE, serving
from fedforget.sequential.runs import open_predictor
from fedforget.sequential.serving import ServiceEndedError


def measure(run: RunDirectory, rule: str | None = None) -> dict[str, Any]:
    """Measure the accuracy of what a run serves on its test records.

    Parameters
    ----------
    run : RunDirectory
    rule : str, optional
        ``AllSeq``, ``MinSeq`` or ``LongSeq``; the configuration's by default.

    Returns
    -------
    dict
        ``accuracy`` (None where service has ended), ``records`` it was measured on, ``rule``, live
        ``modules``, distinct served ``prefixes``, how many sequences are ``serving``, and the
        ``generation``; ``approximate`` names the method where what serves is not exact, else None.
    """
    config = run.sequential
    rule = rule or config.serving.rule
    test = load_corpus(config.data, config.seeds.data).test
    try:
        accuracy: float | None = open_predictor(run.path, rule).accuracy(test)
    except ServiceEndedError:
        accuracy = None
    return {"accuracy": accuracy, "records": len(test), "rule": rule, **state(run)}


def state(run: RunDirectory) -> dict[str, Any]:
    """Return what is live: see :func:`measure`, and the ``deleted`` groups."""
    with Ledger(run.ledger, read_only=True, verify=False) as ledger:
        made = serving(run.path, ledger)
        every = [WHOLE] if made else [prefix for prefix in ledger.served_prefixes() if prefix]
        served = list(dict.fromkeys(every))
        return {
            "modules": len(ledger.live_modules()) + bool(made),
            "approximate": made.get("method"),
            "prefixes": [list(prefix) for prefix in served],
            "serving": len(every),
            "generation": ledger.generation(),
            "deleted": sorted(ledger.deleted_groups()),
        }
