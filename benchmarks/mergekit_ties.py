"""mergekit's TIES on the forget clients, for benchmarks/merging.py; runs in mergekit's own environment.

    python benchmarks/mergekit_ties.py FOLDER DENSITY THREADS

Its sparsifier and its election of signs, tensor by tensor, on fp32 copies; models, configuration and writing
are left out. Prints what benchmarks/measuring.py measures as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from measuring import measure
from mergekit.merge_methods.generalized_task_arithmetic import get_mask
from mergekit.sparsify import SparsificationMethod, sparsify
from safetensors.torch import load_file


def main() -> None:
    """Read the clients, merge and print."""
    folder, density, threads = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(threads)
    summaries = [json.loads((path / "summary.json").read_text()) for path in sorted(folder.iterdir())]
    clients = [
        load_file(path / "deltas.safetensors")
        for path, summary in zip(sorted(folder.iterdir()), summaries, strict=True)
        if summary["role"] == "forget"
    ]

    def work() -> None:
        for name in clients[0]:
            ties([client[name].float() for client in clients], density)

    print(json.dumps(measure(work)))


def ties(deltas: list[torch.Tensor], density: float) -> torch.Tensor:
    """Trim, elect and average, as mergekit's ``ties`` does with weights of 1 and normalisation."""
    method = SparsificationMethod.magnitude
    trimmed = torch.empty(len(deltas), *deltas[0].shape)
    for i, delta in enumerate(deltas):
        trimmed[i] = sparsify(delta, density=density, method=method, rescale_norm=None)
    mask = get_mask(trimmed, method="sum", mask_dtype=torch.int8)
    divisor = mask.sum(dim=0)
    divisor[divisor == 0] = 1
    return ((trimmed * mask).sum(dim=0) / divisor).bfloat16()


if __name__ == "__main__":
    main()
