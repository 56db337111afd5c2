"""AllSeq in one batched pass against B separate models, side by side: time per input and memory of weights.

    python benchmarks/serving.py                                  the digits preset, modules drawn at random
    python benchmarks/serving.py fedsgt-text serving.batch_size=32
    python benchmarks/serving.py fedsgt-cifar10 --device cuda     needs the model (hub or model.path=...)

Weights do not matter to the time, so nothing is trained: every module is its initial draw plus noise.
Three ways to the same answer are timed in turn, several times, and the medians printed:

- batched: one backbone, all prefixes in one pass (what ``Predictor`` does for LoRA and IA3);
- stacked: one backbone, the prefixes loaded and run one after the other through PEFT's adapters;
- separate: B backbones, each with its prefix folded into its weights (LoRA only): the fastest that
  B models of their own can be.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fedforget import presets
from fedforget.data.corpora import load_corpus
from fedforget.sequences import plan_sequences
from fedforget.sequential.classifiers import load_classifier
from fedforget.sequential.modules import PrefixModule
from fedforget.sequential.serving import Predictor
from fedforget.sequential.stack import ModuleStack


def main() -> None:
    """Run the benchmark and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("preset", nargs="?", default="fedsgt-digits")
    parser.add_argument("overrides", nargs="*", help="key=value")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 32, 128])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    config = presets.load_sequential(args.preset, [*args.overrides, f"model.device={args.device}"])
    corpus = load_corpus(config.data, config.seeds.data)
    sequences = plan_sequences(config.grouping.groups, config.sequences.budget)
    stack = ModuleStack(load_classifier(config), config.module)
    modules = _random_modules(stack, sequences)
    inputs = corpus.test.inputs
    print(
        f"{args.preset}: {len(modules)} modules, {len(sequences)} sequences, {config.module.kind}, ", end=""
    )
    print(f"{args.device}, {args.threads} threads; milliseconds per batch, median of {args.repeats}")
    print(f"{'batch':>6} {'batched':>10} {'stacked':>10} {'separate':>10} {'largest difference':>20}")
    rows = config.serving.batch_size
    separate = _folded(config, modules, sequences) if config.module.kind == "lora" else None
    for size in args.batch_sizes:
        batch = inputs[:size]
        together = Predictor(load_classifier(config), config.module, modules, sequences, batch_size=rows)
        one_by_one = Predictor(
            load_classifier(config), config.module, modules, sequences, batch_size=rows, batched=False
        )
        ways: dict[str, Callable[[Any], Any]] = {
            "batched": together.probabilities,
            "stacked": one_by_one.probabilities,
        }
        if separate is not None:
            ways["separate"] = separate
        answers = {name: way(batch) for name, way in ways.items()}
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(args.repeats):
            for name, way in ways.items():
                times[name].append(_timed(way, batch, args.device))
        reference = answers["stacked"]
        gap = max(float(np.abs(answer - reference).max()) for answer in answers.values())
        cells = [
            f"{1e3 * statistics.median(times[n]):10.2f}" if n in times else f"{'-':>10}"
            for n in ("batched", "stacked", "separate")
        ]
        print(f"{len(batch):>6} {' '.join(cells)} {gap:>20.1e}")
    backbone = sum(p.numel() * p.element_size() for p in load_classifier(config).model.parameters())
    adapters = sum(module.bytes for module in modules.values())
    print(
        f"weights: batched and stacked {(backbone + adapters) / 1e6:.2f} MB (one backbone and all modules), "
    )
    print(f"separate {len(sequences) * backbone / 1e6:.2f} MB ({len(sequences)} backbones)")


def _random_modules(
    stack: ModuleStack, sequences: list[tuple[int, ...]]
) -> dict[tuple[int, ...], PrefixModule]:
    generator = torch.Generator().manual_seed(0)
    modules: dict[tuple[int, ...], PrefixModule] = {}
    for sequence in sequences:
        for depth in range(1, len(sequence) + 1):
            prefix = sequence[:depth]
            if prefix not in modules:
                tensors = stack.initial([modules[prefix[:d]] for d in range(1, depth)], depth)
                noisy = {
                    name: value + 0.02 * torch.randn(value.shape, generator=generator)
                    for name, value in tensors.items()
                }
                modules[prefix] = PrefixModule(prefix, noisy)
    return modules


def _folded(
    config: Any, modules: dict[tuple[int, ...], PrefixModule], sequences: list[tuple[int, ...]]
) -> Callable[[Any], Any]:
    """Return the average of B classifiers whose weights hold their prefix's low-rank updates."""
    scale = config.module.alpha / config.module.r
    models = []
    for sequence in sequences:
        classifier = load_classifier(config)
        weights = dict(classifier.model.named_parameters())
        with torch.no_grad():
            for depth in range(1, len(sequence) + 1):
                tensors = modules[sequence[:depth]].tensors
                for name, A in tensors.items():
                    if name.endswith(".lora_A.weight"):
                        layer = name.removesuffix(".lora_A.weight")
                        update = scale * tensors[f"{layer}.lora_B.weight"] @ A
                        weights[f"{layer}.weight"].add_(update.to(classifier.device))
            for name, value in classifier.head_parameters():
                value.copy_(modules[sequence].tensors[name])
        models.append(classifier)

    def answer(inputs: Any) -> Any:
        found = torch.zeros(())
        for classifier in models:
            with torch.inference_mode(), classifier.autocast():
                logits = classifier.model(**classifier.encode(inputs)).logits
            found = found + torch.softmax(logits.double().cpu(), dim=-1) / len(models)
        return found.numpy()

    return answer


def _timed(way: Callable[[Any], Any], batch: Any, device: str) -> float:
    started = time.perf_counter()
    way(batch)
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
