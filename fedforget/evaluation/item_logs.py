"""Per-item logs: one JSONL file per measure, which is read instead of measured again where it is complete."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedforget.errors import RunError
from fedforget.evaluation.measures import Measure, Row, Subject, rows_of
from fedforget.files import atomic_path, plain

_FORMAT = 1


@dataclass(frozen=True)
class ItemLogs:
    """The logs of one model.

    A log's first line says what was measured: the model's fingerprint, the update's hash and the
    questions' hash. Each further line is one question: ``id``, ``asked`` (a hash of what was asked),
    ``prediction`` where there is one, and scores. A log of another model, update or set of questions, or
    one that was cut off, is never taken for the one that is asked for.

    Attributes
    ----------
    folder : Path
    model : str
        The backbone's fingerprint.
    update : str
        Hash of the update that is added to it; empty for none.
    settings : mapping
        What rows depend on in their last digits alone, such as the batch size; told, and not compared:
        an evaluation that did not fit goes on with smaller batches.
    """

    folder: Path
    model: str
    update: str
    settings: Mapping[str, Any]

    def rows(self, measure: Measure, subject: Subject) -> tuple[list[Row], bool]:
        """Return a measure's rows, and whether they were measured now rather than read."""
        path, header = self.folder / f"{measure.name}.jsonl", self._header(measure)
        known = _read(path, header) if path.is_file() else None
        if known is not None:
            return known, False
        found = rows_of(measure, subject)
        first = {**header, "settings": dict(self.settings)}
        lines = [json.dumps(plain(one), allow_nan=False) for one in (first, *found)]
        with atomic_path(path) as temporary:
            temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return found, True

    def _header(self, measure: Measure) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "measure": measure.name,
            "model": self.model,
            "update": self.update,
            "questions": measure.questions_hash,
            "count": len(measure.asked),
        }


def reference_rows(folder: Path, measures: Sequence[Measure]) -> dict[str, list[Row]]:
    """Read another model's logs of the same questions.

    Raises
    ------
    RunError
        A log is not there, was cut off, or is about other questions.
    """
    found = {}
    for measure in measures:
        path = folder / f"{measure.name}.jsonl"
        if not path.is_file():
            raise RunError(
                f"{folder}: holds no {path.name}; give the folder that `fedforget score` wrote for the "
                "reference model, with the same suite"
            )
        rows = _read(path, {"questions": measure.questions_hash, "count": len(measure.asked)})
        if rows is None:
            raise RunError(
                f"{path}: is incomplete or about other questions than are asked here; score the reference "
                "model again on the same data"
            )
        found[measure.name] = rows
    return found


def _read(path: Path, header: Mapping[str, Any]) -> list[Row] | None:
    """Return the rows if the log's first line agrees with the header and no line is missing."""
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        return None
    if not lines or any(lines[0].get(key) != value for key, value in header.items()):
        return None
    return lines[1:] if len(lines) - 1 == header["count"] else None
