"""The local loop: tokens and targets, batches, determinism and collapse."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from fedforget.adapters import lora_attached, lora_factors
from fedforget.config import LoraConfig, TrainingConfig
from fedforget.data import Example
from fedforget.data.fictional import pretraining
from fedforget.encoding import batches, collate, encode
from fedforget.errors import TrainingError
from fedforget.models import Backbone
from fedforget.objectives import objective
from fedforget.training import TrainingReport, train

EXAMPLES = [example for example in pretraining() if example.prompt][:12]
SHORT = TrainingConfig(steps=4, batch_size=4, learning_rate=1e-2)


def byte_pairs(merges: list[tuple[str, str]]) -> Any:
    """A byte-level BPE over single characters and the given merges."""
    symbols = ["<end>", *"abcĠ", *("".join(pair) for pair in merges)]
    core = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(symbols)}, merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>")


def run(backbone: Backbone, cfg: TrainingConfig = SHORT, **options: Any) -> tuple[TrainingReport, Any]:
    lora = LoraConfig(r=4, dropout=options.pop("dropout", 0.0))
    with lora_attached(backbone, lora, seed=0) as attached:
        settings = {"max_length": 32, "seed": 0, **options}
        chosen = settings.pop("objective", objective("causal_lm"))
        report = train(
            attached, backbone.tokenizer, settings.pop("examples", EXAMPLES), chosen, cfg, **settings
        )
        return report, lora_factors(attached)


def same(left: Any, right: Any) -> bool:
    return all(
        torch.equal(left[name].A, right[name].A) and torch.equal(left[name].B, right[name].B) for name in left
    )


def test_prompt_and_text_are_tokenised_together() -> None:
    # "ab" is one token, so the border between prompt "ca" and text "b" lies inside it: the merged
    # token holds a character of the text and is a target. Apart, they would be c, a, b.
    tokenizer = byte_pairs([("a", "b")])
    (encoded,) = encode(tokenizer, [Example("x", "d", text="b", prompt="ca")], 16)
    assert tokenizer.convert_ids_to_tokens(encoded.input_ids.tolist()) == ["c", "ab", "<end>"]
    assert encoded.labels.tolist() == [-100, *encoded.input_ids.tolist()[1:]]


def test_the_text_begins_with_its_own_space() -> None:
    tokenizer = byte_pairs([("Ġ", "b")])
    (encoded,) = encode(tokenizer, [Example("x", "d", text=" b", prompt="ca")], 16)
    assert tokenizer.convert_ids_to_tokens(encoded.input_ids.tolist()) == ["c", "a", "Ġb", "<end>"]
    assert encoded.labels.tolist() == [-100, -100, *encoded.input_ids.tolist()[2:]]


def test_without_a_prompt_every_token_is_a_target_and_there_is_no_end() -> None:
    (encoded,) = encode(byte_pairs([]), [Example("x", "d", text="abc")], 16)
    assert encoded.input_ids.tolist() == encoded.labels.tolist() == [1, 2, 3]


def test_long_sequences_are_cut() -> None:
    tokenizer = byte_pairs([])
    (encoded,) = encode(tokenizer, [Example("x", "d", text="bc", prompt="a")], 2)
    assert encoded.labels.tolist() == [-100, 2]
    with pytest.raises(TrainingError, match="example 'x' of domain 'd' has no target token within 1 tokens"):
        encode(tokenizer, [Example("x", "d", text="bc", prompt="a")], 1)


def test_a_single_token_has_nothing_to_predict() -> None:
    with pytest.raises(TrainingError, match="no target token"):
        encode(byte_pairs([]), [Example("x", "d", text="a")], 16)


def test_batches_keep_the_order_and_mask_the_padding() -> None:
    encoded = encode(byte_pairs([]), [Example(str(i), "d", text="abc"[: i + 2]) for i in (0, 1, 0)], 16)
    first, second = batches(encoded, pad_id=0, batch_size=2)
    assert first["input_ids"].tolist() == [[1, 2, 0], [1, 2, 3]]
    assert first["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert first["labels"].tolist() == [[1, 2, -100], [1, 2, 3]]
    assert second["input_ids"].tolist() == [[1, 2]]
    assert collate(encoded[:1], 0)["labels"].dtype == torch.int64


def test_training_learns(tiny_backbone: Backbone) -> None:
    report, factors = run(tiny_backbone, dataclasses.replace(SHORT, steps=60, batch_size=12))
    assert report.steps == len(report.losses) == 60
    assert (report.first_loss, report.last_loss) == (report.losses[0], report.losses[-1])
    assert report.last_loss < 0.95 * report.first_loss
    # Every batch is all twelve examples.
    lengths = [len(one.input_ids) for one in encode(tiny_backbone.tokenizer, EXAMPLES, 32)]
    assert report.tokens == 60 * sum(lengths)
    assert all(one.B.abs().max() > 0 for one in factors.values())


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_same_seed_gives_the_same_bits(tiny_backbone: Backbone, dropout: float) -> None:
    torch.manual_seed(1)
    report, factors = run(tiny_backbone, dropout=dropout)
    torch.manual_seed(2)
    again, others = run(tiny_backbone, dropout=dropout)
    assert report.losses == again.losses
    assert same(factors, others)
    assert not same(factors, run(tiny_backbone, dropout=dropout, seed=1)[1])


def test_dropout_takes_part(tiny_backbone: Backbone) -> None:
    # The first loss is before B leaves zero, so dropout shows from the second step on.
    assert run(tiny_backbone)[0].losses[1:] != run(tiny_backbone, dropout=0.5)[0].losses[1:]


def test_the_global_random_state_is_left_alone(tiny_backbone: Backbone) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    run(tiny_backbone, dropout=0.5)
    assert torch.equal(torch.rand(3), expected)


def test_an_epoch_sees_every_example_once(tiny_backbone: Backbone) -> None:
    seen: list[list[int]] = []

    class Recording:
        def prepare(self, model: Any, seed: int, domain: str) -> Any:
            inner = objective("causal_lm").prepare(model, seed, domain)

            def loss(batch: Any) -> Any:
                seen.extend(row[mask == 1].tolist() for row, mask in zip(*map(batch.get, names), strict=True))
                return inner(batch)

            names = ("input_ids", "attention_mask")
            return loss

    run(tiny_backbone, dataclasses.replace(SHORT, steps=6), objective=Recording())
    expected = sorted(one.input_ids.tolist() for one in encode(tiny_backbone.tokenizer, EXAMPLES, 32))
    assert sorted(seen[:12]) == expected
    assert sorted(seen[12:]) == expected
    assert seen[:12] != seen[12:]


def test_objectives_get_the_shared_seed_and_the_domain(tiny_backbone: Backbone) -> None:
    got: list[tuple[int, str]] = []

    class Recording:
        def prepare(self, model: Any, seed: int, domain: str) -> Any:
            got.append((seed, domain))
            return objective("causal_lm").prepare(model, seed, domain)

    one = dataclasses.replace(SHORT, steps=1)
    run(tiny_backbone, one, objective=Recording(), seed=8)
    run(tiny_backbone, one, objective=Recording(), seed=9, shared_seed=4, domain="mine")
    assert got == [(0, EXAMPLES[0].domain), (4, "mine")]


def test_warm_up_shortens_the_first_steps(tiny_backbone: Backbone) -> None:
    # Adam's first step moves every B entry by the learning rate, whatever the gradient's size.
    one = dataclasses.replace(SHORT, steps=1)
    plain = run(tiny_backbone, one)[1]
    warm = run(tiny_backbone, dataclasses.replace(one, warmup_steps=4))[1]
    for name in plain:
        assert float(plain[name].B.abs().max()) == pytest.approx(1e-2, rel=1e-3)
        assert float(warm[name].B.abs().max()) == pytest.approx(2.5e-3, rel=1e-3)


class Constant:
    """An objective with given losses, whose gradient is the given multiple of the adapter's sum."""

    def __init__(self, losses: list[float], slope: float = 0.0) -> None:
        self.losses, self.slope = losses, slope

    def prepare(self, model: Any, seed: int, domain: str) -> Any:
        weights = [p for p in model.parameters() if p.requires_grad]
        values = iter(self.losses)
        return lambda batch: next(values) + self.slope * sum(p.sum() - p.sum().detach() for p in weights)


@pytest.mark.parametrize(
    ("losses", "slope", "message"),
    [
        ([1.0, float("nan")], 0.0, "collapsed at step 2: loss nan; lower the learning rate"),
        ([1.0, 2.0, 101.0], 0.0, "collapsed at step 3: the loss went from 1 to 101"),
        ([1.0, 1.0], float("inf"), "collapsed at step 1: (loss|gradient norm)"),
    ],
)
def test_collapse_is_reported(
    tiny_backbone: Backbone, losses: list[float], slope: float, message: str
) -> None:
    with pytest.raises(TrainingError, match=message):
        run(tiny_backbone, objective=Constant(losses, slope))


def test_nothing_to_train_on(tiny_backbone: Backbone) -> None:
    with pytest.raises(TrainingError, match="no examples"):
        run(tiny_backbone, examples=[])
    with pytest.raises(TrainingError, match="attach an adapter"):
        train(
            tiny_backbone.model,
            tiny_backbone.tokenizer,
            EXAMPLES,
            objective("causal_lm"),
            SHORT,
            max_length=32,
            seed=0,
        )
