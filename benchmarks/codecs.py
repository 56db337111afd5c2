"""The Fisher's codecs: sizes, and encoding and decoding speed, beside general-purpose peers.

    python benchmarks/codecs.py --small              2M coordinates, under half a minute on one core
    python benchmarks/codecs.py                      58.7M coordinates: one down_proj of a 7B model
    python benchmarks/codecs.py --run runs/one       the Fishers that a run received whole
                                                     (communication.fisher=lossless)

Synthetic Fishers are bf16 and log-normal, of several widths sigma; members of a domain share a part
of it. Speeds are in MB/s of the dense tensor, medians of three, codecs taking turns. Two-phase
pooling is measured over all members of a domain: first uploads, requests and answers, against the
same Fishers without loss; nothing is trained and nothing travels.
"""

from __future__ import annotations

import argparse
import io
import math
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
import zstandard
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import Tensor

from fedforget.codecs import log8, planes, top
from fedforget.codecs.exchange import PlacesRequest, pack_values
from fedforget.codecs.fidelity import Fidelity
from fedforget.runs import RunDirectory
from fedforget.sparse_fisher import dense_fisher
from fedforget.two_phase import candidates, missing

Codec = tuple[str, Callable[[Tensor], tuple[int, object]], Callable[[Tensor, object], object]]
_REPEATS = 3


