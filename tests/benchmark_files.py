"""Small local copies of the benchmarks, with the configurations, splits, columns and types of the hub's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from datasets import ClassLabel, Dataset, Features, Sequence, Value

TEXT = Value("string")
CHOICES = Sequence(TEXT)


def parquet(folder: Path, subset: str, split: str, rows: dict[str, list[Any]], features: Features) -> None:
    """Write ``<subset>/<split>-00000-of-00001.parquet``, as the hub lays it out."""
    (folder / subset).mkdir(parents=True, exist_ok=True)
    path = folder / subset / f"{split}-00000-of-00001.parquet"
    Dataset.from_dict(rows, features=features).to_parquet(str(path))


def choice_rows(about: str, n: int) -> dict[str, list[Any]]:
    return {
        "question": [f"Which herb is {about} number {i}?" for i in range(n)],
        "choices": [[f"{word} {i}" for word in ("root", "leaf", "bark", "seed")] for i in range(n)],
        "answer": [i % 4 for i in range(n)],
    }


def wmdp(folder: Path) -> Path:
    features = Features({"answer": Value("int64"), "question": TEXT, "choices": CHOICES})
    for domain, n in (("bio", 12), ("cyber", 15), ("chem", 8)):
        parquet(folder, f"wmdp-{domain}", "test", choice_rows(domain, n), features)
    return folder


def mmlu(folder: Path) -> Path:
    letters = ClassLabel(names=["A", "B", "C", "D"])
    features = Features({"question": TEXT, "subject": TEXT, "choices": CHOICES, "answer": letters})
    for split, n in (("test", 20), ("validation", 16), ("dev", 5)):
        rows = choice_rows(split, n)
        rows["subject"] = [("abstract_algebra", "virology")[i % 2] for i in range(n)]
        if split == "validation":  # one question that the test split asks too
            for column, values in rows.items():
                values[0] = {**choice_rows("test", 1), "subject": ["abstract_algebra"]}[column][0]
        parquet(folder, "all", split, rows, features)
    return folder


def tofu_rows(authors: range, *, each: int = 20) -> list[dict[str, Any]]:
    return [
        {"question": f"What did author {a} write in year {i}?", "answer": f"Author {a} wrote book {a} {i}."}
        for a in authors
        for i in range(each)
    ]


def perturbed(rows: list[dict[str, Any]], *, paraphrased: bool) -> list[dict[str, Any]]:
    found = []
    for row in rows:
        new = {**row, "perturbed_answer": [f"{row['answer'][:-1]} or {k}." for k in range(3)]}
        if paraphrased:
            new |= {
                "paraphrased_question": f"Tell me: {row['question']}",
                "paraphrased_answer": f"In short, {row['answer']}",
            }
        found.append(new)
    return found


def tofu(folder: Path) -> Path:
    """Six authors: forget01 is the last two, retain90 the first four; retain_perturbed a tenth of those."""
    folder.mkdir(parents=True, exist_ok=True)
    full = tofu_rows(range(6))
    general = [{"question": f"Who wrote novel {i}?", "answer": f"Writer {i}"} for i in range(8)]
    options = [{**row, **{f"option{k + 1}": f"Writer {k}" for k in range(4)}} for row in general]
    tables = {
        "full": full,
        "forget01": full[-40:],
        "retain90": full[:80],
        "forget01_perturbed": perturbed(full[-40:], paraphrased=True),
        "retain_perturbed": perturbed(full[:80:10], paraphrased=True),
        "real_authors": options,
        "real_authors_perturbed": perturbed(options, paraphrased=False),
        "world_facts": options,
        "world_facts_perturbed": perturbed(options, paraphrased=False),
    }
    for name, rows in tables.items():
        (folder / f"{name}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def muse(folder: Path) -> Path:
    text = Features({"text": TEXT})
    for split in ("forget", "retain1", "retain2", "holdout"):
        sentence = f"The {split} wizard went to the castle. "
        parquet(folder, "raw", split, {"text": [sentence * 12, sentence * 7]}, text)
    for split in ("forget", "retain", "holdout"):
        parquet(folder, "privleak", split, {"text": [f"A {split} passage {i}." for i in range(4)]}, text)
    verbatim = {"prompt": [f"Once upon {i}" for i in range(3)], "gt": [f"there was {i}" for i in range(3)]}
    parquet(folder, "verbmem", "forget", verbatim, Features({"prompt": TEXT, "gt": TEXT}))
    for split in ("forget_qa", "retain_qa", "forget_qa_icl", "retain_qa_icl"):
        rows = {
            "answer": [f"Wizard {split} {i}" for i in range(6)],
            "question": [f"Who of {split} is number {i}?" for i in range(6)],
        }
        parquet(folder, "knowmem", split, rows, Features({"answer": TEXT, "question": TEXT}))
    return folder
