"""The paper's data sets and models on small local files of the same schema: the whole path, offline."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, Image, Value
from fedsgt_helpers import plan_of

from fedforget import presets
from fedforget.data.corpora import load_corpus
from fedforget.data.own_records import own_records
from fedforget.errors import DataError, ModelError
from fedforget.sequential.classifiers import load_classifier
from fedforget.sequential.config import ColumnsConfig, RecordsConfig, SequentialRunConfig
from fedforget.sequential.encoders import _tokenizer
from fedforget.sequential.reference import train_sequences_locally
from fedforget.sequential.serving import Predictor
from fedforget.sequential.stack import ModuleStack

PAIRS = {"sst2": ("sentence",), "qqp": ("question1", "question2"), "mnli": ("premise", "hypothesis")}


@pytest.fixture(scope="module")
def cifar(tmp_path_factory) -> Path:
    """CIFAR-10's schema: ``img`` (Image) and ``label`` (ClassLabel), parquet shards below plain_text/."""
    folder = tmp_path_factory.mktemp("cifar10")
    rng = np.random.default_rng(0)
    features = Features({"img": Image(), "label": ClassLabel(names=["cat", "dog", "frog"])})
    (folder / "plain_text").mkdir()
    for split, n in (("train", 24), ("test", 9)):
        rows = {
            "img": [rng.integers(0, 256, (32, 32, 3), dtype=np.uint8) for _ in range(n)],
            "label": [i % 3 for i in range(n)],
        }
        file = folder / "plain_text" / f"{split}-00000-of-00001.parquet"
        Dataset.from_dict(rows, features=features).to_parquet(str(file))
    return folder


@pytest.fixture(scope="module")
def glue(tmp_path_factory) -> Path:
    """GLUE's schema: one folder per task, validation splits, labels as ClassLabel."""
    folder = tmp_path_factory.mktemp("glue")
    for task, columns in PAIRS.items():
        names = ["entailment", "neutral", "contradiction"] if task == "mnli" else ["negative", "positive"]
        features = Features({**dict.fromkeys(columns, Value("string")), "label": ClassLabel(names=names)})
        test = "validation_matched" if task == "mnli" else "validation"
        for split, n in (("train", 24), (test, 8)):
            rows = {name: [f"{name} number {i} is fine" for i in range(n)] for name in columns}
            rows["label"] = [i % len(names) for i in range(n)]
            path = folder / task / f"{split}-00000-of-00001.parquet"
            path.parent.mkdir(exist_ok=True)
            Dataset.from_dict(rows, features=features).to_parquet(str(path))
    return folder


@pytest.fixture(scope="module")
def vit(tmp_path_factory) -> Path:
    """A ViT of the hub's layout, with a preprocessor and a head of another task."""
    from transformers import ViTConfig, ViTForImageClassification

    folder = tmp_path_factory.mktemp("vit")
    config = ViTConfig(
        image_size=32, patch_size=16, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, num_labels=7,
    )  # fmt: skip
    ViTForImageClassification(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(
        '{"image_processor_type": "ViTImageProcessor", '
        '"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.2, 0.2]}'
    )
    return folder


@pytest.fixture(scope="module")
def roberta(tmp_path_factory) -> Path:
    from transformers import RobertaConfig, RobertaForSequenceClassification

    folder = tmp_path_factory.mktemp("roberta")
    tokenizer = _tokenizer(["question1 number 1 is fine", "premise hypothesis sentence"])
    tokenizer.save_pretrained(folder)
    config = RobertaConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=64, pad_token_id=0,
    )  # fmt: skip
    RobertaForSequenceClassification(config).save_pretrained(folder)
    return folder


def small(preset: str, model: Path, data: Path) -> SequentialRunConfig:
    """The paper's preset on the small files, two clients and two groups."""
    return presets.load_sequential(
        preset,
        f"model.path={model} data.path={data} model.precision=fp32 model.device=cpu model.max_length=32 "
        "data.clients=2 data.slices=2 grouping.groups=2 sequences.budget=2 "
        "training.local_epochs=1 training.batch_size=8",
    )


def run(config: SequentialRunConfig) -> Predictor:
    corpus = load_corpus(config.data, config.seeds.data)
    plan = plan_of(config, corpus)
    modules = train_sequences_locally(config, plan)
    again = train_sequences_locally(config, plan, prefixes=[plan.sequences[1]])
    assert all(module.sha256 == modules[prefix].sha256 for prefix, module in again.items())
    return Predictor(load_classifier(config), config.module, modules, plan.sequences)


def test_cifar_by_the_papers_preset(cifar, vit):
    config = small("fedsgt-cifar10", vit, cifar)
    corpus = load_corpus(config.data, 0)
    assert corpus.labels == ("cat", "dog", "frog")
    assert (len(corpus.public), len(corpus.federated), len(corpus.test)) == (0, 24, 9)
    assert corpus.federated.inputs.shape == (24, 32, 32, 3)
    predictor = run(config)
    probabilities = predictor.probabilities(corpus.test.inputs)
    assert probabilities.shape == (9, 3)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)


