"""Token sequences merged where they begin alike, to be read in one pass.

The sequences of a batch (each prompt followed by each of its choices) are merged into a tree, one
node per distinct token in its context; the nodes stand in one sequence, where a mask lets each see
its ancestors and its position is its depth.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedforget.evaluation.prepared import PreparedQuestion


class TokenTree:
    """The sequences of a batch of questions as nodes, in the order in which they were added."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self.places: list[int] = []  # nodes that predict the scored tokens
        self.targets: list[int] = []  # the scored tokens, choice by choice
        self._children: dict[tuple[int, int], int] = {}

    def add(self, item: PreparedQuestion) -> None:
        """Add a question's sequences; a choice's last token is only predicted, never read."""
        node = -1
        for token in item.prefix:
            node = self._child(node, token)
        for choice in item.continuations:
            at = node
            for token in choice[:-1]:
                self.places.append(at)
                at = self._child(at, token)
            self.places.append(at)
            self.targets += choice

    def missing(self, item: PreparedQuestion) -> int:
        """At most how many nodes :meth:`add` would create."""
        node, shared = -1, 0
        for token in item.prefix:
            child = self._children.get((node, token))
            if child is None:
                break
            node, shared = child, shared + 1
        return item.packed_length - shared

    def visible(self) -> Tensor:
        """Whether node ``i`` sees node ``j``: itself and its ancestors; bool, shape ``[n, n]``."""
        mask = np.eye(len(self.tokens), dtype=bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                mask[node] |= mask[parent]
        return torch.from_numpy(mask)

    def _child(self, parent: int, token: int) -> int:
        key = (parent, token)
        if key not in self._children:
            self._children[key] = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(parent)
            self.depths.append(self.depths[parent] + 1 if parent >= 0 else 0)
        return self._children[key]
