"""Tables as they are found: files of a split, CSV, data sets saved to disk, and what is missing or wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, DatasetDict

from fedforget.client_specs import expand_clients
from fedforget.config import ClientGroup, RunConfig
from fedforget.data import Data, client_examples, load_data
from fedforget.data_config import DataConfig, FieldsConfig, MmluConfig
from fedforget.errors import DataError


def rewritten(folder: Path, **changes: Any) -> DataConfig:
    """A wmdp directory of which bio is a JSON file with the first row changed."""
    rows = [{"question": f"q{i}", "choices": ["a", "b", "c", "d"], "answer": i} for i in range(4)]
    rows[0] |= changes
    rows = [{name: value for name, value in row.items() if value != "drop"} for row in rows]
    (folder / "wmdp-bio").mkdir()
    (folder / "wmdp-bio" / "test.json").write_text("\n".join(map(json.dumps, rows)))
    return DataConfig(family="wmdp", path=str(folder))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"answer": 4},
            r"configuration 'wmdp-bio', split 'test', row 0: column 'answer' must be the",
        ),
        ({"answer": -1}, r"row 0: column 'answer' must be .* 0 to 3 or A to D, not -1"),
        ({"question": ""}, r"row 0: column 'question' must be a text, not \"\""),
        ({"choices": ["a"]}, r"row 0: column 'choices' must be a list of at least 2 texts"),
        ({"choices": None}, r"row 0: column 'choices' must be a list of texts, not null"),
        ({"choices": [str(i) for i in range(27)]}, r"row 0: column 'choices' must be .* at most 26 texts"),
        ({"answer": "\u00b2"}, r"row 0: column 'answer' must be the index"),  # a digit, and no number
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_data(rewritten(tmp_path, **changes), 0).training("bio", "forget")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"question": "Caf\xe9", "choices": ["a", "b"], "answer": 0}', "save the file as UTF-8"),
        (b"", "split 'test': holds no row"),
    ],
)
def test_files_that_hold_no_rows_or_no_text(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "wmdp-bio.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_data(DataConfig(family="wmdp", path=str(tmp_path)), 0).training("bio", "forget")


def test_what_a_csv_holds_is_taken_as_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "wmdp-bio.csv").write_text(
        'question,choices,answer\n007,"[""a"", ""b""]",1\nNA,"[""a"", ""b""]",A\n'
    )
    items = load_data(DataConfig(family="wmdp", path=str(tmp_path)), 0).multiple_choice(
        "bio", "forget", "all"
    )
    assert {one.question: one.label for one in items} == {"007": 1, "NA": 0}
    (tmp_path / "own.csv").write_text(
        'id,question,answer,choices,label\n007,When?,1984,,\n7,What?,,"[""a"", ""b""]",1\n'
    )
    own = load_data(DataConfig(family="table", path=str(tmp_path / "own.csv")), 0)
    assert [(one.id, one.text) for one in own.training("own", "forget")] == [("007", " 1984")]
    asked = [one for split in ("select", "report") for one in own.questions("own", "forget", split)]
    assert [(one.id, one.answer) for one in asked] == [("7", 1)]


def test_a_split_in_two_kinds_of_files_is_refused(tmp_path: Path) -> None:
    row = json.dumps({"question": "q", "choices": ["a", "b"], "answer": 0})
    (tmp_path / "wmdp-bio.jsonl").write_text(row)
    (tmp_path / "wmdp-bio.csv").write_text("question,choices,answer\nq,[],0\n")
    with pytest.raises(DataError, match="'wmdp-bio' more than once, as wmdp-bio"):
        load_data(DataConfig(family="wmdp", path=str(tmp_path)), 0).training("bio", "forget")


def _questions(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"question": text, "choices": ["a", "b"], "answer": 0}) + "\n")


def _asked(folder: Path) -> list[str]:
    data: Any = load_data(DataConfig(family="wmdp", path=str(folder)), 0)
    return sorted(one.question for one in data.multiple_choice("bio", "forget", "all"))


@pytest.mark.parametrize(
    ("names", "place"),
    [
        (["test"], "wmdp-bio"),
        (["test"], "wmdp-bio/data"),
        (["test-00000-of-00002", "test-00001-of-00002"], "wmdp-bio"),
        (["test-00000-of-00001-a09b74b3ef9c3b56"], "wmdp-bio"),
        (["wmdp-bio"], ""),
    ],
)
def test_files_beside_a_split_that_are_not_named_as_it_are_not_read(
    tmp_path: Path, names: list[str], place: str
) -> None:
    for name in names:
        _questions(tmp_path / place / f"{name}.jsonl", f"q {name}")
    for name in ("test-old", "test-1", "test.old", "test-hard-00000-of-00001", "latest", "old/test"):
        _questions(tmp_path / place / f"{name}.jsonl", "left over")
        _questions(tmp_path / place / f"{name}.jsonl".replace("test", "wmdp-bio"), "left over")
    assert _asked(tmp_path) == [f"q {name}" for name in names]


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["test", "test-00000-of-00001"], "holds 'test' more than once, as test.jsonl and test-00000-of"),
        (["test-00001-of-00002"], "does not hold all parts of split 'test', each once, but test-00001-of-"),
        (["test-00000-of-00002", "test-00001-of-00003"], "does not hold all parts"),
        (["test-00000-of-00001-a1", "test-00000-of-00001-b2"], "does not hold all parts"),
        (["test-old"], "holds no test.parquet, .json, .jsonl or .csv, and no test-00000-of-00001"),
    ],
)
def test_a_split_that_is_there_twice_or_in_part_is_refused(
    tmp_path: Path, names: list[str], problem: str
) -> None:
    for name in names:
        _questions(tmp_path / "wmdp-bio" / f"{name}.jsonl", name)
    with pytest.raises(DataError, match=problem):
        _asked(tmp_path)


def test_a_subject_may_be_empty(tmp_path: Path) -> None:
    # As in the auxiliary_train of MMLU.
    rows = [{"question": f"q{i}", "choices": ["a", "b"], "answer": 0, "subject": ""} for i in range(2)]
    for name in ("auxiliary_train", "test"):
        (tmp_path / f"{name}.jsonl").write_text(
            "".join(json.dumps({**r, "question": name + r["question"]}) + "\n" for r in rows)
        )
    settings = MmluConfig(train_splits=["auxiliary_train"])
    data = load_data(DataConfig(family="mmlu", path=str(tmp_path), mmlu=settings), 0)
    assert "about various subjects." in data.training("mmlu", "retain")[0].prompt


def test_missing_columns_configurations_and_domains_are_named(tmp_path: Path, files: dict[str, str]) -> None:
    rows = {"question": ["q"], "choice": [["a", "b"]], "answer": [0]}
    (tmp_path / "wmdp-bio").mkdir()
    Dataset.from_dict(rows).to_parquet(str(tmp_path / "wmdp-bio" / "test.parquet"))
    data = load_data(DataConfig(family="wmdp", path=str(tmp_path)), 0)
    with pytest.raises(DataError) as caught:
        data.training("bio", "forget")
    assert str(caught.value) == (
        f"{tmp_path}, configuration 'wmdp-bio', split 'test': there is no column 'choices' (did you mean "
        "'choice'?); it has question, choice, answer"
    )
    # The bio file beside it must not be taken for cyber's.
    with pytest.raises(DataError, match="no folder 'wmdp-cyber' and no file wmdp-cyber"):
        data.training("cyber", "forget")
    with pytest.raises(DataError, match=r"no domain 'boi' \(did you mean 'bio'\?\)"):
        data.training("boi", "forget")
    one = DataConfig(family="wmdp", path=str(tmp_path / "wmdp-bio" / "test.parquet"))
    with pytest.raises(DataError, match="is one file, and the data set has several configurations"):
        load_data(one, 0).training("cyber", "forget")
    with pytest.raises(DataError, match="there is no directory '/nowhere/at/all'"):
        load_data(DataConfig(family="mmlu", path="/nowhere/at/all"), 0).questions(
            "mmlu", "held_out", "report"
        )
    with pytest.raises(DataError, match="'cifar10' is for presets of kind fedsgt"):
        load_data(DataConfig(family="facts", also={"cifar10": ""}), 0)


def test_a_data_set_saved_to_disk_and_letters_for_labels(tmp_path: Path) -> None:
    rows = {"question": ["q1", "q2"], "choices": [["a", "b"]] * 2, "answer": ["B", "A"]}
    DatasetDict({"test": Dataset.from_dict(rows)}).save_to_disk(str(tmp_path / "wmdp-chem"))
    data: Any = load_data(DataConfig(family="wmdp", path=str(tmp_path)), 0)
    labels = {one.question: one.label for one in data.multiple_choice("chem", "held_out", "all")}
    assert labels == {"q1": 1, "q2": 0}


def test_tables_of_ones_own(tmp_path: Path) -> None:
    lines = ["ask,options,gold,reply", 'one?,"[""a"", ""b""]",1,', "two?,,,yes"]
    (tmp_path / "herbs.csv").write_text("\n".join(lines))
    Dataset.from_dict({"ask": ["three?"], "reply": ["no"]}).to_parquet(str(tmp_path / "stars.parquet"))
    fields = FieldsConfig(question="ask", answer="reply", choices="options", label="gold")
    cfg = DataConfig(family="table", path=str(tmp_path), fields=fields)
    data: Data = load_data(cfg, 0)
    assert data.domains() == ["herbs", "stars"]
    assert [(one.prompt, one.text) for one in data.training("herbs", "forget")] == [("two?", " yes")]
    asked = [q for split in ("select", "report") for q in data.questions("herbs", "forget", split)]
    assert [(q.choices, q.answer) for q in asked] == [((" a", " b"), 1)]
    group = ClientGroup("forget", "mine", path=str(tmp_path / "stars.parquet"))
    config = RunConfig(data=DataConfig(family="facts", fields=fields), clients=[group])
    assert [one.text for one in client_examples(config, expand_clients([group])[0])] == [" no"]
    (tmp_path / "herbs.csv").write_text('ask,options,gold,reply\none?,"[""a"", ""b""]",5,\n')
    with pytest.raises(DataError, match=r"herbs.csv, row 0: 'gold' is 5, outside 0 to 1"):
        load_data(cfg, 0)
    with pytest.raises(DataError, match="is empty; family 'table'"):
        load_data(DataConfig(family="table"), 0)
