"""What FedSGT's server and clients say to each other: message types, keys, and work as plain values.

A client learns its own slices, its own deletions and the hashes of modules; it is never told of
other clients or their slices.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedforget.errors import ModelError, RunError
from fedforget.sequences import Slice
from fedforget.sequential.modules import PrefixModule

SLICES = "query.slices"  # one logical client: which slices do you have, and their embeddings if asked for
SEQUENTIAL = "train.sequential"  # one logical client: train all of this round's modules that need your data
ASCENT_TRAIN = "train.ascent"  # one logical client: unlearn your latest deletions by gradient ascent
RELEASE = "query.release"  # one logical client: drop the modules cached for this run

# Keys of the CONFIG record of a request, beside those of ``fedforget.protocol``.
CLIENT_ID = "client-id"
RUN_ID = "run-id"  # a token of the run: modules are cached under it
WITHOUT = "without"  # the client's deleted records, by slice
EMBEDDINGS = "embeddings"  # True: send the slices' mean embeddings too
WORK = "work"
MODULES = "modules"  # hashes of the modules that come with the message, in the order of its arrays
ASCENT = "ascent"  # JSON: the radius of the ball, and the records to forget by slice
KEEP = "keep"  # hashes that the client's cache may hold on to
# In a reply, True: the slices are of files of the client's own, not of the configured data set. In a
# request, whether the client declared so when the run was planned.
OWN = "own-data"

# Keys of the INFO record of a reply.
DECLARED = "slices"
RESULTS = "results"
MISSING = "missing"  # hashes that the client does not have: nothing was trained, send them

Without = Mapping[int, Sequence[str] | None]


@dataclass(frozen=True)
class Work:
    """One module for a client to train in one round.

    Attributes
    ----------
    prefix : tuple of int
        Whose module.
    slices : tuple of int
        The client's slices to train it on.
    frozen : tuple of str
        Hashes of the modules below it, one per shorter prefix.
    current : str
        Hash of the module as the round before left it; empty in a phase's first round, where every
        client draws it from ``init_seed``.
    init_seed, seed : int
        Of the module, the same for all clients; and of this client's batches.
    """

    prefix: tuple[int, ...]
    slices: tuple[int, ...]
    frozen: tuple[str, ...]
    current: str
    init_seed: int
    seed: int

    @property
    def needs(self) -> tuple[str, ...]:
        """Hashes of every module that the client must have."""
        return (*self.frozen, self.current) if self.current else self.frozen

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**vars(self), **{name: list(getattr(self, name)) for name in ("prefix", "slices", "frozen")}}


@dataclass(frozen=True)
class Done:
    """What a client reports of one module; its tensors travel as an array of the same position."""

    prefix: tuple[int, ...]
    num_examples: int
    sha256: str
    figures: Mapping[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**vars(self), "prefix": list(self.prefix), "figures": dict(self.figures)}


def work_to_json(work: Iterable[Work]) -> str:
    """Return work as JSON."""
    return json.dumps([one.as_dict() for one in work])


def work_from_json(text: str) -> list[Work]:
    """Read back what :func:`work_to_json` wrote.

    Raises
    ------
    RunError
        It is something else.
    """
    with _readable("the message's work"):
        return [
            Work(
                prefix=_numbers(one["prefix"]),
                slices=_numbers(one["slices"]),
                frozen=tuple(str(sha) for sha in one["frozen"]),
                current=str(one["current"]),
                init_seed=int(one["init_seed"]),
                seed=int(one["seed"]),
            )
            for one in json.loads(text)
        ]


def done_to_json(done: Iterable[Done]) -> str:
    """Return a client's results as JSON."""
    return json.dumps([one.as_dict() for one in done])


def done_from_json(text: str) -> list[Done]:
    """Read back what :func:`done_to_json` wrote.

    Raises
    ------
    RunError
        It is something else.
    """
    with _readable("its results"):
        return [
            Done(
                prefix=_numbers(one["prefix"]),
                num_examples=int(one["num_examples"]),
                sha256=str(one["sha256"]),
                figures={str(key): float(value) for key, value in one["figures"].items()},
            )
            for one in json.loads(text)
        ]


def without_to_json(without: Without) -> str:
    """Return a client's deletions as JSON; ``null`` stands for a whole slice."""
    return json.dumps({str(i): None if gone is None else sorted(gone) for i, gone in sorted(without.items())})


def without_from_json(text: str) -> dict[int, tuple[str, ...] | None]:
    """Read back what :func:`without_to_json` wrote.

    Raises
    ------
    RunError
        It is something else.
    """
    with _readable("the message's deletions"):
        return {
            int(i): None if gone is None else tuple(str(record) for record in gone)
            for i, gone in json.loads(text).items()
        }


def slices_to_json(slices: Iterable[Slice]) -> str:
    """Return declared slices as JSON: numbers and sizes."""
    return json.dumps([[item.slice_id, item.size] for item in slices])


def slices_from_json(text: str, client_id: str) -> list[Slice]:
    """Read back what :func:`slices_to_json` wrote.

    Raises
    ------
    RunError
        It is something else, a slice appears twice, or one has no record.
    """
    with _readable("its slices"):
        found = [Slice(client_id, int(number), int(size)) for number, size in json.loads(text)]
    numbers = [item.slice_id for item in found]
    if len(set(numbers)) < len(numbers):
        raise RunError("it declares a slice twice")
    if any(item.size < 1 or item.slice_id < 0 for item in found):
        raise RunError("it declares a slice with a negative number or no record")
    return sorted(found)


def module_to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Return a module's tensors as safetensors, for the wire."""
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def module_from_bytes(raw: bytes, prefix: tuple[int, ...], sha256: str) -> PrefixModule:
    """Read a module off the wire.

    Raises
    ------
    ModelError
        The bytes are no module, or not the one that the hash names.
    """
    try:
        module = PrefixModule(prefix, load(raw))
    except (SafetensorError, ValueError, KeyError) as error:
        raise ModelError(f"the module of prefix {list(prefix)} cannot be read ({error})") from error
    if module.sha256 != sha256:
        raise ModelError(
            f"the module of prefix {list(prefix)} does not match its hash; it was damaged on the way"
        )
    return module


def _numbers(values: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


@contextmanager
def _readable(what: str) -> Iterator[None]:
    """Say in one sentence that JSON is not what was asked for."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunError(f"{what} cannot be read ({type(error).__name__}: {error})") from error
