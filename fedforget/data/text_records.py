"""Texts with a class: SST-2, QQP, QNLI and MNLI of GLUE, and any data set of that schema."""

from __future__ import annotations

from fedforget.data.hub_sets import HubSet, Table, load_tables
from fedforget.data.records import Corpus, Records
from fedforget.errors import DataError
from fedforget.sequential.config import RecordsConfig

_GLUE = "nyu-mll/glue"
TEXT_SETS = {
    "sst2": HubSet(_GLUE, "sst2", ("sentence",), "label", "validation"),
    "qqp": HubSet(_GLUE, "qqp", ("question1", "question2"), "label", "validation"),
    "qnli": HubSet(_GLUE, "qnli", ("question", "sentence"), "label", "validation"),
    "mnli": HubSet(_GLUE, "mnli", ("premise", "hypothesis"), "label", "validation_matched"),
    "texts": HubSet("", "", ("text",), "label"),
}


def text_corpus(cfg: RecordsConfig) -> Corpus:
    """Load texts; all training records are federated and none is public.

    Raises
    ------
    DataError
        As :func:`fedforget.data.hub_sets.load_tables`; or a text is missing.
    """
    known = TEXT_SETS[cfg.family]
    first = cfg.columns.text or known.inputs[0]
    second = cfg.columns.text_pair or (known.inputs[1] if len(known.inputs) > 1 else "")
    train, test, names = load_tables(cfg, known, (first, second) if second else (first,))
    federated = Records.of(train.ids, texts(train), train.labels)
    return Corpus(
        federated.subset(()), federated, Records.of(test.ids, texts(test), test.labels), names, "text"
    )


def texts(table: Table) -> tuple[str, ...] | tuple[tuple[str, ...], ...]:
    """Return a table's texts, or its pairs of texts.

    Raises
    ------
    DataError
        A record has none; names it.
    """
    for column in table.columns:
        for name, value in zip(table.ids, column, strict=True):
            if not isinstance(value, str):
                raise DataError(f"record {name}: its text is {value!r}; every record needs a text")
    if len(table.columns) == 1:
        return tuple(table.columns[0])
    return tuple(zip(*table.columns, strict=True))
