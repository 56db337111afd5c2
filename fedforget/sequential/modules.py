"""Modules: what one phase trained, under the hash of its content, on disk and in a cache."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedforget.errors import ModelError
from fedforget.files import atomic_path

_FORMAT = "fedforget module 1"
_MEND = "restore it from a copy, or train what remains anew with `fedforget retrain`"


def module_hash(tensors: Mapping[str, Tensor]) -> str:
    """Hash names, dtypes, shapes and bytes; equal hashes mean equal bits.

    Returns
    -------
    str
        SHA-256, 64 hexadecimal digits; independent of the mapping's order and of the device.
    """
    digest = hashlib.sha256(_FORMAT.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        bits: Any = tensor.contiguous().cpu().reshape(-1).view(torch.uint8).numpy()
        digest.update(bits)
    return digest.hexdigest()


def first_difference(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> str:
    """Say which tensor differs first, by name, and by how much; empty if none does."""
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            return f"{name} is missing"
        if name not in expected:
            return f"{name} is one too many"
        ours, theirs = expected[name].detach().cpu(), found[name].detach().cpu()
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return f"{name} is {theirs.dtype} {tuple(theirs.shape)}, not {ours.dtype} {tuple(ours.shape)}"
        if module_hash({name: ours}) != module_hash({name: theirs}):
            gap = (ours.double() - theirs.double()).abs()
            changed = int((gap > 0).sum())
            return f"{name} differs in {changed} of {gap.numel()} values, by up to {float(gap.max()):.3g}"
    return ""


@dataclass(frozen=True, eq=False)
class PrefixModule:
    """The module of one prefix: an adapter and a classification head.

    Attributes
    ----------
    prefix : tuple of int
        The ordered groups it was trained on, its own last.
    tensors : dict of str to Tensor
        On the CPU. Names are the classifier's own, without the slot that an adapter sits in, so
        that a module is the same wherever it is loaded.
    """

    prefix: tuple[int, ...]
    tensors: dict[str, Tensor]

    @functools.cached_property
    def sha256(self) -> str:
        """See :func:`module_hash`. The prefix is not part of it."""
        return module_hash(self.tensors)

    @property
    def bytes(self) -> int:
        """Size of the tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())

    def save(self, path: Path) -> None:
        """Write the module as safetensors, atomically."""
        contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in self.tensors.items()}
        metadata = {"format": _FORMAT, "prefix": " ".join(map(str, self.prefix))}
        with atomic_path(path) as temporary:
            try:
                save_file(contiguous, temporary, metadata=metadata)
            except SafetensorError as error:  # it has no other for a full disk
                raise ModelError(f"{path}: cannot be written ({error}); free some space") from error

    @classmethod
    def load(cls, path: Path, sha256: str | None = None) -> PrefixModule:
        """Read a module back.

        Parameters
        ----------
        path : Path
        sha256 : str, optional
            What its hash must be.

        Raises
        ------
        ModelError
            The file is missing or damaged, or holds other tensors than the hash says.
        """
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{path}: cannot be read as a module ({error}); {_MEND}") from error
        if metadata.get("format") != _FORMAT:
            raise ModelError(
                f"{path}: is no module of fedforget (its metadata say {metadata.get('format')!r})"
            )
        module = cls(tuple(int(group) for group in metadata["prefix"].split()), tensors)
        if sha256 is not None and module.sha256 != sha256:
            raise ModelError(
                f"{path}: its hash is {module.sha256[:12]}..., not {sha256[:12]}...; the file was changed "
                f"since it was recorded; {_MEND}"
            )
        return module


class ModuleCache:
    """Modules on a client's disk, by hash, so that a frozen module travels once.

    Parameters
    ----------
    directory : Path
        Made when the first module comes.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    def put(self, module: PrefixModule) -> str:
        """Keep a module and return its hash; one that is here already is left as it is."""
        path = self._path(module.sha256)
        if not path.is_file():
            module.save(path)
        return module.sha256

    def get(self, sha256: str) -> PrefixModule | None:
        """Return a module, or None if it is not here; a damaged file is removed and counts as absent."""
        path = self._path(sha256)
        if not path.is_file():
            return None
        try:
            return PrefixModule.load(path, sha256)
        except ModelError:
            path.unlink(missing_ok=True)
            return None

    def missing(self, hashes: Iterable[str]) -> list[str]:
        """Return the hashes, in order and each once, of modules that are not here."""
        return [sha256 for sha256 in dict.fromkeys(hashes) if not self._path(sha256).is_file()]

    def remove(self, hashes: Iterable[str]) -> None:
        """Forget modules, such as those that a deletion switched off."""
        for sha256 in hashes:
            self._path(sha256).unlink(missing_ok=True)

    def _path(self, sha256: str) -> Path:
        if len(sha256) != 64 or not set(sha256) <= set("0123456789abcdef"):
            # It comes from another machine and becomes a file name.
            raise ModelError(f"{sha256!r} is not a module's hash; give 64 hexadecimal digits")
        return self.directory / f"{sha256}.safetensors"
