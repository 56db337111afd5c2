"""What one client sends to the server, once: a task vector and a Fisher diagonal (FIRM, section 4.1)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from fedforget.errors import SummaryError
from fedforget.factors import Delta, LoraFactors
from fedforget.files import atomic_path, write_json
from fedforget.sparse_fisher import WHOLE, Coverage, Fisher, SparseFisher
from fedforget.streamed import Streamed
from fedforget.summary_files import INDICES, VALUES, A, B, deltas_on_disk, fishers_on_disk, owned

__all__ = ["ROLES", "ClientSummary", "Coverage", "Delta", "Fisher", "LoraFactors", "Role", "SparseFisher"]

Role = Literal["forget", "retain"]
ROLES: tuple[Role, ...] = ("forget", "retain")

_FORMAT = 1
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_CLIENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def is_client_id(text: str) -> bool:
    """Tell whether ``text`` may name a client, and so a directory of its own."""
    return _CLIENT_ID.fullmatch(text) is not None


@dataclass(eq=False)
class ClientSummary:
    """One client's task vector and raw Fisher diagonal.

    Attributes
    ----------
    client_id : str
        Stable identity; every reduction on the server runs in the order of these.
    role : {"forget", "retain"}
        What the client's task vector is for.
    domain : str
        The forget domain (clients of one domain are pooled), or a label for a retain client.
    num_examples : int
        Local training examples, at least 1.
    deltas : mapping of str to Tensor or LoraFactors
        Task vector per adapted weight, by the backbone's own parameter name.
    fisher : mapping of str to Tensor or SparseFisher
        Empirical Fisher diagonal of the *dense* weight, equation (1); same names and shapes.
        May be empty for methods that need none.
    coverage : Coverage
        Which entries of the Fisher these are; all of them by default.
    """

    client_id: str
    role: Role
    domain: str
    num_examples: int
    deltas: Mapping[str, Delta]
    fisher: Mapping[str, Fisher] = field(default_factory=dict)
    coverage: Coverage = WHOLE

    def validate(self) -> None:
        """Check everything that can be checked without a backbone.

        Raises
        ------
        SummaryError
            Names the client and the tensor: an unknown role, no examples, no tensors, a
            non-finite task vector, a Fisher that is negative, non-finite or of another shape.
        """
        self.check_names()
        for name in self.deltas:
            self.check_tensor(name)

    def check_names(self) -> None:
        """Check identity, role and the names of the tensors; raises as :meth:`validate`."""
        who = f"client {self.client_id!r}"
        if not is_client_id(self.client_id):
            raise SummaryError(
                f"{who}: a client id is 1 to 128 letters, digits, '.', '_' or '-', "
                "starting with a letter or digit"
            )
        if self.role not in ROLES:
            raise SummaryError(f"{who}: role {self.role!r} is neither 'forget' nor 'retain'")
        if not self.domain:
            raise SummaryError(f"{who}: the domain is empty")
        if self.num_examples < 1:
            raise SummaryError(f"{who}: {self.num_examples} examples; a summary needs at least one")
        if not self.deltas:
            raise SummaryError(f"{who}: the summary holds no task vector")
        unknown = sorted(set(self.fisher) - set(self.deltas))
        missing = sorted(set(self.deltas) - set(self.fisher)) if self.fisher else []
        if unknown or missing:
            raise SummaryError(
                f"{who}: the Fisher diagonal and the task vector name different tensors "
                f"(only in the Fisher: {unknown or 'none'}; only in the task vector: {missing or 'none'})"
            )

    def check_tensor(self, name: str) -> None:
        """Check the kind, and every value, of one task vector and of its Fisher, where there is one.

        Raises
        ------
        SummaryError
            As :meth:`validate`.
        """
        self.check_kind(name)
        who, delta = f"client {self.client_id!r}", self.deltas[name]
        for part in (delta.A, delta.B) if isinstance(delta, LoraFactors) else (delta,):
            if not all_finite(part):
                raise SummaryError(f"{who}: task vector {name!r} holds NaN or infinite values")
        if self.fisher:
            fisher = self.fisher[name]
            if isinstance(fisher, SparseFisher):
                fisher.validate(f"{who}: Fisher {name!r}")
            values = fisher.values if isinstance(fisher, SparseFisher) else fisher
            if not all_finite(values):
                raise SummaryError(f"{who}: Fisher {name!r} holds NaN or infinite values")
            if values.numel() and float(values.min()) < 0.0:
                raise SummaryError(
                    f"{who}: Fisher {name!r} holds negative values; it must be a mean of squares"
                )

    def check_kind(self, name: str) -> tuple[int, ...]:
        """Check dtypes and shapes of one task vector and its Fisher without reading their values.

        Returns
        -------
        tuple of int
            The shape of the weight tensor.

        Raises
        ------
        SummaryError
            As :meth:`validate`.
        """
        who, delta = f"client {self.client_id!r}", self.deltas[name]
        if isinstance(delta, LoraFactors) and not math.isfinite(delta.scale):
            raise SummaryError(f"{who}: task vector {name!r} has scale {delta.scale}")
        for part in (delta.A, delta.B) if isinstance(delta, LoraFactors) else (delta,):
            _check_plain(f"{who}: task vector {name!r}", part)
        shape = tuple(delta.shape)
        if self.fisher:
            fisher = self.fisher[name]
            values = fisher.values if isinstance(fisher, SparseFisher) else fisher
            _check_plain(f"{who}: Fisher {name!r}", values)
            if tuple(fisher.shape) != shape:
                raise SummaryError(
                    f"{who}: Fisher {name!r} has shape {tuple(fisher.shape)}, its task vector has {shape}"
                )
        return shape

    def check_against(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Check that the tensors are exactly those of the backbone.

        Parameters
        ----------
        shapes : mapping of str to tuple of int
            Shape of each adapted weight of the backbone, by name.

        Raises
        ------
        SummaryError
            Names the client and the first tensor that is missing, unknown or of another shape.
        """
        who = f"client {self.client_id!r}"
        for name in sorted(set(self.deltas) ^ set(shapes)):
            where = "is not an adapted weight of the backbone" if name in self.deltas else "is missing"
            raise SummaryError(
                f"{who}: tensor {name!r} {where}; was it trained on another model or LoRA preset?"
            )
        for name, delta in self.deltas.items():
            if tuple(delta.shape) != tuple(shapes[name]):
                raise SummaryError(
                    f"{who}: tensor {name!r} has shape {tuple(delta.shape)}, "
                    f"the backbone has {tuple(shapes[name])}"
                )

    def save(self, directory: str | Path) -> None:
        """Write the summary to a new directory, atomically.

        Layout: ``summary.json``, ``deltas.safetensors`` (factors under ``<name>::lora_A`` and
        ``<name>::lora_B``) and ``fisher.safetensors`` (the entries of a sparse Fisher under
        ``<name>::indices`` and ``<name>::values``); dtypes are kept.

        Raises
        ------
        SummaryError
            The directory exists already, or the summary is not valid.
        """
        directory = Path(directory)
        if directory.exists():
            raise SummaryError(f"{directory}: exists already; remove it or choose another directory")
        self.validate()
        tensors: dict[str, Tensor] = {}
        scales: dict[str, float] = {}
        for name, delta in self.deltas.items():
            if isinstance(delta, LoraFactors):
                tensors[name + A], tensors[name + B] = delta.A, delta.B
                scales[name] = delta.scale
            else:
                tensors[name] = delta
        meta = {
            "format": _FORMAT,
            "client_id": self.client_id,
            "role": self.role,
            "domain": self.domain,
            "num_examples": self.num_examples,
            "scales": scales,
        }
        fishers: dict[str, Tensor] = {}
        sparse: dict[str, dict[str, Any]] = {}
        for name, fisher in self.fisher.items():
            if isinstance(fisher, SparseFisher):
                fishers[name + INDICES], fishers[name + VALUES] = fisher.indices, fisher.values
                sparse[name] = {"shape": list(fisher.shape), "rest": fisher.rest}
            else:
                fishers[name] = fisher
        if self.coverage != WHOLE or sparse:
            meta |= {"coverage": self.coverage.to_plain(), "sparse": sparse}
        with atomic_path(directory) as temporary:
            temporary.mkdir()
            save_file(owned(tensors), temporary / "deltas.safetensors")
            save_file(owned(fishers), temporary / "fisher.safetensors")
            write_json(temporary / "summary.json", meta)

    @classmethod
    def load(cls, directory: str | Path) -> ClientSummary:
        """Open a saved summary; tensors are read from disk only when they are asked for.

        Raises
        ------
        SummaryError
            The directory holds no readable summary; names the file.
        """
        directory = Path(directory)
        path = directory / "summary.json"
        try:
            meta = json.loads(path.read_text(encoding="utf-8"))
            scales = {str(name): float(scale) for name, scale in meta["scales"].items()}
            if meta["format"] != _FORMAT:
                raise SummaryError(f"{path}: format {meta['format']}, this version reads format {_FORMAT}")
            return cls(
                client_id=str(meta["client_id"]),
                role=meta["role"],
                domain=str(meta["domain"]),
                num_examples=int(meta["num_examples"]),
                deltas=deltas_on_disk(directory / "deltas.safetensors", scales),
                fisher=fishers_on_disk(directory / "fisher.safetensors", meta.get("sparse", {})),
                coverage=Coverage.from_plain(meta["coverage"]) if "coverage" in meta else WHOLE,
            )
        except (OSError, json.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise SummaryError(
                f"{path}: not a client summary ({type(error).__name__}: {error}); "
                "give the directory that ClientSummary.save wrote"
            ) from error


def _check_plain(what: str, tensor: object) -> None:
    """Refuse what no merge can compute with; ``what`` begins the message."""
    if isinstance(tensor, Streamed):
        return  # made of tensors that were checked
    if not isinstance(tensor, Tensor):
        raise SummaryError(f"{what} is a {type(tensor).__name__}, not a torch tensor")
    if tensor.dtype not in _DTYPES:
        kinds = "not a floating one" if not tensor.is_floating_point() else "which nothing is computed in"
        raise SummaryError(f"{what} has dtype {tensor.dtype}, {kinds}; send fp16, bf16, fp32 or fp64")
    if tensor.layout != torch.strided or tensor.is_meta:
        kind = "holds no values" if tensor.is_meta else f"is a {tensor.layout} tensor"
        raise SummaryError(f"{what} {kind}; send a dense one")


def all_finite(tensor: Tensor) -> bool:
    """Tell whether a tensor holds neither NaN nor infinities."""
    # NaN propagates through the extremes, so one pass over the data decides.
    if not tensor.numel():
        return True
    low, high = torch.aminmax(tensor)
    return bool(torch.isfinite(low)) and bool(torch.isfinite(high))
