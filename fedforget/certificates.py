"""Certificates of a merged update: written into its file, and recomputed from its bytes and the Fishers."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedforget.errors import ModelError, RunError, SummaryError
from fedforget.files import plain
from fedforget.merging.kernels import top_normalised_
from fedforget.merging.selection import kept_count
from fedforget.projection.sparse import FisherSupport, damage, from_dense
from fedforget.sparse_fisher import dense_fisher
from fedforget.summaries import ClientSummary

KEY = "fedforget.certificate"
FORMAT = 1
# Characters that a certificate takes: per file and tensor, and per retain client in each.
_PER_TENSOR, _PER_CLIENT = 700, 320
# Recomputed numbers come from the same values by another order of summation.
_SAME = 1e-9


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
        self._content: dict[str, Any] = {
            "format": FORMAT,
            "method": method,
            "epsilon": parameters.get("epsilon", math.inf),
            "alpha": parameters.get("alpha", 0.1),
            "eps0": parameters.get("eps0", 1e-8),
            "clients": [summary.client_id for summary in self._retain],
            "tensors": {},
        }

    @property
    def room(self) -> int:
        """Characters that :meth:`metadata` may take in the file's header."""
        return (_PER_TENSOR + _PER_CLIENT * len(self._retain)) * (1 + len(self._summaries[0].deltas))

    def add(self, name: str, update: Tensor, report: Mapping[str, Any]) -> None:
        """Note a tensor as it is written, with the merge's report on it."""
        entry: dict[str, Any] = {"sha256": digest(update)}
        certificate = report.get("certificate")
        if certificate:
            multipliers, values = report["multipliers"], report["damage"]
            epsilon = float(self._content["epsilon"])
            entry |= {
                "multipliers": multipliers,
                "ratio": [_ratio(value, epsilon) for value in values],
                "slack_gap": _slack_gap(multipliers, values, epsilon),
                "duality_gap": certificate["duality_gap"],
                "certified": certificate["certified"],
                "fishers": [digest(dense_fisher(one.fisher[name])) for one in self._retain],
                "working": _working(self._summaries, name),
            }
        self._content["tensors"][name] = entry

    def metadata(self) -> dict[str, str]:
        """Return what the file's header is to hold."""
        return {KEY: json.dumps(plain(self._content), separators=(",", ":"))}


@dataclass
class Certification:
    """What :func:`certify` found.

    Attributes
    ----------
    method : str
        The merge method that the file names; empty without a certificate.
    budget : float or None
        The epsilon that the file claims to keep; None where nothing is certified.
    damages : dict
        Per tensor, ``b_k`` per client id, recomputed from the file's bytes.
    optimal : dict
        Per tensor with a budget, whether the certificate also claims the closest feasible update.
    problems : list of str
        One sentence per violation, each naming tensor and client.
    """

    method: str = ""
    budget: float | None = None
    damages: dict[str, dict[str, float]] = field(default_factory=dict)
    optimal: dict[str, bool] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def certify(path: Path, fishers: Path) -> Certification:
    """Recompute the certificate of a merged update, one tensor and one client at a time.

    Parameters
    ----------
    path : Path
        The update's safetensors file.
    fishers : Path
        A folder with ``<client>/fisher.safetensors``, as a run's ``summaries``, or
        ``<client>.safetensors`` for every retain client.

    Returns
    -------
    Certification

    Raises
    ------
    ModelError
        The file cannot be read.
    SummaryError
        A retain client's Fisher is missing or not a Fisher.
    """
    try:
        with safe_open(path, framework="pt") as file:
            said = _content(file.metadata() or {}, path)
            found = Certification(said.get("method", ""))
            epsilon = float(said.get("epsilon", math.inf))
            found.budget = epsilon if math.isfinite(epsilon) else None
            known = said.get("tensors", {})
            names = sorted(file.keys())
            if said:
                for name in sorted(set(known) ^ set(names)):
                    found.problems.append(
                        f"tensor {name!r}: is in the {'certificate' if name in known else 'file'} alone"
                    )
            clients = said.get("clients") or _retain_clients(fishers)
            if found.budget is not None:
                for client in _left_out(fishers, clients):
                    found.problems.append(
                        f"retain client {client!r}: its summary is in {fishers}, and the "
                        "certificate leaves it out"
                    )
            for name in names:
                _certify_tensor(found, name, file.get_tensor(name), said, clients, fishers)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path}: cannot be read as a merged update ({error})") from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        raise ModelError(
            f"{path}: its certificate was changed or is not one ({type(error).__name__}: {error})"
        ) from error
    return found


