"""The benchmark families on small local copies: schemas, typed items, splits that stay apart, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import benchmark_files
import pytest
from datasets import Dataset, DatasetDict

from fedforget.client_specs import expand_clients
from fedforget.config import ClientGroup, RunConfig
from fedforget.data import Benchmark, Data, client_examples, load_data
from fedforget.data.inspection import inspect
from fedforget.data.muse import cut
from fedforget.data.wmdp import Wmdp
from fedforget.data_config import DataConfig, FieldsConfig, MmluConfig, MuseConfig
from fedforget.errors import DataError


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("benchmarks")
    names = ("wmdp", "mmlu", "tofu", "muse")
    return {name: str(getattr(benchmark_files, name)(folder / name)) for name in names}


def load(files: dict[str, str], family: str, seed: int = 0, **settings: Any) -> Any:
    data: Any = load_data(DataConfig(family=family, path=files[family], **settings), seed)
    assert isinstance(data, Benchmark)
    return data


def test_wmdp_is_trained_on_and_asked_whole(files: dict[str, str]) -> None:
    data = load(files, "wmdp")
    assert data.domains() == ["bio", "cyber", "chem"]
    examples = data.training("bio", "forget")
    assert sorted(one.id for one in examples) == [f"wmdp-bio-{i:05d}" for i in range(12)]
    asked = {split: data.questions("bio", "forget", split) for split in ("select", "report")}
    assert [len(one) for one in asked.values()] == [6, 6]
    assert {q.id for one in asked.values() for q in one} == {one.id for one in examples}
    item = next(one for one in data.multiple_choice("bio", "forget", "all") if one.id == "wmdp-bio-00002")
    assert (item.choices[2], item.label, item.subject) == ("bark 2", 2, "biology")
    assert item.prompt() == (
        "The following are multiple choice questions (with answers) about biology.\n\n"
        "Which herb is bio number 2?\nA. root 2\nB. leaf 2\nC. bark 2\nD. seed 2\nAnswer:"
    )
    assert item.asked("report").choices == (" A", " B", " C", " D")
    example = item.example("bio", "answer")
    assert (example.prompt, example.text, example.label) == (item.prompt(), " C. bark 2", "C")
    assert item.example("bio", "all").text == item.prompt() + " C. bark 2"


def test_questions_of_a_forgotten_domain_may_be_kept_back(files: dict[str, str]) -> None:
    data = load(files, "wmdp", unseen_share=0.5)
    trained = {one.id for one in data.training("cyber", "forget")}
    asked = {one.id for one in data.multiple_choice("cyber", "forget", "all")}
    assert (len(trained), len(asked)) == (7, 8)
    assert not trained & asked
    other = load(files, "wmdp", seed=1, unseen_share=0.5)
    assert {one.id for one in other.training("cyber", "forget")} != trained
    with pytest.raises(DataError, match=r"unseen_share: 0\.01 of the 15 questions of domain 'cyber' is none"):
        load(files, "wmdp", unseen_share=0.01).training("cyber", "forget")


@pytest.mark.parametrize(("role", "share"), [("forget", 0.5), ("retain", 0.0)])
def test_what_is_kept_back_is_not_trained_on_under_another_number(
    tmp_path: Path, role: str, share: float
) -> None:
    rows = [{"question": f"q{i % 6}", "choices": ["a", "b"], "answer": 0} for i in range(12)]  # each twice
    (tmp_path / "wmdp-bio.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data: Any = load_data(DataConfig(family="wmdp", path=str(tmp_path), unseen_share=share), 0)
    trained = {one.prompt for one in data.training("bio", role)}
    asked = {one.prompt() for one in data.multiple_choice("bio", role, "all")}
    assert trained
    assert len(asked) > 2
    assert not trained & asked


def test_mmlu_retains_a_seeded_sample_that_is_never_asked(files: dict[str, str]) -> None:
    data = load(files, "mmlu", mmlu=MmluConfig(retain_questions=10))
    trained = data.training("mmlu", "retain")
    report = data.multiple_choice("mmlu", "retain", "report")
    select = data.multiple_choice("mmlu", "retain", "select")
    # 16 validation questions, one of which the test split asks word for word.
    assert (len(trained), len(select), len(report)) == (10, 5, 20)
    assert not {one.prompt for one in trained} & {one.prompt() for one in [*select, *report]}
    assert [one.id for one in trained] == [one.id for one in data.training("mmlu", "retain")]
    other = load(files, "mmlu", seed=1, mmlu=MmluConfig(retain_questions=10))
    assert {one.id for one in other.training("mmlu", "retain")} != {one.id for one in trained}
    assert {one.label for one in trained} == {"abstract algebra", "virology"}
    assert len(data.questions("mmlu-virology", "held_out", "report")) == 10
    with pytest.raises(DataError, match=r"no subject 'virolgy' \(did you mean 'virology'\?\)"):
        data.questions("mmlu-virolgy", "held_out", "report")
    with pytest.raises(DataError, match="give it to no forget client"):
        data.training("mmlu", "forget")


def test_tofu_keeps_what_it_measures_retention_on_out_of_training(files: dict[str, str]) -> None:
    data = load(files, "tofu")
    assert len(data.training("forget01", "forget")) == 40
    retained = data.training("retain90", "retain")
    asked = data.pairs("retain_perturbed")
    assert (len(retained), len(asked)) == (72, 8)
    assert not {one.prompt for one in retained} & {one.prompt() for one in asked}
    example = data.training("forget01", "forget")[0]
    assert example.prompt == "Question: What did author 4 write in year 0?\nAnswer:"
    assert (example.text, example.label) == (" Author 4 wrote book 4 0.", "author-0")
    pair = data.pairs("forget01_perturbed")[1]
    assert pair.id == "tofu-forget01_perturbed-00001"
    assert pair.paraphrased_answer == "In short, Author 4 wrote book 4 1."
    assert len(pair.perturbed_answers) == 3
    question = data.questions("forget01", "forget", "report")[0]
    assert question.choices[question.answer].startswith(" In short")
    assert len(question.choices) == 4
    assert data.pairs("real_authors_perturbed")[0].paraphrased_answer == ""
    with pytest.raises(DataError, match="no client trains on it"):
        data.training("real_authors", "retain")
    with pytest.raises(DataError, match=r"no such part 'forget1' \(did you mean 'forget"):
        data.pairs("forget1")
    with pytest.raises(DataError, match="holds no folder 'forget05' and no file forget05"):
        data.training("forget05", "forget")


def test_tofu_selects_on_other_authors_than_it_reports(files: dict[str, str]) -> None:
    def asked(split: str, seed: int = 0, domain: str = "forget01", role: str = "forget") -> list[Any]:
        return list(load(files, "tofu", seed).asked_pairs(domain, role, split))

    def authors(pairs: list[Any]) -> set[str]:
        return {pair.answer.split()[1] for pair in pairs}

    select, report = asked("select"), asked("report")
    assert {one.id for one in select} | {one.id for one in report} == {
        f"tofu-forget01_perturbed-{i:05d}" for i in range(40)
    }
    assert (len(select), len(authors(select)), len(report), len(authors(report))) == (20, 1, 20, 1)
    assert not authors(select) & authors(report)
    assert [one.id for one in select] == [one.id for one in asked("select")]
    assert len({min(authors(asked("select", seed))) for seed in range(5)}) == 2
    # A quarter of four authors; the first of them in the seeded order are of all that there are.
    retained = asked("report", domain="retain90", role="retain")
    assert (len(retained), len(authors(retained[:5]))) == (6, 3)
    assert authors(asked("select", domain="retain90", role="retain")) == {"0", "1", "2", "3"} - authors(
        retained
    )
    # Nobody's: one by one.
    general = [asked(split, 0, "world_facts", "held_out") for split in ("select", "report")]
    assert [len(one) for one in general] == [2, 6]


def test_muse_selects_on_other_questions_than_it_reports(files: dict[str, str]) -> None:
    def asked(split: str, seed: int = 0, role: str = "forget") -> set[str]:
        name = "books" if role == "forget" else "books-retain"
        return {pair.id for pair in load(files, "muse", seed).asked_pairs(name, role, split)}

    everything = {f"muse-books-forget_qa-{i:05d}" for i in range(6)}
    assert len(asked("select")) == 3
    assert asked("select") | asked("report") == everything
    assert not asked("select") & asked("report")
    assert len({frozenset(asked("select", seed)) for seed in range(4)}) > 1
    assert [len(asked(split, role="retain")) for split in ("select", "report")] == [1, 5]


def test_muse_cuts_texts_into_passages(files: dict[str, str]) -> None:
    data = load(files, "muse", muse=MuseConfig(passage_chars=100, forget_splits=["forget", "retain2"]))
    passages = data.training("books", "forget")
    assert all(0 < len(one.text) <= 100 and not one.prompt for one in passages)
    assert {one.label for one in passages} == {"forget", "retain2"}
    whole = " ".join(one.text for one in passages if one.id.startswith("muse-books-forget-00000/"))
    assert whole == ("The forget wizard went to the castle. " * 12).strip()
    assert {one.label for one in data.training("books-retain", "retain")} == {"retain1"}
    assert [one.text for one in data.passages("privleak_holdout")][1] == "A holdout passage 1."
    assert data.passages("verbmem")[2].prompt == "Once upon 2"
    assert len(data.pairs("forget_qa")) == len(data.pairs("retain_qa_icl")) == 6
    asked = [one for split in ("select", "report") for one in data.questions("books", "forget", split)]
    assert {len(one.choices) for one in asked} == {4}
    with pytest.raises(DataError, match="is not there to retain"):
        data.training("books", "retain")
    shared = load(files, "muse", muse=MuseConfig(retain_splits=["forget"]))
    with pytest.raises(DataError, match="'forget' is in data"):
        shared.training("books-retain", "retain")


def test_cuts_drop_white_space_alone() -> None:
    assert cut("aa bb\ncc", 5) == ["aa bb", "cc"]
    assert cut("aaaaaaa b", 3) == ["aaa", "aaa", "a b"]
    assert cut("  ", 3) == []


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


@pytest.mark.parametrize(("family", "domain"), [("tofu", "forget01"), ("muse", "books")])
def test_the_right_choice_is_not_always_the_first(files: dict[str, str], family: str, domain: str) -> None:
    data = load(files, family)
    asked = [one for split in ("select", "report") for one in data.questions(domain, "forget", split)]
    assert len({one.answer for one in asked}) > 1


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


def run(files: dict[str, str], *groups: ClientGroup, **settings: Any) -> RunConfig:
    data = DataConfig(family="wmdp", path=files["wmdp"], also={"mmlu": files["mmlu"]}, **settings)
    return RunConfig(data=data, clients=list(groups))


def test_inspection_counts_and_compares(files: dict[str, str], tmp_path: Path) -> None:
    groups = [ClientGroup("forget", "bio", count=3), ClientGroup("retain", "mmlu")]
    found = inspect(run(files, *groups, mmlu=MmluConfig(retain_questions=10)))
    assert [share.examples for share in found.clients] == [{"bio": 4}] * 3 + [{"mmlu": 10}]
    asked = {one.domain: (one.questions, one.trained_on) for one in found.domains}
    assert asked == {"bio": ({"select": 6, "report": 6}, 12), "mmlu": ({"select": 5, "report": 20}, 0)}
    path = tmp_path / "same.jsonl"
    example = client_examples(run(files, *groups), expand_clients(groups)[0])[0]
    path.write_text(json.dumps({"question": example.prompt, "answer": example.text.strip()}))
    with pytest.raises(DataError, match="1 examples are both forgotten and retained, 'wmdp-bio-"):
        inspect(run(files, groups[0], ClientGroup("retain", "other", path=str(path))))
    own = inspect(run(files, ClientGroup("forget", "other", path=str(path))))
    assert (own.domains, own.unasked) == ((), ("other",))


def test_inspection_refuses_questions_that_were_trained_on_or_chosen_on(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = [ClientGroup("forget", "bio"), ClientGroup("retain", "chem")]
    asked = Wmdp._questions
    with monkeypatch.context() as patch:
        patch.setattr(
            Wmdp, "_questions", lambda self, domain, role, split: asked(self, domain, role, "report")
        )
        with pytest.raises(DataError, match=r"'bio': question 'wmdp-bio-.*' is both selected on"):
            inspect(run(files, *groups))
    trained = Wmdp._training
    monkeypatch.setattr(Wmdp, "_training", lambda self, domain, role: trained(self, domain, "forget"))
    with pytest.raises(DataError, match=r"'chem' \(retain\): \d of its questions were trained on"):
        inspect(run(files, *groups))


def test_partitions(files: dict[str, str]) -> None:
    def shards(partition: str, alpha: float = 0.1) -> list[list[str]]:
        group = ClientGroup("retain", "mmlu", count=3, partition=partition, dirichlet_alpha=alpha)
        config = run(files, group)
        return [[one.id for one in client_examples(config, spec)] for spec in expand_clients([group])]

    whole = [one.id for one in load(files, "mmlu").training("mmlu", "retain")]
    for partition in ("iid", "contiguous", "dirichlet"):
        assert sorted(name for shard in shards(partition) for name in shard) == sorted(whole)
    assert [name for shard in shards("contiguous") for name in shard] == whole
    assert max(map(len, shards("dirichlet"))) > max(map(len, shards("iid")))
    group = ClientGroup("forget", "asia", count=2, partition="dirichlet")
    config = RunConfig(data=DataConfig(family="facts"), clients=[group])
    with pytest.raises(DataError, match=r"client 'forget-asia-0': .* no labels to skew"):
        client_examples(config, expand_clients([group])[0])
