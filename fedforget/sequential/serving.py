"""Answers from what is left after deletions: FedSGT, section 4.3."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedforget.data.records import Records
from fedforget.errors import RunError
from fedforget.sequences import Selected, select, weight_by_prefix
from fedforget.sequential.batched import KINDS, BatchedPrefixes
from fedforget.sequential.classifiers import Classifier
from fedforget.sequential.config import ModuleConfig
from fedforget.sequential.modules import PrefixModule
from fedforget.sequential.stack import ModuleStack

Prefix = tuple[int, ...]


class ServiceEndedError(RunError):
    """No module is left to answer with; ``fedforget repair`` or ``retrain`` starts service again."""


def serving_selection(sequences: Sequence[Prefix], available: Iterable[Prefix], rule: str) -> list[Selected]:
    """Choose what serves, by which modules are there and active.

    A sequence serves its longest beginning all of whose modules are available; on a ledger
    without repairs that is its active prefix. The rule then chooses as
    :func:`fedforget.sequences.select` does.

    Parameters
    ----------
    sequences : sequence of tuple of int
        The plan.
    available : iterable of tuple of int
        Prefixes whose module is active.
    rule : {"AllSeq", "MinSeq", "LongSeq"}
    """
    active = set(available)
    shortened: list[Prefix] = []
    positions: list[int] = []
    for index, sequence in enumerate(sequences):
        length = 0
        while length < len(sequence) and tuple(sequence[: length + 1]) in active:
            length += 1
        if length:
            shortened.append(tuple(sequence[:length]))
            positions.append(index)
    return [Selected(positions[one.index], one.prefix, one.weight) for one in select(shortened, (), rule)]


class Predictor:
    """The models that a rule selects, averaged with its weights.

    All prefixes go through the classifier in one pass per batch where the kind of module allows it
    (LoRA, IA3), else one after the other (DoRA). Sequences that share their active prefix are one
    model, run once with the weight of all of them.

    Parameters
    ----------
    classifier : Classifier
        A bare one, which the predictor owns from then on.
    cfg : ModuleConfig
    modules : mapping of prefix to PrefixModule
        The active modules; those that a deletion switched off must not be in it.
    sequences : sequence of tuple of int
        The plan.
    rule : {"AllSeq", "MinSeq", "LongSeq"}
    batch_size : int
        Rows per pass: one per input, and in a batched pass one per input and prefix, so that the
        memory does not grow with the number of prefixes.
    batched : bool, optional
        False runs the prefixes one after the other whatever their kind.

    Attributes
    ----------
    selected : list of Selected
        Empty when service has ended.
    """

    def __init__(
        self,
        classifier: Classifier,
        cfg: ModuleConfig,
        modules: Mapping[Prefix, PrefixModule],
        sequences: Sequence[Prefix],
        rule: str = "AllSeq",
        batch_size: int = 128,
        batched: bool | None = None,
    ) -> None:
        self.selected = serving_selection(sequences, modules, rule)
        self.labels = classifier.num_labels
        self._classifier = classifier
        self._batch_size = batch_size
        weights = weight_by_prefix(self.selected)
        self._weights = torch.tensor(list(weights.values()), dtype=torch.float64)
        self._chains = [[modules[prefix[:d]] for d in range(1, len(prefix) + 1)] for prefix in weights]
        self._together: BatchedPrefixes | None = None
        self._stack: ModuleStack | None = None
        if not self._chains:
            return
        if cfg.kind in KINDS and batched is not False:
            self._together = BatchedPrefixes(classifier, cfg, self._chains)
            self._batch_size = max(1, batch_size // len(self._chains))
        else:
            self._stack = ModuleStack(classifier, cfg)

    @property
    def available(self) -> bool:
        """Whether any module is left to answer with."""
        return bool(self.selected)

    @property
    def state(self) -> str:
        """What serves, in one sentence."""
        if not self.available:
            return "service has ended: no module is left; run `fedforget repair` or `fedforget retrain`"
        depths = [len(one.prefix) for one in self.selected]
        return (
            f"{len(self._chains)} models serve {len(self.selected)} sequences, "
            f"the longest with {max(depths)} modules"
        )

    def probabilities(self, inputs: Any) -> NDArray[np.float64]:
        """Return the weighted average of the selected models' class probabilities, shape ``[n, labels]``.

        Raises
        ------
        ServiceEndedError
            No module is left.
        """
        if not self.available:
            raise ServiceEndedError(self.state)
        parts = []
        for start in range(0, len(inputs), self._batch_size):
            logits = self._logits(inputs[start : start + self._batch_size])
            shares = torch.softmax(logits.double().cpu(), dim=-1)
            parts.append(torch.einsum("p,pnc->nc", self._weights, shares))
        if not parts:
            return np.zeros((0, self.labels))
        return torch.cat(parts).numpy()

    def predict(self, inputs: Any) -> NDArray[np.int64]:
        """Return the most probable class of each input; errors as :meth:`probabilities`."""
        classes: NDArray[np.int64] = self.probabilities(inputs).argmax(axis=1)
        return classes

    def accuracy(self, records: Records) -> float:
        """Return the share of records whose class is predicted; errors as :meth:`probabilities`."""
        return float((self.predict(records.inputs) == records.labels).mean())

    def _logits(self, inputs: Any) -> Tensor:
        if self._together is not None:
            return self._together.logits(inputs)
        # One of the two is there whenever there is a chain.
        stack = cast(ModuleStack, self._stack)
        found = []
        for chain in self._chains:
            stack.load(chain)
            found.append(stack.logits(inputs))
        return torch.stack(found)
