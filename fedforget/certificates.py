"""The certificate of a merged update, as it stands in the metadata of the update's file."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedforget.errors import ModelError
from fedforget.files import plain
from fedforget.projection import solved_budget
from fedforget.sparse_fisher import dense_fisher
from fedforget.summaries import ClientSummary

KEY = "fedforget.certificate"
FORMAT = 2
# Characters that a certificate takes: per file and tensor, per retain client in each, per forget client.
_PER_TENSOR, _PER_CLIENT, _PER_MEMBER = 800, 320, 140


class Certifier:
    """Collects what the certificate of a merge says, tensor by tensor.

    Parameters
    ----------
    method : str
    parameters : mapping
        Of the method, defaults included where they matter (``epsilon``, ``alpha``, ``eps0``).
    summaries : sequence of ClientSummary
    """

    def __init__(
        self, method: str, parameters: Mapping[str, Any], summaries: Sequence[ClientSummary]
    ) -> None:
        self._summaries = summaries
        self._retain = sorted((s for s in summaries if s.role == "retain"), key=lambda s: s.client_id)
        self._epsilon = float(parameters.get("epsilon", math.inf))
        self._solver = str(parameters.get("solver", "exact"))
        self._parameters = plain(dict(parameters))
        self._content: dict[str, Any] = {
            "format": FORMAT,
            "method": method,
            "parameters": self._parameters,
            "epsilon": parameters.get("epsilon", math.inf),
            "alpha": parameters.get("alpha", 0.1),
            "eps0": parameters.get("eps0", 1e-8),
            "clients": [summary.client_id for summary in self._retain],
            "forget": sorted(s.client_id for s in summaries if s.role == "forget"),
            "tensors": {},
        }

    @property
    def room(self) -> int:
        """Characters that :meth:`metadata` may take in the file's header."""
        each = _PER_TENSOR + _PER_CLIENT * len(self._retain)
        # In the header the quotes of a text are escaped, which takes another character each.
        return (
            each * (1 + len(self._summaries[0].deltas))
            + _PER_MEMBER * len(self._summaries)
            + 2 * len(json.dumps(self._parameters))
        )

    def add(self, name: str, update: Tensor, report: Mapping[str, Any]) -> None:
        """Note a tensor as it is written, with the merge's report on it."""
        entry: dict[str, Any] = {"sha256": digest(update)}
        certificate = report.get("certificate")
        if certificate:
            multipliers, values = report["multipliers"], report["damage"]
            working = _working(self._summaries, name)
            budget = budget_solved_for(self._epsilon, self._solver, working)
            entry |= {
                "multipliers": multipliers,
                "ratio": [ratio(value, self._epsilon) for value in values],
                "slack_gap": slack_gap(multipliers, values, budget),
                "duality_gap": certificate["duality_gap"],
                "certified": certificate["certified"],
                "base_norm": report["base_norm"],
                "fishers": [digest(dense_fisher(one.fisher[name])) for one in self._retain],
                "working": str(working).removeprefix("torch."),
            }
        self._content["tensors"][name] = entry

    def metadata(self) -> dict[str, str]:
        """Return what the file's header is to hold."""
        return {KEY: json.dumps(plain(self._content), separators=(",", ":"))}


def read(metadata: Mapping[str, str], path: Path) -> dict[str, Any]:
    """Return the certificate in a file's metadata, empty where there is none.

    Raises
    ------
    ModelError
        It is of another format; ``path`` begins its text. What else may be wrong with a text that
        was changed raises whatever reading it raises: see :data:`UNREADABLE`.
    """
    if KEY not in metadata:
        return {}
    content = json.loads(metadata[KEY])
    if content["format"] != FORMAT:
        raise ModelError(
            f"{path}: certificate format {content['format']}, this version reads {FORMAT}; merge again"
        )
    return dict(content)


UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError)


def unreadable(path: Path, error: Exception) -> ModelError:
    """Return the error for a certificate that cannot be read."""
    return ModelError(f"{path}: its certificate was changed or is not one ({type(error).__name__}: {error})")


def digests(metadata: Mapping[str, str], path: Path) -> dict[str, str]:
    """Return the SHA-256 of every tensor that was written with a certificate, see :func:`digest`.

    Raises
    ------
    ModelError
        There is a certificate and it cannot be read; ``path`` begins its text.
    """
    try:
        return {name: one["sha256"] for name, one in read(metadata, path).get("tensors", {}).items()}
    except UNREADABLE as error:
        raise unreadable(path, error) from error


def digest(tensor: Tensor) -> str:
    """Return the SHA-256 of a tensor's dtype, shape and bytes."""
    raw = tensor.detach().cpu().contiguous()
    sha = hashlib.sha256(f"{raw.dtype} {tuple(raw.shape)}\n".encode())
    sha.update(raw.reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


def budget_solved_for(epsilon: float, solver: str, working: torch.dtype) -> float:
    """Return the budget that the multipliers are for, see :func:`fedforget.projection.solved_budget`."""
    return solved_budget(epsilon, working) if solver == "exact" and math.isfinite(epsilon) else epsilon


def ratio(value: float, epsilon: float) -> float:
    """Return ``b_k / epsilon``; ``b_k`` itself where the budget is 0."""
    return value / epsilon if epsilon > 0.0 else value


def slack_gap(multipliers: Sequence[float], values: Sequence[float], budget: float) -> float:
    """Return ``sum_k lambda_k (budget - b_k)``, the part of the duality gap that slack budgets leave."""
    return math.fsum(
        multiplier * (budget - value)
        for multiplier, value in zip(multipliers, values, strict=True)
        if math.isfinite(multiplier)
    )


def _working(summaries: Sequence[ClientSummary], name: str) -> torch.dtype:
    wide = torch.float32
    for one in summaries:
        wide = torch.promote_types(wide, one.deltas[name].dtype)
        wide = torch.promote_types(wide, one.fisher[name].dtype)
    return wide
