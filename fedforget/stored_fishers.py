"""The Fishers that an update is certified with: where they lie, and what equation (3) makes of them."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedforget.errors import ModelError, RunError, SummaryError
from fedforget.exports.delta import DELTA
from fedforget.merging.kernels import top_normalised_
from fedforget.merging.selection import kept_count
from fedforget.projection.sparse import FisherSupport, from_dense
from fedforget.sparse_fisher import dense_fisher
from fedforget.summaries import ClientSummary
from fedforget.updates import UPDATE


def find_update(path: Path) -> Path:
    """Return the file of an update, given it, or the run, merge or delta export that holds it.

    Raises
    ------
    ModelError
        There is none.
    """
    places = (UPDATE, f"merged/{UPDATE}", DELTA)
    found = path if path.is_file() else next((path / one for one in places if (path / one).is_file()), None)
    if found is None:
        raise ModelError(
            f"{path}: holds no merged update ({UPDATE} or {DELTA}); give a run that is complete, what "
            "`fedforget merge` or `fedforget export --format delta` wrote, or the file"
        )
    return found


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


def largest(name: str, raw: Tensor, alpha: float, working: torch.dtype) -> FisherSupport:
    """Return the entries of one retain client's raw Fisher that equation (3) keeps, raw.

    Raises
    ------
    SummaryError
        It is not a Fisher; ``name`` begins its text.
    """
    wide = raw.detach().reshape(-1).to(working, copy=True)
    found = from_dense(name, wide)
    keep = kept_count(wide.numel(), alpha)
    if keep > found.values.numel() or not found.values.numel():
        return found
    ordered = found.values.numpy().copy()
    ordered.partition(ordered.size - keep)
    kept = found.values >= float(ordered[ordered.size - keep])
    return found.where(kept)


def processed(kept: FisherSupport, eps0: float) -> FisherSupport:
    """Return equation (3) from what :func:`largest` found, bit for bit as the merge computes it."""
    if not kept.values.numel():
        return kept
    values = top_normalised_(kept.values.clone(), float(kept.values.max()), 0.0, eps0)
    positive = values > 0
    return FisherSupport(kept.index, values).where(positive)


class StoredFishers:
    """The Fishers, and summaries, that a folder holds.

    Attributes
    ----------
    folder : Path
    summaries : dict
        By client id, of the folder's subfolders.
    bare : dict
        Path of a safetensors file by client id, where there is no more than that.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bare = {path.stem: path for path in sorted(folder.glob("*.safetensors"))}
        self.summaries: dict[str, ClientSummary] = {}
        for path in sorted(folder.glob("*/fisher.safetensors")):
            if (path.parent / "summary.json").is_file():
                self.summaries[path.parent.name] = ClientSummary.load(path.parent)
            else:
                self.bare[path.parent.name] = path

    @property
    def retain(self) -> list[str]:
        """Every retain client; a bare file counts as one."""
        named = [client for client, one in self.summaries.items() if one.role == "retain"]
        return sorted({*named, *self.bare})

    def read(self, client: str, name: str) -> Tensor:
        """Return a client's Fisher of one tensor, dense.

        Raises
        ------
        SummaryError
            It is not there, or not a Fisher.
        """
        try:
            if client in self.summaries:
                one = self.summaries[client]
                one.check_tensor(name)
                return dense_fisher(one.fisher[name])
            if client in self.bare:
                return _one_of(self.bare[client], name)
        except KeyError:
            raise SummaryError(
                f"{self.folder}: client {client!r} has no Fisher of tensor {name!r}; is the file a merged "
                "update of these clients?"
            ) from None
        raise SummaryError(
            f"{self.folder}: holds no Fisher of client {client!r}; give the folder with "
            f"{client}/fisher.safetensors by --fishers"
        )


def _one_of(path: Path, name: str) -> Tensor:
    try:
        with safe_open(path, framework="pt") as file:
            if name not in file.keys():  # noqa: SIM118
                raise KeyError(name)
            tensor: Tensor = file.get_tensor(name)
            return tensor
    except (OSError, SafetensorError) as error:
        raise SummaryError(f"{path}: cannot be read as safetensors ({error})") from error
