"""Files that users bring: what is read, and how each malformed line is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedforget.data import JsonlData
from fedforget.data_config import FieldsConfig
from fedforget.errors import DataError


def write(path: Path, *rows: Any, newline: str = "\n", bom: bool = False) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_bytes((b"\xef\xbb\xbf" if bom else b"") + (newline.join(lines) + newline).encode())
    return path


def read(path: Path, seed: int = 0, **names: str) -> JsonlData:
    return JsonlData(path, FieldsConfig(**names), seed)


def test_the_three_kinds_of_rows(tmp_path: Path) -> None:
    data = read(
        write(
            tmp_path / "birds.jsonl",
            {"text": "Wrens sing."},
            {"id": "q", "question": "Who sings?", "answer": "Wrens"},
            {"question": "Who hoots?", "choices": ["Owls", "Wrens"], "label": 0, "split": "report"},
            {"text": "It rained.", "split": "general"},
        )
    )
    assert data.domains() == ["birds"]
    texts = [(e.id, e.prompt, e.text) for e in data.training("birds", "forget")]
    # The answer brings the space that separates it from the question.
    assert texts == [("birds:1", "", "Wrens sing."), ("q", "Who sings?", " Wrens")]
    (question,) = data.questions("birds", "forget", "report")
    assert (question.prompt, question.choices, question.answer) == ("Who hoots?", (" Owls", " Wrens"), 0)
    assert data.questions("birds", "forget", "select") == []
    assert data.general_text() == ["It rained."]
    assert data.training("birds", "held_out") == []


def test_a_prompt_that_ends_in_space_gets_no_second_one(tmp_path: Path) -> None:
    row = {"question": "Answer:\n", "answer": "yes", "choices": ["yes", " no"], "label": 0}
    data = read(write(tmp_path / "d.jsonl", row))
    questions = data.questions("d", "forget", "select") + data.questions("d", "forget", "report")
    assert [q.choices for q in questions] == [("yes", " no")]
    assert data.training("d", "forget")[0].text == "yes"


def test_choices_with_an_answer_are_trained_on_too_and_split_train_is_not_asked(tmp_path: Path) -> None:
    base = {"question": "q?", "choices": ["a", "b"], "label": 1}
    data = read(
        write(
            tmp_path / "d.jsonl",
            base,  # asked only
            {**base, "answer": "b, of course"},  # asked and trained on
            {**base, "split": "train"},  # trained on only, with the right choice
            {**base, "answer": "b", "split": "report"},  # asked only: its split says so
        )
    )
    assert [e.text for e in data.training("d", "retain")] == [" b, of course", " b"]
    asked = [q.id for split in ("select", "report") for q in data.questions("d", "retain", split)]
    assert sorted(asked) == ["d:1", "d:2", "d:4"]


def test_column_names_are_configurable_and_a_label_may_be_called_answer(tmp_path: Path) -> None:
    row = {"stem": "q?", "options": ["a", "b", "c"], "answer": 2, "topic": "bio", "split": "select"}
    data = read(
        write(tmp_path / "d.jsonl", row), question="stem", choices="options", label="answer", domain="topic"
    )
    (question,) = data.questions("bio", "forget", "select")
    assert question.answer == 2
    assert data.training("bio", "forget") == []


def test_questions_without_a_split_are_halved_by_seed(tmp_path: Path) -> None:
    rows = [{"id": i, "question": f"{i}?", "choices": ["a", "b"], "label": 0} for i in range(41)]
    path = write(tmp_path / "d.jsonl", *rows)
    splits = [[q.id for q in read(path).questions("d", "retain", split)] for split in ("select", "report")]
    assert [len(ids) for ids in splits] == [21, 20]
    assert sorted(map(int, splits[0] + splits[1])) == list(range(41))
    assert splits[0] == [q.id for q in read(path).questions("d", "retain", "select")]
    assert splits[0] != [q.id for q in read(path, seed=1).questions("d", "retain", "select")]


def test_a_directory_is_one_file_a_domain(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", {"text": "one"})
    write(tmp_path / "b.jsonl", {"text": "two"}, {"text": "three", "domain": "c"})
    (tmp_path / "notes.txt").write_text("not data")
    data = read(tmp_path)
    assert data.domains() == ["a", "b", "c"]
    assert [e.text for e in data.training("c", "forget")] == ["three"]


def test_byte_order_mark_crlf_and_blank_lines_are_tolerated(tmp_path: Path) -> None:
    path = write(
        tmp_path / "d.jsonl", {"text": "één\u2028two"}, "", "  ", {"text": "three"}, newline="\r\n", bom=True
    )
    assert [(e.id, e.text) for e in read(path).training("d", "forget")] == [
        ("d:1", "één\u2028two"),
        ("d:4", "three"),
    ]


QUESTION = {"question": "q?", "choices": ["a", "b"], "label": 0}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"text": ', "is not JSON"),
        ("[1, 2]", "is not a JSON object"),
        ({"body": "x"}, "lacks the columns 'text' and 'question'.*it has 'body'"),
        ({"text": None}, "lacks the columns 'text' and 'question'"),
        ({"question": "q?"}, "lacks the column 'answer'"),
        ({"question": "q?", "choices": ["a", "b"]}, "lacks the column 'label'"),
        ({"text": ""}, "'text' is empty"),
        ({"text": "  "}, "'text' is empty"),
        ({"text": 3}, "'text' must be a text, not 3"),
        ({"question": "q?", "answer": 1}, "'answer' must be a text, not 1"),
        ({"question": "", "answer": "a"}, "'question' is empty"),
        ({"text": "x", "question": "q?"}, "has both 'text' and 'question'"),
        ({**QUESTION, "label": 2}, "'label' is 2, outside 0 to 1"),
        ({**QUESTION, "label": -1}, "'label' is -1, outside 0 to 1"),
        ({**QUESTION, "label": "a"}, "'label' must be the index of the right choice"),
        ({**QUESTION, "label": True}, "'label' must be the index of the right choice"),
        ({**QUESTION, "choices": ["a"]}, "holds 1 choices; give at least 2"),
        ({**QUESTION, "choices": "ab"}, "'choices' must be a list of texts"),
        ({**QUESTION, "choices": ["a", 1]}, "'choices' must be a list of texts"),
        ({**QUESTION, "choices": ["a", ""]}, "holds an empty choice"),
        ({**QUESTION, "choices": ["a", " a"]}, "holds the same choice twice"),
        ({**QUESTION, "split": "raport"}, "split 'raport' is not one of .*did you mean 'report'"),
        ({**QUESTION, "split": "general"}, "'general' is for rows with 'text'"),
        ({"text": "x", "split": "report"}, "split 'report' needs 'choices' and 'label'"),
        ({"text": "x", "domain": 4}, "'domain' must be a text, not 4"),
        ({"text": "x", "id": ["i"]}, "'id' must be a text or a whole number"),
        ({"text": "x", "id": "first"}, "id 'first' was used before, at .*d.jsonl, line 1"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, row: Any, message: str) -> None:
    path = write(tmp_path / "d.jsonl", {"id": "first", "text": "fine"}, "", row)
    with pytest.raises(DataError, match=f"d.jsonl, line 3: .*{message}"):
        read(path)


def test_a_missing_path_names_the_nearest_file(tmp_path: Path) -> None:
    write(tmp_path / "forget.jsonl", {"text": "x"})
    with pytest.raises(
        DataError, match=r"froget.jsonl: no such file or directory \(did you mean 'forget.jsonl'"
    ):
        read(tmp_path / "froget.jsonl")
    with pytest.raises(DataError, match="no such file or directory"):
        read(tmp_path / "nowhere" / "forget.jsonl")


def test_empty_files_empty_directories_and_other_encodings(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no \.jsonl file"):
        read(tmp_path)
    (tmp_path / "empty.jsonl").write_text("\n \n")
    with pytest.raises(DataError, match=r"empty.jsonl: the file is empty"):
        read(tmp_path)
    (tmp_path / "empty.jsonl").write_bytes(b'{"text": "e"}\n' + '{"text": "é"}'.encode("latin-1"))
    with pytest.raises(DataError, match=r"empty.jsonl, line 2: is not UTF-8"):
        read(tmp_path)
    (tmp_path / "empty.jsonl").write_text('{"text": "e"}\n' + "[" * 100_000)
    with pytest.raises(DataError, match=r"empty.jsonl, line 2: is nested too deeply"):
        read(tmp_path)
    (tmp_path / "empty.jsonl").write_text('{"text": "e"}\n{"text": "a \\ud800 b"}')
    with pytest.raises(DataError, match=r"empty.jsonl, line 2: holds half of a surrogate pair"):
        read(tmp_path)


def test_an_unknown_domain_names_the_nearest(tmp_path: Path) -> None:
    data = read(write(tmp_path / "birds.jsonl", {"text": "x"}))
    with pytest.raises(DataError, match=r"has no domain 'bird' \(did you mean 'birds'\?\)"):
        data.training("bird", "forget")
    with pytest.raises(DataError, match="split 'selct'"):
        data.questions("birds", "forget", "selct")
    with pytest.raises(DataError, match="role 'forgot'"):
        data.training("birds", "forgot")