def main() -> None:
    """Run the benchmark and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--small", action="store_true", help="2M coordinates")
    parser.add_argument("--run", help="a run directory with whole Fishers, instead of synthetic ones")
    parser.add_argument("--alpha", type=float, default=0.1)
    parser.add_argument("--local-share", type=float, default=0.15)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.run:
        domains = _of_run(args.run)
    else:
        shape = (1024, 2048) if args.small else (4096, 14336)
        sigmas = (1.0, 2.0, 3.0)
        domains = {f"log-normal, sigma {s:g}": [_synthetic(shape, s, i) for i in range(3)] for s in sigmas}
    for name, members in domains.items():
        _single(name, members[0], args.alpha)
        if len(members) > 1:
            _two_phase(members, args.alpha, args.local_share)


def _synthetic(shape: tuple[int, ...], sigma: float, member: int) -> dict[str, Tensor]:
    """Half of the variance of the logarithm is shared by the members of a domain."""
    logs = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    logs += torch.randn(shape, generator=torch.Generator().manual_seed(1 + member))
    return {"w": logs.mul_(sigma / math.sqrt(2)).exp_().mul_(1e-8).to(torch.bfloat16)}


def _of_run(path: str) -> dict[str, list[dict[str, Tensor]]]:
    found: dict[str, list[dict[str, Tensor]]] = {}
    for one in RunDirectory(path).load_summaries():
        if one.coverage.kind != "whole":
            raise SystemExit(f"{path}: {one.client_id} sent a part; run with communication.fisher=lossless")
        fishers = {name: dense_fisher(fisher).clone() for name, fisher in one.fisher.items()}
        key = f"{one.role} {one.domain}" + ("" if one.role == "forget" else f" ({one.client_id})")
        found.setdefault(key, []).append(fishers)
    return found


def _codecs(alpha: float) -> list[Codec]:
    def plane_encode(x: Tensor) -> tuple[int, object]:
        frames = planes.encode(x)
        return _size(frames), frames

    def top_encode(x: Tensor) -> tuple[int, object]:
        sparse = top.sparsify(x, alpha)
        frames, gap_bytes = top.encode(sparse)
        return _size(frames), (frames, sparse.values.numel(), gap_bytes)

    def log_encode(x: Tensor) -> tuple[int, object]:
        frames, _ = log8.encode(x)
        return _size(frames), frames

    def npz_encode(x: Tensor) -> tuple[int, object]:
        file = io.BytesIO()
        np.savez_compressed(file, x=x.view(torch.int16).numpy())
        return file.tell(), file.getvalue()

    def st_encode(x: Tensor) -> tuple[int, object]:
        data = zstandard.ZstdCompressor(level=3).compress(save_safetensors({"x": x}))
        return len(data), data

    return [
        ("planes + zstd, lossless", plane_encode, lambda x, d: planes.decode(d, x.numel(), x.dtype, "x")),
        (
            f"top {alpha:g}, gaps + planes + zstd",
            top_encode,
            lambda x, d: top.decode(d[0], tuple(x.shape), d[1], d[2], x.dtype, "x"),  # type: ignore[index]
        ),
        ("approximate: log 8 bit", log_encode, lambda x, d: log8.decode(d, tuple(x.shape), x.dtype, "x")),
        ("peer: numpy.savez_compressed", npz_encode, lambda x, d: np.load(io.BytesIO(d))["x"]),  # type: ignore[arg-type]
        (
            "peer: safetensors + zstd 3",
            st_encode,
            lambda x, d: load_safetensors(zstandard.ZstdDecompressor().decompress(d))["x"],  # type: ignore[arg-type]
        ),
    ]


def _size(frames: list[np.ndarray[tuple[int], np.dtype[np.uint8]]]) -> int:
    return sum(frame.nbytes for frame in frames)


def _single(name: str, fishers: dict[str, Tensor], alpha: float) -> None:
    dense = sum(one.nbytes for one in fishers.values())
    print(f"\n{name}: {sum(one.numel() for one in fishers.values())} coordinates, {dense / 1e6:.2f} MB dense")
    print(f"{'codec':<36} {'of dense':>9} {'encode MB/s':>12} {'decode MB/s':>12}")
    codecs = _codecs(alpha)
    times: dict[str, list[tuple[float, float]]] = {label: [] for label, _, _ in codecs}
    sizes: dict[str, int] = {}
    for _ in range(_REPEATS):
        for label, encode, decode in codecs:
            total, encoding, decoding = 0, 0.0, 0.0
            for one in fishers.values():
                started = time.perf_counter()
                size, data = encode(one)
                middle = time.perf_counter()
                decode(one, data)
                encoding, decoding = encoding + middle - started, decoding + time.perf_counter() - middle
                total += size
            sizes[label] = total
            times[label].append((encoding, decoding))
    for label, found in times.items():
        speeds = [dense / 1e6 / statistics.median(one) for one in zip(*found, strict=True)]
        print(f"{label:<36} {sizes[label] / dense:>9.1%} {speeds[0]:>12.0f} {speeds[1]:>12.0f}")
    fidelity = Fidelity(alpha)
    for one in fishers.values():
        fidelity.add(one, log8.encode(one)[1])
    print("log 8 bit:", ", ".join(f"{key} {value:.4f}" for key, value in fidelity.result().items()))


def _two_phase(members: list[dict[str, Tensor]], alpha: float, share: float) -> None:
    first = second = lossless = whole = 0
    requests = [PlacesRequest() for _ in members]
    share = max(share, alpha)
    for name in members[0]:
        sent = [top.sparsify(one[name], share) for one in members]
        places = candidates(sent, alpha)
        whole += places is None
        lossless += sum(_size(planes.encode(one[name])) for one in members)
        first += sum(_size(top.encode(one)[0]) for one in sent)
        for one, half, request in zip(members, sent, requests, strict=True):
            rest = None if places is None else missing(places, half)
            request.add(name, rest)
            flat = one[name].reshape(-1)
            second += sum(
                b.nbytes for b in pack_values({name: flat if rest is None else flat[rest.long()]})[0]
            )
    down = sum(b.nbytes for request in requests for b in request.pack()[0])
    dense = sum(one.nbytes for member in members for one in member.values())
    print(
        f"two-phase, {len(members)} members, first top {share:g}: "
        f"up {(first + second) / dense:.1%} of dense, down {down / dense:.1%}; "
        f"lossless is {lossless / dense:.1%}; "
        f"{whole} of {len(members[0])} tensors asked for whole"
    )


if __name__ == "__main__":
    main()
