"""What the clients of a phase sent, on disk, until the phase's modules are on record."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from logging import WARNING
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.supercore import log
from torch import Tensor

from fedforget import protocol
from fedforget.codecs import RAW
from fedforget.errors import FedForgetError, ModelError, RunError
from fedforget.files import read_json, write_json
from fedforget.sequential import protocol as words
from fedforget.sequential.modules import PrefixModule
from fedforget.sequential.protocol import Done, Work


@dataclass(frozen=True)
class Request:
    """One module that one client is asked to train: the work, and what else decides its result.

    Attributes
    ----------
    client_id : str
    work : Work
    examples : int
        Records that the client has for it, by the ledger.
    without : str
        The client's deletions in the work's slices, as JSON.
    """

    client_id: str
    work: Work
    examples: int
    without: str

    @property
    def key(self) -> str:
        """Name of the result: the same request has the same result, whenever it is made."""
        text = json.dumps([self.client_id, self.work.as_dict(), self.examples, self.without])
        return hashlib.sha256(text.encode()).hexdigest()[:32]


class ResultSpool:
    """Results by request. A result that is there already is not asked for again.

    Parameters
    ----------
    folder : Path
    shapes : mapping of str to (tuple of int, dtype)
        The tensors of a module, which every result must have.
    """

    def __init__(self, folder: Path, shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> None:
        self.folder = folder
        self._shapes = dict(shapes)

    def holds(self, request: Request) -> bool:
        """Tell whether a usable result of the request is there; another one is removed."""
        try:
            self.load(request)
        except FedForgetError as error:
            path = self._path(request)
            if path.exists():
                log(WARNING, "\t%s: %s; asking again", request.client_id, error)
                path.unlink(missing_ok=True)
            return False
        return True

    def load(self, request: Request) -> PrefixModule:
        """Read a result.

        Raises
        ------
        FedForgetError
            It is not there, or was damaged.
        """
        facts = read_json(self._path(request).with_suffix(".json"))
        return PrefixModule.load(self._path(request), str(facts.get("sha256")))

    def receive(self, asked: Iterable[Request], reply: Message) -> dict[str, Any]:
        """Check a client's reply and keep its results.

        Returns
        -------
        dict
            ``bytes`` received and ``seconds`` of training, or ``missing``: hashes of the modules that
            the client does not have, because of which it trained nothing.

        Raises
        ------
        FedForgetError
            The reply holds other results than were asked for, or unusable ones.
        """
        info = protocol.record_in(reply.content, protocol.INFO, ConfigRecord) or ConfigRecord()
        missing = [sha for sha in str(info.get(words.MISSING, "")).split() if sha]
        if missing:
            return {"missing": missing}
        done = words.done_from_json(str(info.get(words.RESULTS)))
        record = protocol.record_in(reply.content, protocol.ARRAYS, ArrayRecord) or ArrayRecord()
        arrays = list(record.values())
        requests = list(asked)
        if [one.prefix for one in done] != [r.work.prefix for r in requests] or len(arrays) != len(done):
            raise RunError("it sent other results than it was asked for")
        size = 0
        for request, one, array in zip(requests, done, arrays, strict=True):
            size += self._keep(request, one, array)
        metrics = protocol.record_in(reply.content, protocol.METRICS, MetricRecord) or MetricRecord()
        seconds = metrics.get("train-seconds", 0.0)
        return {"bytes": size, "seconds": float(seconds) if isinstance(seconds, int | float) else 0.0}

    def remove(self, requests: Iterable[Request]) -> None:
        """Drop results whose module is on record."""
        for request in requests:
            self._path(request).unlink(missing_ok=True)
            self._path(request).with_suffix(".json").unlink(missing_ok=True)

    def _keep(self, request: Request, done: Done, array: Array) -> int:
        what = f"module {list(request.work.prefix)}"
        if done.num_examples != request.examples:
            raise RunError(
                f"{what} was trained on {done.num_examples} records, and its slices hold {request.examples}"
            )
        if array.stype != RAW or array.dtype != "uint8":
            raise ModelError(f"{what} did not come as raw bytes")
        module = words.module_from_bytes(bytes(array.data), request.work.prefix, done.sha256)
        check_tensors(module.tensors, self._shapes, what)
        path = self._path(request)
        # The facts first: without the tensors beside them they are nothing.
        write_json(path.with_suffix(".json"), {**done.as_dict(), "client": request.client_id})
        module.save(path)
        return len(array.data)

    def _path(self, request: Request) -> Path:
        return self.folder / f"{request.key}.safetensors"


def check_tensors(
    tensors: Mapping[str, Tensor],
    shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]],
    what: str,
) -> None:
    """Check that a module is one of this run's, and finite.

    Raises
    ------
    ModelError
        A tensor is missing, one too many, of another shape or dtype, or not finite.
    """
    if tensors.keys() != shapes.keys():
        odd = min(tensors.keys() ^ shapes.keys())
        raise ModelError(f"{what}: tensor {odd!r} is {'missing' if odd in shapes else 'one too many'}")
    for name, (shape, dtype) in shapes.items():
        tensor = tensors[name]
        if tuple(tensor.shape) != tuple(shape) or tensor.dtype != dtype:
            raise ModelError(
                f"{what}: tensor {name!r} is {tensor.dtype} {tuple(tensor.shape)}, "
                f"expected {dtype} {tuple(shape)}"
            )
        if not bool(torch.isfinite(tensor).all()):
            raise ModelError(f"{what}: tensor {name!r} holds NaN or infinite values; lower the learning rate")
