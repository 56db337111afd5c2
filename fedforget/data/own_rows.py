"""A row of the bring-your-own family: a text, a question with its answer, or a multiple choice.

A row has named columns (configurable, ``data.fields``) and is of one of three kinds:

- ``text``: a training example; with split ``general``, a text for perplexity;
- ``question`` and ``answer``: a training example whose loss is on the answer alone;
- ``question``, ``choices`` and ``label`` (the index of the right choice, from 0): a question of split
  ``select`` or ``report``. Without a split, half of a domain's questions go to each, by seed; if the
  row has an ``answer`` too, it is also a training example. With split ``train`` it is a training
  example alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedforget.data.examples import SPLITS, Example, Question
from fedforget.data_config import FieldsConfig
from fedforget.errors import DataError, nearest

_ROW_SPLITS = ("train", *SPLITS, "general")


@dataclass
class OwnRows:
    """What the files of one source hold."""

    examples: dict[str, list[Example]] = field(default_factory=dict)
    questions: dict[str, list[Question]] = field(default_factory=dict)
    general: list[str] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)  # id -> where it was read


class RowReader:
    """Reads one source into rows; every error names the file, or hub id, and the line or row."""

    def __init__(
        self, path: Path, fields: FieldsConfig, domain: str, rows: OwnRows, *, unit: str = "line"
    ) -> None:
        self._path = path
        self._unit = unit
        self._fields = fields
        self._domain = domain
        self._rows = rows
        self._line = 0

    def read(self) -> None:
        """Read a whole file of JSON Lines."""
        try:
            # utf-8-sig drops the byte order mark that some editors write.
            content = self._path.read_bytes()
            text = content.decode("utf-8-sig")
        except OSError as error:
            raise DataError(f"{self._path}: cannot be read ({error.strerror})") from error
        except UnicodeDecodeError as error:
            self._line = content[: error.start].count(b"\n") + 1
            raise self._error("is not UTF-8; save the file as UTF-8") from error
        # Split at line feeds alone: JSON strings may hold other line separators.
        lines = text.split("\n")
        if not any(line.strip() for line in lines):
            raise DataError(f"{self._path}: the file is empty; write one JSON object a line")
        for self._line, line in enumerate(lines, start=1):
            if line.strip():
                self._row(self._object(line))

    def take(self, number: int, row: dict[str, Any]) -> None:
        """Read one row of a table; columns without a value count as absent."""
        self._line = number
        self._row({name: value for name, value in row.items() if value is not None})

    def _object(self, line: str) -> dict[str, Any]:
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise self._error(f"is not JSON ({error.msg} at column {error.colno})") from error
        except RecursionError as error:
            raise self._error("is nested too deeply to be read") from error
        if not isinstance(row, dict):
            raise self._error("is not a JSON object; write one object with named columns a line")
        try:
            json.dumps(row, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            raise self._error("holds half of a surrogate pair (\\ud800 to \\udfff), no character") from error
        return {name: value for name, value in row.items() if value is not None}

    def _row(self, row: dict[str, Any]) -> None:
        fields = self._fields
        identity = self._id(row)
        domain = self._string(row, fields.domain) if fields.domain in row else self._domain
        split = self._string(row, fields.split) if fields.split in row else ""
        if split and split not in _ROW_SPLITS:
            raise self._error(
                f"{fields.split} {split!r} is not one of {', '.join(_ROW_SPLITS)}"
                f"{nearest(split, _ROW_SPLITS)}"
            )
        if fields.text in row and fields.question in row:
            raise self._error(f"has both {fields.text!r} and {fields.question!r}; give one of them")
        if fields.text in row:
            self._text(row, identity, domain, split)
        elif fields.question in row:
            self._asked(row, identity, domain, split)
        else:
            raise self._error(
                f"lacks the columns {fields.text!r} and {fields.question!r}; give one of them, or name the "
                f"columns under data.fields{self._columns(row)}"
            )

    def _text(self, row: dict[str, Any], identity: str, domain: str, split: str) -> None:
        text = self._string(row, self._fields.text)
        if split == "general":
            self._rows.general.append(text)
        else:
            self._only_training(split)
            self._add_example(Example(identity, domain, text))

    def _asked(self, row: dict[str, Any], identity: str, domain: str, split: str) -> None:
        fields = self._fields
        prompt = self._string(row, fields.question)
        if split == "general":
            raise self._error(f"{fields.split} 'general' is for rows with {fields.text!r}")
        # Files that keep the label under "answer" have no answer text.
        has_answer = fields.answer in row and fields.answer != fields.label
        if fields.choices not in row:
            if not has_answer:
                raise self._error(
                    f"lacks the column {fields.answer!r} (or {fields.choices!r} and {fields.label!r})"
                    f"{self._columns(row)}"
                )
            self._only_training(split)
            self._add_example(
                Example(identity, domain, _after(prompt, self._string(row, fields.answer)), prompt)
            )
            return
        choices, label = self._choices(row), self._label(row)
        if split == "train" or (not split and has_answer):
            answer = self._string(row, fields.answer) if has_answer else choices[label]
            self._add_example(Example(identity, domain, _after(prompt, answer), prompt))
        if split != "train":
            texts = tuple(_after(prompt, choice) for choice in choices)
            question = Question(identity, domain, prompt, texts, label, split)
            self._rows.questions.setdefault(domain, []).append(question)

    def _choices(self, row: dict[str, Any]) -> list[str]:
        name = self._fields.choices
        choices = row[name]
        if not isinstance(choices, list) or not all(isinstance(choice, str) for choice in choices):
            raise self._error(f"{name!r} must be a list of texts")
        if len(choices) < 2:
            raise self._error(f"{name!r} holds {len(choices)} choices; give at least 2")
        stripped = [choice.strip() for choice in choices]
        if not all(stripped):
            raise self._error(f"{name!r} holds an empty choice")
        if len(set(stripped)) < len(stripped):
            raise self._error(f"{name!r} holds the same choice twice")
        return choices

    def _label(self, row: dict[str, Any]) -> int:
        name, count = self._fields.label, len(row[self._fields.choices])
        if name not in row:
            raise self._error(f"lacks the column {name!r}, the index of the right choice{self._columns(row)}")
        label = row[name]
        if not isinstance(label, int) or isinstance(label, bool):
            raise self._error(f"{name!r} must be the index of the right choice, not {json.dumps(label)}")
        if not 0 <= label < count:
            raise self._error(f"{name!r} is {label}, outside 0 to {count - 1}")
        return label

    def _id(self, row: dict[str, Any]) -> str:
        name, here = self._fields.id, f"{self._path}, {self._unit} {self._line}"
        value = row.get(name, f"{self._path.stem}:{self._line}")
        if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
            raise self._error(f"{name!r} must be a text or a whole number, not {json.dumps(value)}")
        identity = str(value)
        if identity in self._rows.places:
            raise self._error(f"{name} {identity!r} was used before, at {self._rows.places[identity]}")
        self._rows.places[identity] = here
        return identity

    def _string(self, row: dict[str, Any], name: str) -> str:
        value = row[name]
        if not isinstance(value, str):
            raise self._error(f"{name!r} must be a text, not {json.dumps(value)[:40]}")
        if not value.strip():
            raise self._error(f"{name!r} is empty")
        return value

    def _only_training(self, split: str) -> None:
        if split in SPLITS:
            raise self._error(
                f"{self._fields.split} {split!r} needs {self._fields.choices!r} and {self._fields.label!r}; "
                "rows without them can only be trained on"
            )

    def _add_example(self, example: Example) -> None:
        self._rows.examples.setdefault(example.domain, []).append(example)

    def _columns(self, row: dict[str, Any]) -> str:
        return f" (it has {', '.join(repr(name) for name in row) or 'no columns'})"

    def _error(self, what: str) -> DataError:
        return DataError(f"{self._path}, {self._unit} {self._line}: {what}")


def _after(prompt: str, text: str) -> str:
    """Return ``text`` with the space that separates it from ``prompt``, unless one has it already."""
    return text if prompt[-1].isspace() or text[0].isspace() else f" {text}"