def digest(tensor: Tensor) -> str:
    """Return the SHA-256 of a tensor's dtype, shape and bytes."""
    raw = tensor.detach().cpu().contiguous()
    sha = hashlib.sha256(f"{raw.dtype} {tuple(raw.shape)}\n".encode())
    sha.update(raw.reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


def digests(metadata: Mapping[str, str], path: Path) -> dict[str, str]:
    """Return the SHA-256 of every tensor that was written with a certificate, see :func:`digest`.

    Raises
    ------
    ModelError
        There is a certificate and it cannot be read; ``path`` begins its text.
    """
    try:
        return {name: one["sha256"] for name, one in _content(metadata, path).get("tensors", {}).items()}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ModelError(
            f"{path}: its certificate was changed or is not one ({type(error).__name__}: {error})"
        ) from error


def processed(name: str, raw: Tensor, alpha: float, eps0: float, working: torch.dtype) -> FisherSupport:
    """Return equation (3) of one retain client's raw Fisher, bit for bit as the merge computes it."""
    wide = raw.detach().reshape(-1).to(working, copy=True)
    found = from_dense(name, wide)  # refuses what is not a Fisher
    keep = kept_count(wide.numel(), alpha)
    if not found.values.numel():
        return found
    threshold = 0.0
    if keep <= found.values.numel():
        ordered = found.values.numpy().copy()
        ordered.partition(ordered.size - keep)
        threshold = float(ordered[ordered.size - keep])
    values = top_normalised_(found.values.clone(), float(found.values.max()), threshold, eps0)
    kept = values > 0
    return FisherSupport(found.index[kept], values[kept])


def _certify_tensor(
    found: Certification,
    name: str,
    update: Tensor,
    said: Mapping[str, Any],
    clients: Sequence[str],
    fishers: Path,
) -> None:
    # One that is known and empty is read like any other, so that what it lacks is told.
    entry = said.get("tensors", {}).get(name)
    where = f"tensor {name!r}"
    if entry is not None and digest(update) != entry["sha256"]:
        found.problems.append(f"{where}: its bytes are not those that were certified")
    if found.budget is not None and entry is not None:
        for key in ("multipliers", "ratio", "fishers"):
            if len(entry[key]) != len(clients):
                found.problems.append(f"{where}: the certificate's {key} are not one per client")
                return
    flat = update.reshape(-1)
    values: list[float] = []
    for k, client in enumerate(clients):
        who = f"{where}, client {client!r}"
        raw = _fisher(fishers, client, name)
        if tuple(raw.shape) != tuple(update.shape):
            raise SummaryError(f"{who}: the Fisher has shape {tuple(raw.shape)}, not {tuple(update.shape)}")
        if found.budget is not None and entry is not None and digest(raw) != entry["fishers"][k]:
            found.problems.append(f"{who}: the Fisher is not the one that the certificate was made with")
        working = torch.float64 if (entry or {}).get("working") == "float64" else torch.float32
        working = torch.promote_types(working, raw.dtype)
        support = processed(
            f"client {client!r}", raw, said.get("alpha", 0.1), said.get("eps0", 1e-8), working
        )
        values.append(damage(flat, support))
        found.damages.setdefault(name, {})[client] = values[-1]
        if found.budget is None or entry is None:
            continue
        if not values[-1] <= found.budget:
            found.problems.append(f"{who}: damage {values[-1]!r} exceeds the budget {found.budget!r}")
        if not _close(_ratio(values[-1], found.budget), float(entry["ratio"][k])):
            found.problems.append(
                f"{who}: the certificate says b/epsilon = {entry['ratio'][k]}, the bytes say "
                f"{_ratio(values[-1], found.budget)!r}"
            )
    if found.budget is not None and entry is not None:
        found.optimal[name] = bool(entry["certified"])
        multipliers = [float(value) for value in entry["multipliers"]]
        gap = _slack_gap(multipliers, values, found.budget)
        scale = found.budget * sum(value for value in multipliers if math.isfinite(value))
        if min(multipliers, default=0.0) < 0.0 or not abs(gap - float(entry["slack_gap"])) <= _SAME * scale:
            found.problems.append(f"{where}: the multipliers do not give the gap that the certificate says")
        if entry["certified"] and float(entry["duality_gap"]) < float(entry["slack_gap"]) - _SAME * scale:
            found.problems.append(f"{where}: the duality gap is below what its slack budgets leave")


def _content(metadata: Mapping[str, str], path: Path) -> dict[str, Any]:
    if KEY not in metadata:
        return {}
    content = json.loads(metadata[KEY])
    if content["format"] != FORMAT:
        raise ModelError(f"{path}: certificate format {content['format']}, this version reads {FORMAT}")
    return dict(content)


def _fisher_files(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.glob("*/fisher.safetensors")):
        yield path.parent.name, path
    for path in sorted(folder.glob("*.safetensors")):
        yield path.stem, path


def _retain_clients(folder: Path) -> list[str]:
    """Every retain client of a folder; a bare file without a summary beside it counts as one."""
    return [
        client
        for client, path in _fisher_files(folder)
        if not (path.parent / "summary.json").is_file() or ClientSummary.load(path.parent).role == "retain"
    ]


def _left_out(folder: Path, clients: Sequence[str]) -> list[str]:
    """Retain clients whose summaries a folder holds; of a bare file nobody knows the role."""
    return [
        client
        for client, path in _fisher_files(folder)
        if client not in clients
        and (path.parent / "summary.json").is_file()
        and ClientSummary.load(path.parent).role == "retain"
    ]


def _fisher(folder: Path, client: str, name: str) -> Tensor:
    files = dict(_fisher_files(folder))
    if client not in files:
        raise SummaryError(
            f"{folder}: holds no Fisher of client {client!r}; give the folder with "
            f"{client}/fisher.safetensors by --fishers"
        )
    path = files[client]
    try:
        if (path.parent / "summary.json").is_file():
            return dense_fisher(ClientSummary.load(path.parent).fisher[name])
        with safe_open(path, framework="pt") as file:
            if name not in file.keys():  # noqa: SIM118
                raise KeyError(name)
            tensor: Tensor = file.get_tensor(name)
            return tensor
    except KeyError:
        raise SummaryError(f"{path}: client {client!r} has no Fisher of tensor {name!r}") from None
    except (OSError, SafetensorError) as error:
        raise SummaryError(f"{path}: cannot be read as safetensors ({error})") from error


def find_fishers(path: Path) -> Path:
    """Return the summaries of the run that an update lies in.

    Raises
    ------
    RunError
        It lies in no run.
    """
    for folder in path.resolve().parents[:4]:
        if (folder / "run.json").is_file() and (folder / "summaries").is_dir():
            return folder / "summaries"
    raise RunError(f"{path}: lies in no run directory; give the retain clients' Fishers by --fishers")


def _working(summaries: Sequence[ClientSummary], name: str) -> str:
    wide = torch.float32
    for one in summaries:
        wide = torch.promote_types(wide, one.deltas[name].dtype)
        wide = torch.promote_types(wide, one.fisher[name].dtype)
    return str(wide).removeprefix("torch.")


def _ratio(value: float, epsilon: float) -> float:
    return value / epsilon if epsilon > 0.0 else value


def _slack_gap(multipliers: Sequence[float], values: Sequence[float], epsilon: float) -> float:
    """Return ``sum_k lambda_k (epsilon - b_k)``, the part of the duality gap that slack budgets leave."""
    return float(
        np.sum(
            [
                multiplier * (epsilon - value)
                for multiplier, value in zip(multipliers, values, strict=True)
                if math.isfinite(multiplier)
            ]
        )
    )


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= _SAME * max(abs(one), abs(other), 1e-300)
