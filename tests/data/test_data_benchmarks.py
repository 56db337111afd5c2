"""The benchmark families on small local copies: typed items, splits that stay apart, inspection."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedforget.client_specs import expand_clients
from fedforget.config import ClientGroup, RunConfig
from fedforget.data import Benchmark, client_examples, load_data
from fedforget.data.inspection import inspect
from fedforget.data.muse import cut
from fedforget.data.wmdp import Wmdp
from fedforget.data_config import DataConfig, MmluConfig, MuseConfig
from fedforget.errors import DataError


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


@pytest.mark.parametrize(("family", "domain"), [("tofu", "forget01"), ("muse", "books")])
def test_the_right_choice_is_not_always_the_first(files: dict[str, str], family: str, domain: str) -> None:
    data = load(files, family)
    asked = [one for split in ("select", "report") for one in data.questions(domain, "forget", split)]
    assert len({one.answer for one in asked}) > 1


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
