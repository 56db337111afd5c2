"""One client that unlearns by gradient ascent: approximate, with its deleted records at hand once more."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from clients.sequential import SequentialClient, packed
from fedforget.codecs import Bucket
from fedforget.data.holdings import ClientRecords
from fedforget.data.records import joined
from fedforget.errors import RunError
from fedforget.sequential import protocol as words
from fedforget.sequential.ascent import ascend_locally
from fedforget.sequential.protocol import Done, Work
from fedforget.sequential.stack import ModuleStack


class AscentClient(SequentialClient):
    """Raises the loss on the records of the latest deletion requests.

    It must still hold them: a client that has destroyed what it was asked to delete cannot unlearn
    this way. Records of earlier requests (``without``) are not loaded. Parameters as for
    :class:`clients.sequential.SequentialClient`.
    """

    def fit(
        self, parameters: Sequence[Bucket], config: Mapping[str, Any]
    ) -> tuple[list[Bucket], int, dict[str, Any]]:
        """Ascend from the module of the message's work; otherwise as the parent does.

        Parameters
        ----------
        parameters : list of 1-D uint8 arrays
        config : dict
            ``ascent`` as well: JSON with the ball's ``radius`` and the ``records`` by slice, None for all
            that are left of it.
        """
        try:
            asked = json.loads(str(config.get(words.ASCENT)))
            self._radius = float(asked["radius"])
            self._named = words.without_from_json(json.dumps(asked["records"]))
        except (ValueError, TypeError, KeyError) as error:
            raise RunError(f"the message's ascent cannot be read ({type(error).__name__})") from error
        return super().fit(parameters, config)

    def _train(self, stack: ModuleStack, one: Work, data: ClientRecords) -> tuple[bytes, Done]:
        parts = []
        for i in one.slices:
            names = self._named.get(i, ())
            parts.append(data.slices[i] if names is None else data.slices[i].subset(names))
        result = ascend_locally(
            stack,
            self._cached(one.current, one.prefix).tensors,
            joined(parts),
            self.config.ascent,
            radius=self._radius,
            seed=one.seed,
            threads=self.config.training.threads,
        )
        return packed(one, result)
