"""Mean embeddings of slices, from the frozen classifier, for the barycentre grouping: FedSGT, appendix D."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedforget.data.holdings import ClientRecords
from fedforget.reproducible import deterministic
from fedforget.sequential.classifiers import Classifier


def slice_embeddings(
    classifier: Classifier, data: ClientRecords, batch_size: int = 128, threads: int = 1
) -> dict[tuple[str, int], NDArray[np.float64]]:
    """Return the mean over each slice's records of what the bare classifier's head is given.

    A client computes it and sends the means, never the data; still, they are statistics of the data, and
    a grouping that reads them depends on records that may be deleted later.

    Parameters
    ----------
    classifier : Classifier
        Bare, or with a cleared stack.
    data : ClientRecords
    batch_size : int
        Records per pass.
    threads : int
        As in ``training.threads``.

    Returns
    -------
    dict of (client, slice) to array of float64, shape [d]
        Of every slice that holds a record.
    """
    seen: list[Tensor] = []

    def keep(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        features = args[0].detach().double().cpu()
        # Some heads are given every token and take the first themselves.
        seen.append(features[:, 0] if features.dim() == 3 else features)

    means: dict[tuple[str, int], NDArray[np.float64]] = {}
    handle = classifier.head_module().register_forward_pre_hook(keep)
    classifier.model.eval()
    try:
        with deterministic(threads), torch.inference_mode(), classifier.autocast():
            for number, records in sorted(data.slices.items()):
                if not len(records):
                    continue
                seen.clear()
                for start in range(0, len(records), batch_size):
                    inputs, _ = records.batch(range(start, min(start + batch_size, len(records))))
                    classifier.model(**classifier.encode(inputs))
                means[data.client_id, number] = torch.cat(seen).mean(dim=0).numpy()
    finally:
        handle.remove()
    return means
