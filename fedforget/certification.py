"""A merged update's certificate, recomputed from the update's bytes and what it was merged from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedforget.certificate_claims import read_claims, tensor_claims
from fedforget.certificates import (
    UNREADABLE,
    budget_solved_for,
    digest,
    ratio,
    slack_gap,
    unreadable,
)
from fedforget.errors import ModelError, SummaryError
from fedforget.merging.engine import Merge
from fedforget.projection import recheck
from fedforget.projection.sparse import FisherSupport, damage
from fedforget.robust.hardening import Hardening
from fedforget.runs import RunDirectory
from fedforget.stored_fishers import StoredFishers, largest, processed

# Recomputed numbers come from the same values by another order of summation.
_SAME = 1e-9


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
        Per tensor, ``b_k`` per client id, recomputed from the file's bytes, with the Fishers
        normalised in fp64.
    optimal : dict
        Per tensor with a budget, whether it is the closest feasible update, up to rounding.
    gaps : dict
        Per tensor with a budget, the duality gap for it: a bound on half the squared distance to the
        closest feasible update.
    squared_norm : float
        Of the whole update.
    as_recorded : str
        Why stationarity and duality gap, and so ``optimal`` and ``gaps``, are the certificate's word;
        empty where they were recomputed.
    problems : list of str
        One sentence per violation, each naming tensor and client.
    """

    method: str = ""
    budget: float | None = None
    damages: dict[str, dict[str, float]] = field(default_factory=dict)
    optimal: dict[str, bool] = field(default_factory=dict)
    gaps: dict[str, float] = field(default_factory=dict)
    squared_norm: float = 0.0
    as_recorded: str = ""
    problems: list[str] = field(default_factory=list)

    @property
    def distance(self) -> float:
        """Bound on the distance to the closest feasible update, relative to the update's norm."""
        bound = math.sqrt(2.0 * math.fsum(max(0.0, gap) for gap in self.gaps.values()))
        return bound / math.sqrt(self.squared_norm) if self.squared_norm > 0.0 else bound


def certify(path: Path, fishers: Path) -> Certification:
    """Recompute the certificate of a merged update, one tensor at a time.

    From the bytes and the retain clients' Fishers: every damage, in fp64 from the raw Fishers on;
    ``b_k / epsilon`` as it was recorded; the multipliers' signs; the part of the duality gap that slack
    budgets leave. Where ``fishers`` are the summaries of the whole run, the base update is merged again,
    and stationarity, complementarity and the duality gap are recomputed from it.

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
        The file cannot be read, or holds what is not an update.
    SummaryError
        A retain client's Fisher is missing or not a Fisher.
    """
    try:
        with safe_open(path, framework="pt") as file:
            names = sorted(file.keys())
            said = read_claims(file.metadata() or {}, path)
            held = StoredFishers(fishers)
            found = Certification(str(said.get("method", "")))
            if math.isfinite(float(said.get("epsilon", math.inf))):
                found.budget = float(said["epsilon"])
                _check_clients(found, said, held)
            if said:
                for name in sorted(set(said["tensors"]) ^ set(names)):
                    where = "certificate" if name in said["tensors"] else "file"
                    found.problems.append(f"tensor {name!r}: is in the {where} alone")
            clients = said["clients"] if said else held.retain
            bases = None
            if found.budget is not None:
                bases = _base_merge(found, said, held)
            for name in names:
                update = file.get_tensor(name)
                if not update.is_floating_point() or update.dtype.itemsize < 2:
                    raise ModelError(
                        f"{path}: tensor {name!r} has dtype {update.dtype}, which no merged update has"
                    )
                check = _Check(found, name, update, said, path)
                for client in clients:
                    check.client(client, held.read(client, name))
                check.optimality(bases)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path}: cannot be read as a merged update ({error})") from error
    return found


def _check_clients(found: Certification, said: Mapping[str, Any], held: StoredFishers) -> None:
    for client in held.retain:
        if client not in said["clients"] and client not in held.bare:
            found.problems.append(
                f"retain client {client!r}: its summary is in {held.folder}, and the "
                "certificate leaves it out"
            )


def _base_merge(found: Certification, said: Mapping[str, Any], held: StoredFishers) -> Merge | None:
    """Get the merge without projection ready; None, and why not, where what it needs is not there."""
    members = [*said["clients"], *said["forget"]]
    absent = [client for client in members if client not in held.summaries]
    if absent:
        found.as_recorded = f"the summary of client {absent[0]!r} is not in {held.folder}"
        return None
    run = held.folder.resolve().parent
    if not (run / "run.json").is_file():
        found.as_recorded = f"{held.folder} is no run's, so what hardened the merge is not known"
        return None
    for client in members:
        if not RunDirectory(run).as_received(client):
            found.problems.append(f"client {client!r}: its summary is not the one that the run received")
    robust = replace(RunDirectory(run).config.robust, check="off")
    hardening = Hardening([held.summaries[client] for client in members], robust)
    parameters = {**said["parameters"], "epsilon": math.inf}
    return Merge(hardening.for_method(found.method), found.method, parameters)


