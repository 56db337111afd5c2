"""A stack of modules over one frozen classifier: FedSGT, section 4.2, in PEFT's terms.

PEFT adapters are put in once per depth, in slots ``d1``, ``d2``, ...; loading a module copies its
tensors into a slot, and a prefix of i groups switches on slots 1 to i. The classification head
is part of each module, and a prefix is served with the head of its own last module: a head kept from
elsewhere would carry what it learnt there.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from peft import IA3Config, LoraConfig, inject_adapter_in_model
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from fedforget.errors import ModelError, nearest
from fedforget.rng import seeded
from fedforget.seeds import derive_seed
from fedforget.sequential.classifiers import Classifier
from fedforget.sequential.config import ModuleConfig
from fedforget.sequential.modules import PrefixModule

_SLOT = re.compile(r"\.(lora_[A-Za-z_]+|ia3_l)\.d(\d+)(?=\.|$)")


class ModuleStack:
    """Modules stacked over a classifier.

    The stack changes the classifier's model in place and owns it from then on. Whatever was
    loaded before, :meth:`load`, :meth:`begin` and :meth:`clear` set every tensor that takes part in
    what follows, so that nothing of it is left.

    Parameters
    ----------
    classifier : Classifier
        Frozen.
    cfg : ModuleConfig
        The kind of module.

    Raises
    ------
    ModelError
        A target that the classifier does not have, a block that does not exist, or a kind that cannot
        be stacked.
    """

    def __init__(self, classifier: Classifier, cfg: ModuleConfig) -> None:
        self.classifier = classifier
        self.cfg = cfg
        self._own_head = {name: value.detach().clone() for name, value in classifier.head_parameters()}
        self._names = dict(classifier.model.named_modules())
        self._slots: list[dict[str, nn.Parameter]] = []
        self._fresh: dict[str, Tensor] = {}
        self._depth = 0
        self._training = False
        _check_targets(self._names, cfg)
        self._grow(1)
        self.clear()

    @property
    def model(self) -> Any:
        """The classifier's model with the slots in it."""
        return self.classifier.model

    @property
    def module_bytes(self) -> int:
        """Size of one module, head included."""
        tensors = [*self._slots[0].values(), *self._own_head.values()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def clear(self) -> None:
        """Switch every slot off and give the classifier its own head back."""
        self._set_head(self._own_head)
        self._activate(0, trains=False)

    def load(self, modules: Sequence[PrefixModule]) -> None:
        """Load the modules of a prefix, of depth 1, 2, ..., to be served; none leaves the bare classifier.

        Raises
        ------
        ModelError
            The modules are not those of one prefix and its beginnings, or do not fit the classifier.
        """
        if not modules:
            self.clear()
            return
        self._fill(modules)
        self._set_head(self._head_of(modules[-1].tensors))
        self._activate(len(modules), trains=False)

    def begin(self, frozen: Sequence[PrefixModule], current: Mapping[str, Tensor] | None, seed: int) -> None:
        """Load the frozen modules of a prefix and, above them, one that trains.

        Parameters
        ----------
        frozen : sequence of PrefixModule
            Of depth 1 to i - 1; empty in the first phase.
        current : mapping of str to Tensor or None
            The module in training, as the server has averaged it; None draws a new one.
        seed : int
            Of the drawing; see :meth:`initial`.
        """
        self._fill(frozen)
        depth = len(frozen) + 1
        self._grow(depth)
        tensors = self.initial(frozen, seed) if current is None else current
        _check_names(tensors, self._fresh.keys() | self._own_head.keys(), f"the module of depth {depth}")
        _copy(self._slots[depth - 1], tensors)
        self._set_head(self._head_of(tensors))
        self._activate(depth, trains=True)

    def initial(self, frozen: Sequence[PrefixModule], seed: int) -> dict[str, Tensor]:
        """Return the tensors that a module begins with, the same on every client.

        LoRA's A is drawn from the seed and B is zero; magnitudes (DoRA) and scales (IA3) leave the
        classifier as it is. The head is a copy of the last frozen module's; in the first phase it is drawn
        from the seed, or is the classifier's own, by ``module.head``.
        """
        drawn: dict[str, Tensor] = {}
        for name, fresh in sorted(self._fresh.items()):
            drawn[name] = fresh.clone()
            if ".lora_A." in name:
                with seeded(derive_seed(seed, "initial", name)):
                    # The distribution that PEFT draws A from.
                    drawn[name] = nn.init.kaiming_uniform_(torch.empty(fresh.shape), a=5**0.5)
            elif ".lora_B." in name:
                drawn[name] = torch.zeros(fresh.shape)
        if frozen:
            return drawn | {name: value.clone() for name, value in self._head_of(frozen[-1].tensors).items()}
        for name, own in sorted(self._own_head.items()):
            drawn[name] = own.cpu().clone()
            if self.cfg.head == "seeded":
                with seeded(derive_seed(seed, "initial", name)):
                    drawn[name] = torch.randn(own.shape) * 0.02 if own.dim() > 1 else torch.zeros(own.shape)
        return drawn

    def trained(self) -> dict[str, Tensor]:
        """Return a copy of the module that trains, on the CPU.

        Raises
        ------
        ModelError
            No module is training.
        """
        if not self._training:
            raise ModelError("no module is training; call begin() first")
        tensors = {**self._slots[self._depth - 1], **dict(self.classifier.head_parameters())}
        return {name: tensors[name].detach().cpu().clone() for name in sorted(tensors)}

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters that train, in the order of their names."""
        return [value for _, value in sorted(self.model.named_parameters()) if value.requires_grad]

    def logits(self, inputs: Any) -> Tensor:
        """Return the logits of a batch of inputs, shape ``[n, labels]``, without gradients."""
        self.model.eval()
        with torch.inference_mode(), self.classifier.autocast():
            found: Tensor = self.model(**self.classifier.encode(inputs)).logits.float()
            return found

    def _fill(self, modules: Sequence[PrefixModule]) -> None:
        if not modules:
            return
        last = modules[-1].prefix
        for depth, module in enumerate(modules, start=1):
            if module.prefix != last[:depth] or len(last) != len(modules):
                raise ModelError(
                    f"the modules of prefix {last} are those of {[last[: i + 1] for i in range(len(last))]}, "
                    f"not {[one.prefix for one in modules]}"
                )
        self._grow(len(modules))
        expected = self._fresh.keys() | self._own_head.keys()
        for slot, module in zip(self._slots, modules, strict=False):
            _check_names(module.tensors, expected, f"module {module.prefix}")
            _copy(slot, module.tensors)

    def _head_of(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensors[name] for name in self._own_head}

    def _set_head(self, tensors: Mapping[str, Tensor]) -> None:
        _copy(dict(self.classifier.head_parameters()), tensors)

    def _activate(self, depth: int, *, trains: bool) -> None:
        for layer in self.model.modules():
            if isinstance(layer, BaseTunerLayer):
                layer.set_adapter([f"d{i}" for i in range(1, depth + 1)])
        # PEFT makes every active adapter trainable.
        self.model.requires_grad_(False)
        for value in self.model.parameters():
            value.grad = None
        if trains:
            for value in self._slots[depth - 1].values():
                value.requires_grad_(True)
            for _, value in self.classifier.head_parameters():
                value.requires_grad_(True)
        self._depth, self._training = depth, trains
        self.model.eval()

    def _grow(self, depth: int) -> None:
        while len(self._slots) < depth:
            number = len(self._slots) + 1
            # What PEFT draws for itself is overwritten by every load.
            with seeded(0), warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Already found a `peft_config`")
                inject_adapter_in_model(_peft_config(self.cfg), self.model, adapter_name=f"d{number}")
            slot: dict[str, nn.Parameter] = {}
            for name, value in self.model.named_parameters():
                found = _SLOT.search(name)
                if found and int(found[2]) == number:
                    slot[_SLOT.sub(r".\1", name)] = value
            self._slots.append(slot)
            if not self._fresh:
                self._fresh = {name: value.detach().cpu().clone() for name, value in slot.items()}


def _copy(parameters: Mapping[str, nn.Parameter], tensors: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in parameters.items():
            if parameter.shape != tensors[name].shape:
                raise ModelError(
                    f"module tensor {name} has shape {tuple(tensors[name].shape)}, "
                    f"and the classifier needs {tuple(parameter.shape)}"
                )
            parameter.copy_(tensors[name])


def _check_names(tensors: Mapping[str, Tensor], expected: set[str], what: str) -> None:
    wrong = sorted(tensors.keys() ^ expected)
    if wrong:
        verb = "has no" if wrong[0] in expected else "has an unknown"
        raise ModelError(
            f"{what} {verb} tensor {wrong[0]}; it was made for another classifier or module.kind"
        )


def _check_targets(modules: Mapping[str, nn.Module], cfg: ModuleConfig) -> None:
    linear = sorted({name.rpartition(".")[2] for name, one in modules.items() if isinstance(one, nn.Linear)})
    for target in cfg.targets:
        matches = [name for name in modules if name == target or name.endswith(f".{target}")]
        if not any(isinstance(modules[name], nn.Linear) for name in matches):
            raise ModelError(
                f"module.targets: no linear layer is called {target!r}{nearest(target, linear)}; "
                f"the classifier's linear layers: {', '.join(linear)}"
            )
    blocks = [int(found[1]) for name in modules if (found := re.search(r"\.layers?\.(\d+)$", name))]
    beyond = [layer for layer in cfg.layers if layer not in blocks]
    if beyond:
        raise ModelError(
            f"module.layers: there is no block {beyond[0]}; the classifier has 0 to {max(blocks)}"
        )


def _peft_config(cfg: ModuleConfig) -> Any:
    if cfg.kind == "ia3":
        targets: Any = list(cfg.targets)
        if cfg.layers:
            # IA3 has no choice of blocks of its own; a pattern does it.
            blocks, names = "|".join(map(str, cfg.layers)), "|".join(map(re.escape, cfg.targets))
            targets = rf".*\.layers?\.({blocks})\.(.*\.)?({names})"
        feedforward: Any = list(cfg.feedforward)
        if cfg.layers and feedforward:
            feedforward = rf".*\.({'|'.join(map(re.escape, cfg.feedforward))})"
        return IA3Config(target_modules=targets, feedforward_modules=feedforward)
    if cfg.kind not in ("lora", "dora"):
        raise ModelError(f"module.kind: {cfg.kind!r} cannot be stacked; choose lora, dora or ia3")
    make: Any = LoraConfig
    return make(
        r=cfg.r,
        lora_alpha=cfg.alpha,
        lora_dropout=cfg.dropout,
        target_modules=list(cfg.targets),
        use_dora=cfg.kind == "dora",
        layers_to_transform=list(cfg.layers) or None,
    )
