"""The arithmetic of the baselines against NumPy and plain torch."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedforget.data.corpora import load_corpus
from fedforget.errors import ModelError
from fedforget.seeds import derive_seed
from fedforget.sequential.ascent import ascend_locally, project_to_ball
from fedforget.sequential.calibration import applied, calibrated
from fedforget.sequential.classifiers import load_classifier
from fedforget.sequential.config import SequentialRunConfig
from fedforget.sequential.modules import PrefixModule
from fedforget.sequential.one_shot import averaged_chain
from fedforget.sequential.serving import Predictor
from fedforget.sequential.stack import ModuleStack

Config = Callable[..., SequentialRunConfig]


def noisy(stack: ModuleStack, seed: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {k: v + 0.1 * torch.randn(v.shape, generator=draw) for k, v in stack.initial([], seed).items()}


def test_a_calibrated_update_has_the_stored_norm_and_the_fresh_direction() -> None:
    draw = torch.Generator().manual_seed(0)
    stored = {"a": torch.randn(3, 4, generator=draw), "b": torch.randn(5, generator=draw)}
    fresh = {"a": torch.randn(3, 4, generator=draw), "b": torch.zeros(5)}
    found = calibrated(stored, fresh)
    u, v = stored["a"].numpy().astype(np.float64), fresh["a"].numpy().astype(np.float64)
    np.testing.assert_allclose(found["a"].numpy(), np.linalg.norm(u) * v / np.linalg.norm(v), rtol=1e-6)
    assert found["a"].dtype == torch.float32
    assert not found["b"].any()


def test_updates_are_applied_by_examples_in_any_order() -> None:
    start = {"a": torch.tensor([1.0, 2.0])}
    updates = {"y": (1, {"a": torch.tensor([4.0, 0.0])}), "x": (3, {"a": torch.tensor([0.0, 8.0])})}
    # [1, 2] + (1 * [4, 0] + 3 * [0, 8]) / 4
    assert applied(start, updates)["a"].tolist() == [2.0, 8.0]
    turned = dict(reversed(updates.items()))
    assert torch.equal(applied(start, turned)["a"], applied(start, updates)["a"])


def test_projection_reaches_the_sphere_and_leaves_the_inside_alone() -> None:
    centre = [torch.tensor([1.0, 0.0]), torch.tensor([0.0])]
    far = [torch.tensor([4.0, 0.0]), torch.tensor([4.0])]
    project_to_ball(far, centre, 2.5)  # (3, 0, 4) has length 5
    assert far[0].tolist() == pytest.approx([2.5, 0.0])
    assert far[1].tolist() == pytest.approx([2.0])
    near = [torch.tensor([1.5, 0.0]), torch.tensor([0.5])]
    kept = [one.clone() for one in near]
    project_to_ball(near, centre, 2.5)
    assert all(map(torch.equal, near, kept))


def test_ascent_is_sgd_on_minus_the_loss_inside_the_ball(config: Config) -> None:
    made = config("ascent.epochs=2 ascent.batch_size=8 ascent.learning_rate=0.5 ascent.max_grad_norm=1")
    records = load_corpus(made.data, made.seeds.data).federated
    records = records.subset(records.ids[:12])
    stack = ModuleStack(load_classifier(made), made.module)
    reference, radius = noisy(stack, 3), 0.7
    found = ascend_locally(stack, reference, records, made.ascent, radius=radius, seed=5, threads=1)

    stack.begin([], reference, 0)
    parameters = list(stack.parameters())
    centre = [one.detach().numpy().astype(np.float64) for one in parameters]
    order = torch.Generator().manual_seed(derive_seed(5, "order"))
    reached = 0.0
    for _ in range(2):
        indices = torch.randperm(12, generator=order).tolist()
        for part in (indices[:8], indices[8:]):
            inputs, labels = records.batch(part)
            stack.model.train()
            logits = stack.model(**stack.classifier.encode(inputs)).logits
            loss = nn.functional.cross_entropy(logits, torch.from_numpy(labels))
            gradients = [g.numpy().astype(np.float64) for g in torch.autograd.grad(loss, parameters)]
            norm = math.sqrt(sum(float((g**2).sum()) for g in gradients))
            scale = 0.5 * min(1.0, 1.0 / norm)
            moved = [p.detach().numpy() + scale * g for p, g in zip(parameters, gradients, strict=True)]
            reached = math.sqrt(sum(float(((m - c) ** 2).sum()) for m, c in zip(moved, centre, strict=True)))
            shrink = min(1.0, radius / reached)
            with torch.no_grad():
                for parameter, new, middle in zip(parameters, moved, centre, strict=True):
                    parameter.copy_(torch.from_numpy(middle + (new - middle) * shrink))
    assert reached > radius  # the ball was in the way
    expected = stack.trained()
    for name, tensor in found.tensors.items():
        np.testing.assert_allclose(tensor.numpy(), expected[name].numpy(), atol=1e-5)
    assert found.last_loss > found.first_loss
    assert found.num_examples == 12


@pytest.mark.parametrize("kind", ["lora", "ia3"])
def test_the_average_of_modules_is_the_average_of_what_they_do_to_the_weights(
    config: Config, kind: str
) -> None:
    made = config(f"module.kind={kind}")
    classifier = load_classifier(made)
    stack = ModuleStack(classifier, made.module)
    modules = [PrefixModule((i,), noisy(stack, i)) for i in range(3)]
    images = load_corpus(made.data, made.seeds.data).test.inputs[:6]
    chain = averaged_chain(modules, kind)
    served = Predictor(
        load_classifier(made), made.module, {one.prefix: one for one in chain}, [chain[-1].prefix]
    ).probabilities(images)

    bare = load_classifier(made)
    layers = dict(bare.model.named_modules())
    with torch.no_grad():
        for name in modules[0].tensors:
            each = [one.tensors[name] for one in modules]
            if ".lora_A." in name:
                ups = [one.tensors[name.replace("lora_A", "lora_B")] for one in modules]
                updates = [
                    up @ down * (made.module.alpha / made.module.r)
                    for up, down in zip(ups, each, strict=True)
                ]
                layers[name.removesuffix(".lora_A.weight")].weight += torch.stack(updates).mean(0)
            elif name.endswith(".ia3_l"):
                layer, scale = layers[name.removesuffix(".ia3_l")], torch.stack(each).mean(0).flatten()
                layer.weight *= scale[:, None]
                layer.bias *= scale
            elif ".lora_B." not in name:
                bare.model.get_parameter(name).copy_(torch.stack(each).mean(0))
        bare.model.eval()
        expected = torch.softmax(bare.model(**bare.encode(images)).logits.double(), -1).numpy()
    np.testing.assert_allclose(served, expected, atol=1e-5)
    with pytest.raises(ModelError, match="dora modules have no average"):
        averaged_chain(modules, "dora")
