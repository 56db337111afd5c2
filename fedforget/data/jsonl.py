"""The bring-your-own family: JSON Lines files, one object a line, see :mod:`fedforget.data.own_rows`.

A row's domain is its ``domain`` column, else the name of its file. Which questions a retain client has
trained on is for the file's author to decide: the family asks what the file says.
"""

from __future__ import annotations

import random
from pathlib import Path

from fedforget.data.examples import SPLITS, Example, Question, check_domain, check_role, check_split
from fedforget.data.own_rows import OwnRows, RowReader
from fedforget.data_config import FieldsConfig
from fedforget.errors import DataError, nearest
from fedforget.seeds import derive_seed


class JsonlData:
    """A file, or a directory of ``<domain>.jsonl``, as a :class:`fedforget.data.Data`.

    Parameters
    ----------
    path : str or Path
        The file or directory.
    fields : FieldsConfig
        Column names.
    seed : int
        Of the splits and orders.
    domain : str, optional
        Domain of the rows of a *file* that name none; the file's name by default.

    Raises
    ------
    DataError
        Names the file, and the line where a row is malformed.
    """

    def __init__(self, path: str | Path, fields: FieldsConfig, seed: int, domain: str = "") -> None:
        self._path = Path(path).expanduser()
        self._seed = seed
        rows = OwnRows()
        self._read(fields, domain, rows)
        self._examples = rows.examples
        self._general = rows.general
        self._questions = {name: self._split(name, asked) for name, asked in rows.questions.items()}

    def _read(self, fields: FieldsConfig, domain: str, rows: OwnRows) -> None:
        for file in _files(self._path):
            default = domain if domain and self._path.is_file() else file.stem
            RowReader(file, fields, default, rows).read()

    def domains(self) -> list[str]:
        """Return the names of all domains, sorted."""
        return sorted({*self._examples, *self._questions})

    def units(self, domain: str, role: str) -> list[list[Example]]:
        """Return the training examples of a domain, each a group of its own, in file order."""
        check_domain(domain, self.domains(), str(self._path))
        check_role(role)
        examples = [] if role == "held_out" else self._examples.get(domain, [])
        return [[example] for example in examples]

    def training(self, domain: str, role: str) -> list[Example]:
        """Return the training examples of a domain, in file order; none for role ``"held_out"``."""
        return [example for unit in self.units(domain, role) for example in unit]

    def questions(self, domain: str, role: str, split: str) -> list[Question]:
        """Return a domain's questions of one split, shuffled by seed; the same for every role."""
        check_domain(domain, self.domains(), str(self._path))
        check_role(role)
        check_split(split)
        return [question for question in self._questions.get(domain, []) if question.split == split]

    def general_text(self) -> list[str]:
        """Return the texts of split ``general``; may be empty."""
        return list(self._general)

    def _split(self, domain: str, questions: list[Question]) -> list[Question]:
        """Shuffle by seed, and give the questions that name no split one by turns."""
        shuffled = list(questions)
        random.Random(derive_seed(self._seed, "data", domain, "questions")).shuffle(shuffled)
        placed, turn = [], 0
        for question in shuffled:
            if not question.split:
                question = Question(**{**vars(question), "split": SPLITS[turn % 2]})
                turn += 1
            placed.append(question)
        return placed


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        files = sorted(path.glob("*.jsonl"))
        if not files:
            raise DataError(
                f"{path}: the directory holds no .jsonl file; put one <domain>.jsonl for each domain"
            )
        return files
    if not path.is_file():
        beside = [file.name for file in path.parent.glob("*.jsonl")] if path.parent.is_dir() else []
        raise DataError(
            f"{path}: no such file or directory{nearest(path.name, beside)}; "
            "give a .jsonl file, or a directory of them"
        )
    return [path]
