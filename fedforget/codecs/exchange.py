"""The second trip of two-phase pooling: places that a client is asked for, and its values there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedforget.codecs import planes
from fedforget.codecs.buckets import BUCKET_BYTES, Bucket, bucket_starts, check_buckets, declare, fill, read
from fedforget.codecs.frames import compress
from fedforget.codecs.top import decode_places, encode_places
from fedforget.errors import SummaryError

_FORMAT = 1


class PlacesRequest:
    """Collects what one client is asked for, weight by weight, compressed as it comes in."""

    def __init__(self) -> None:
        self._contents: dict[str, list[Bucket]] = {}
        self._numbers: dict[str, list[int]] = {}

    def add(self, name: str, places: Tensor | None) -> None:
        """Ask for a weight's values at ascending places; None asks for all of them."""
        gaps = None if places is None else encode_places(places)
        self._contents[name] = [] if gaps is None else [compress(gaps)]
        self._numbers[name] = [] if places is None or gaps is None else [places.numel(), gaps.size]

    def count(self, name: str) -> int | None:
        """Return how many values of a weight are asked for; None for all."""
        return self._numbers[name][0] if self._numbers[name] else None

    def places(self, name: str, size: int) -> Tensor | None:
        """Return what was added for a weight of ``size`` coordinates."""
        if not self._numbers[name]:
            return None
        count, gap_bytes = self._numbers[name]
        return decode_places(self._contents[name][0], size, count, gap_bytes, f"tensor {name!r}")

    def pack(self) -> tuple[list[Bucket], str]:
        """Lay the request out for the wire."""
        return _seal(self._contents, {"numbers": self._numbers})


def unpack_places(
    buckets: Sequence[Bucket], manifest: str, shapes: Mapping[str, tuple[int, ...]], who: str
) -> dict[str, Tensor | None]:
    """Read a request back.

    Raises
    ------
    SummaryError
        It is damaged, or asks for weights or places that are not there.
    """
    contents, header = _unseal(buckets, manifest, shapes, who)
    numbers = header.get("numbers")
    found: dict[str, Tensor | None] = {}
    for name, frames in contents.items():
        pair = numbers.get(name) if isinstance(numbers, dict) else None
        if (
            not isinstance(pair, list)
            or any(type(n) is not int for n in pair)
            or len(pair) != 2 * len(frames)
        ):
            raise SummaryError(f"{who}: the request for tensor {name!r} cannot be read")
        size = int(np.prod(shapes[name], dtype=object))
        what = f"{who}: the request for tensor {name!r}"
        found[name] = decode_places(frames[0], size, pair[0], pair[1], what) if frames else None
    return found


def pack_values(values: Mapping[str, Tensor]) -> tuple[list[Bucket], str]:
    """Lay an answer out: for each weight its values at the places asked for, in their order."""
    return _seal({name: planes.encode(one) for name, one in values.items()}, {})


def unpack_values(
    buckets: Sequence[Bucket], manifest: str, expected: Mapping[str, tuple[int, torch.dtype]], who: str
) -> dict[str, Tensor]:
    """Read an answer back.

    Parameters
    ----------
    expected : mapping of str to (int, dtype)
        How many values each weight was asked for: no more is decompressed.
    who : str
        Begins the messages.

    Raises
    ------
    SummaryError
        It is damaged, or answers something else.
    """
    contents, _ = _unseal(buckets, manifest, expected, who)
    found = {}
    for name, (count, dtype) in expected.items():
        what = f"{who}: the values of tensor {name!r}"
        if len(contents[name]) != dtype.itemsize:
            raise SummaryError(f"{what} come in {len(contents[name])} parts, not in {dtype.itemsize}")
        found[name] = planes.decode(contents[name], count, dtype, what)
    return found


def _seal(contents: Mapping[str, list[Bucket]], header: dict[str, Any]) -> tuple[list[Bucket], str]:
    names = sorted(contents)
    buckets, places = fill([contents[name] for name in names], BUCKET_BYTES)
    tensors = {
        name: [place, *(part.nbytes for part in contents[name])]
        for name, place in zip(names, places, strict=True)
    }
    return buckets, json.dumps({"format": _FORMAT, "buckets": declare(buckets), "tensors": tensors, **header})


def _unseal(
    buckets: Sequence[Bucket], manifest: str, names: Mapping[str, Any], who: str
) -> tuple[dict[str, list[Bucket]], dict[str, Any]]:
    try:
        raw = json.loads(manifest)
    except (ValueError, TypeError, RecursionError) as error:
        raise SummaryError(f"{who}: the manifest is not JSON ({type(error).__name__})") from error
    if not isinstance(raw, dict) or raw.get("format") != _FORMAT:
        raise SummaryError(f"{who}: the manifest is not of format {_FORMAT}")
    declared, tensors = raw.get("buckets"), raw.get("tensors")
    if not isinstance(declared, list) or not isinstance(tensors, dict) or set(tensors) != set(names):
        raise SummaryError(f"{who}: the manifest does not name the tensors that it is to be about")
    sizes = check_buckets(buckets, declared, who)
    starts, total = bucket_starts(sizes), sum(sizes)
    found: dict[str, list[Bucket]] = {}
    for name, numbers in tensors.items():
        fine = isinstance(numbers, list) and numbers and all(type(n) is int and n >= 0 for n in numbers)
        if not fine or sum(numbers) > total:
            raise SummaryError(f"{who}: tensor {name!r} is not within the {total} bytes that arrived")
        place, *parts = numbers
        ends = [place + sum(parts[: i + 1]) for i in range(len(parts))]
        found[name] = [read(buckets, end - n, n, starts) for end, n in zip(ends, parts, strict=True)]
    return found, raw