class _Check:
    """Checks one tensor of an update."""

    def __init__(
        self, found: Certification, name: str, update: Tensor, said: Mapping[str, Any], path: Path
    ) -> None:
        self._found, self._name, self._update, self._path = found, name, update, path
        self._where = f"tensor {name!r}"
        self._alpha, self._eps0 = said.get("alpha", 0.1), said.get("eps0", 1e-8)
        self._supports: list[FisherSupport] = []
        self._values: list[float] = []
        self._working = torch.float32
        self._entry: dict[str, Any] = {}
        found.squared_norm += float(torch.linalg.vector_norm(update, dtype=torch.float64)) ** 2
        if not said or name not in said["tensors"]:
            return
        try:
            entry = said["tensors"][name]
            if digest(update) != entry["sha256"]:
                found.problems.append(f"{self._where}: its bytes are not those that were certified")
            if found.budget is not None:
                self._entry = tensor_claims(entry, len(said["clients"]))
                self._working = torch.float64 if entry["working"] == "float64" else torch.float32
                solver = str(said["parameters"].get("solver", "exact"))
                self._budget = budget_solved_for(found.budget, solver, self._working)
        except UNREADABLE as error:
            raise unreadable(path, error) from error

    def client(self, client: str, raw: Tensor) -> None:
        """Measure the damage to one retain client and compare it with what is claimed."""
        found, entry, who = self._found, self._entry, f"{self._where}, client {client!r}"
        k = len(self._supports)
        if tuple(raw.shape) != tuple(self._update.shape):
            raise SummaryError(
                f"{who}: the Fisher has shape {tuple(raw.shape)}, not {tuple(self._update.shape)}"
            )
        if entry and digest(raw) != entry["fishers"][k]:
            found.problems.append(f"{who}: the Fisher is not the one that the certificate was made with")
        working = torch.promote_types(self._working, raw.dtype)
        kept = largest(f"{who}: the Fisher", raw, self._alpha, working)
        flat = self._update.reshape(-1)
        exact = 0.0
        if kept.values.numel():
            divisor = float(kept.values.max()) + self._eps0
            exact = damage(flat, FisherSupport(kept.index, kept.values, divisor))
        self._supports.append(processed(kept, self._eps0))
        self._values.append(damage(flat, self._supports[-1]))
        found.damages.setdefault(self._name, {})[client] = exact
        if not entry or found.budget is None:
            return
        for value in (exact, self._values[-1]):
            if not value <= found.budget:
                found.problems.append(f"{who}: damage {value!r} exceeds the budget {found.budget!r}")
                break
        seen = ratio(self._values[-1], found.budget)
        if not _close(seen, entry["ratio"][k]):
            found.problems.append(
                f"{who}: the certificate says b/epsilon = {entry['ratio'][k]}, the bytes say {seen!r}"
            )

    def optimality(self, bases: Merge | None) -> None:
        """Check the multipliers, against the base update where it can be merged."""
        found, entry = self._found, self._entry
        if not entry or found.budget is None:
            return
        multipliers: list[float] = entry["multipliers"]
        scale = found.budget * sum(value for value in multipliers if math.isfinite(value))
        gap = entry["duality_gap"]
        if not all(value >= 0.0 for value in multipliers):
            found.problems.append(f"{self._where}: a multiplier is negative or no number")
            return
        slack = slack_gap(multipliers, self._values, self._budget)
        if not abs(slack - entry["slack_gap"]) <= _SAME * scale:
            found.problems.append(
                f"{self._where}: the multipliers do not give the gap that the certificate says"
            )
        found.optimal[self._name] = entry["certified"]
        if bases is None:
            if entry["certified"] and not gap >= slack - _SAME * scale:
                found.problems.append(f"{self._where}: the duality gap is below what its slack budgets leave")
        else:
            gap = self._against_base(bases, multipliers, scale)
        # What was left of the budget lies between the optimum that was solved for and that for epsilon.
        reserve = slack_gap(multipliers, [self._budget] * len(multipliers), found.budget)
        found.gaps[self._name] = gap + reserve

    def _against_base(self, bases: Merge, multipliers: list[float], scale: float) -> float:
        """Recompute stationarity, complementarity and gap, and return the gap."""
        found, entry = self._found, self._entry
        base, report = bases.tensor(self._name)
        if base.dtype != self._update.dtype or not _close(report["base_norm"], entry["base_norm"]):
            found.problems.append(
                f"{self._where}: the summaries do not merge to the base update that was projected"
            )
            found.optimal[self._name] = False
            return math.inf
        certificate = recheck(
            base.reshape(-1), self._update.reshape(-1), self._supports, self._budget, multipliers
        )
        if entry["certified"] and not certificate.certified:
            found.problems.append(
                f"{self._where}: is not the closest update that keeps the budgets: stationarity "
                f"{certificate.stationarity:.3g}, complementarity {certificate.complementarity:.3g}, where "
                f"{certificate.tolerance:.3g} is allowed"
            )
            found.optimal[self._name] = False
        if not abs(certificate.duality_gap - entry["duality_gap"]) <= _SAME * scale:
            found.problems.append(
                f"{self._where}: the certificate says that the duality gap is {entry['duality_gap']!r}, "
                f"recomputed it is {certificate.duality_gap!r}"
            )
        return certificate.duality_gap


def _close(one: float, other: float) -> bool:
    return one == other or abs(one - other) <= _SAME * max(abs(one), 1e-300)