def test_images_are_normalised_as_the_model_says(cifar, vit):
    config = small("fedsgt-cifar10", vit, cifar)
    white = np.full((1, 32, 32, 3), 255, dtype=np.uint8)
    pixels = load_classifier(config).encode(white)["pixel_values"]
    # (1 - mean) / std per channel
    np.testing.assert_allclose(pixels[0, :, 0, 0], [2.5, 3.0, 3.5], rtol=1e-6)


@pytest.mark.parametrize("task", list(PAIRS))
def test_glue_by_the_papers_presets(glue, roberta, task):
    config = small(f"fedsgt-{task}", roberta, glue)
    corpus = load_corpus(config.data, 0)
    first = corpus.federated.inputs[0]
    assert isinstance(first, str) if task == "sst2" else len(first) == 2
    assert run(config).probabilities(corpus.test.inputs).shape == (8, len(corpus.labels))


def test_the_head_that_a_checkpoint_lacks_is_drawn_from_the_seed(cifar, vit):
    config = small("fedsgt-cifar10", vit, cifar)
    seeds = dataclasses.replace(config.seeds, model=1)
    one, same = (load_classifier(config).fingerprint for _ in range(2))
    assert one == same != load_classifier(dataclasses.replace(config, seeds=seeds)).fingerprint


def test_a_missing_column_is_named(glue):
    cfg = RecordsConfig(family="sst2", path=str(glue), columns=ColumnsConfig(text="sentense"))
    with pytest.raises(DataError, match=r"no column 'sentense' \(did you mean 'sentence'\?\); it has"):
        load_corpus(cfg, 0)


def test_missing_files_and_splits_are_named(tmp_path, glue):
    with pytest.raises(DataError, match="there is no directory '/nowhere/at/all'"):
        load_corpus(RecordsConfig(family="sst2", path="/nowhere/at/all"), 0)
    with pytest.raises(DataError, match=r"holds no train\.parquet"):
        load_corpus(RecordsConfig(family="sst2", path=str(tmp_path)), 0)
    with pytest.raises(DataError, match="the training split"):
        load_corpus(RecordsConfig(family="sst2", path=str(glue), test_split="train"), 0)
    for name in ("plain_text", "old"):
        shutil.copytree(glue / "sst2", tmp_path / name)
    with pytest.raises(DataError, match="holds 'train' in old and plain_text; give one of them"):
        load_corpus(RecordsConfig(family="texts", path=str(tmp_path), test_split="validation"), 0)
    with pytest.raises(DataError, match=r"holds no dev\.parquet"):
        load_corpus(RecordsConfig(family="sst2", path=str(glue), test_split="dev"), 0)


def test_own_files_with_own_columns(tmp_path):
    for split, n in (("train", 6), ("test", 3)):
        lines = [f'{{"key": "k{i}", "body": "text {i}", "topic": "{"ab"[i % 2]}"}}' for i in range(n)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    cfg = RecordsConfig(
        family="texts", path=str(tmp_path), columns=ColumnsConfig(id="key", text="body", label="topic")
    )
    corpus = load_corpus(cfg, 0)
    assert corpus.labels == ("a", "b")
    assert corpus.federated.ids[:2] == ("texts-k0", "texts-k1")
    assert corpus.test.inputs == ("text 0", "text 1", "text 2")


def test_an_unlabelled_record_is_named(tmp_path):
    (tmp_path / "train.csv").write_text("text,label\nhello,0\nthere,1\n")
    (tmp_path / "test.csv").write_text("text,label\nhello,-1\n")
    with pytest.raises(DataError, match="row 0: its label is -1"):
        load_corpus(RecordsConfig(family="texts", path=str(tmp_path)), 0)


def test_models_that_cannot_be_loaded_are_named(cifar, tmp_path):
    with pytest.raises(ModelError, match=r"no config\.json"):
        load_classifier(small("fedsgt-cifar10", tmp_path, cifar))
    with pytest.raises(ModelError, match="there is no directory"):
        load_classifier(small("fedsgt-cifar10", Path("/nowhere/vit/base"), cifar))


def test_text_has_a_stack_too(glue, roberta):
    config = small("fedsgt-qqp", roberta, glue)
    stack = ModuleStack(load_classifier(config), config.module)
    head = {name for name in stack.initial([], 0) if name.startswith("classifier.")}
    parts = ("dense.weight", "dense.bias", "out_proj.weight", "out_proj.bias")
    assert head == {f"classifier.{part}" for part in parts}


def test_a_client_brings_images_of_its_own(cifar: Path, vit: Path, tmp_path: Path) -> None:
    features = Features({"id": Value("string"), "img": Image(), "label": Value("string")})
    pixels = np.arange(3072, dtype=np.uint16).reshape(32, 32, 3).astype(np.uint8)
    rows = {"id": ["b", "a"], "img": [pixels, 255 - pixels], "label": ["frog", "cat"]}
    Dataset.from_dict(rows, features=features).to_parquet(str(tmp_path / "mine.parquet"))
    found = own_records(small("fedsgt-cifar10", vit, cifar), tmp_path)
    assert (found.ids, found.labels.tolist()) == (("a", "b"), [0, 2])
    assert np.array_equal(found.inputs[1], pixels)
