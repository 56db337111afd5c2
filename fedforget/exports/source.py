"""What is exported: a merged update, with the run that it belongs to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedforget.certificates import digest, digests
from fedforget.errors import ExportError
from fedforget.files import read_json
from fedforget.runs import RunDirectory
from fedforget.summaries import all_finite
from fedforget.updates import REPORT, UPDATE


@dataclass(frozen=True)
class Source:
    """A merged update on disk; tensors are read one at a time.

    Attributes
    ----------
    file : Path
        Its safetensors file.
    merge : dict
        What ``merge.json`` beside it says: method, parameters, a report per tensor.
    run : RunDirectory
        Whose clients' summaries were merged.
    shapes : dict of str to tuple of int
        By tensor name, in the order of the names.
    bytes : int
        Size of the file.
    """

    file: Path
    merge: dict[str, Any]
    run: RunDirectory
    shapes: dict[str, tuple[int, ...]]
    bytes: int

    @property
    def method(self) -> str:
        """The merge method's name."""
        return str(self.merge["method"])

    @property
    def label(self) -> str:
        """What tells this merge from the run's others: its directory's name, or the run's method."""
        folder = self.file.parent.name
        return self.method if folder == "merged" else folder

    def facts(self, form: str) -> dict[str, Any]:
        """Return how the report of every export begins."""
        backbone = self.run.record.get("backbone") or {}
        return {
            "format": form,
            "base": str(backbone.get("path", "")),
            "base_fingerprint": str(backbone.get("fingerprint", "")),
            "method": self.method,
            "parameters": self.merge["parameters"],
            "trained_in": self.run.config.model.precision,
        }

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every tensor, in the order of the names."""
        for name in self.shapes:
            yield name, self.tensor(name)

    def tensor(self, name: str) -> Tensor:
        """Read one tensor.

        Raises
        ------
        ExportError
            It is not what the merge wrote, or holds what no update does.
        """
        with safe_open(self.file, framework="pt") as file:
            found: Tensor = file.get_tensor(name)
            said = digests(file.metadata() or {}, self.file).get(name)
        if said is not None and digest(found) != said:
            what = "is not what was merged (its bytes have another SHA-256)"
        elif not all_finite(found):
            what = "holds NaN or infinite values"
        else:
            return found
        raise ExportError(f"{self.file}: tensor {name!r} {what}; merge again with `fedforget merge`")

    def about(self) -> dict[str, str]:
        """Return what the update is, as text: for the metadata of a file.

        ``certificates`` holds, as JSON, the projection's certificate of every tensor that has one.
        """
        with safe_open(self.file, framework="pt") as file:
            kept = {str(key): str(value) for key, value in (file.metadata() or {}).items()}
        facts = self.facts("")
        certificates = {
            name: report["certificate"]
            for name, report in self.merge["tensors"].items()
            if report.get("certificate")
        }
        return kept | {
            "format": "pt",
            "base": facts["base"],
            "base_fingerprint": facts["base_fingerprint"],
            "method": self.method,
            "parameters": json.dumps(facts["parameters"], sort_keys=True),
            "certificates": json.dumps(certificates, sort_keys=True),
        }


def open_source(path: str | Path, run: str | Path | None = None) -> Source:
    """Find a merged update.

    Parameters
    ----------
    path : str or Path
        A run's directory, a directory that a merge wrote, or its ``update.safetensors``.
    run : str or Path, optional
        The run's directory; needed where the merge was written outside it.

    Raises
    ------
    ExportError
        There is no merged update, or it is not known which run it belongs to.
    """
    path = Path(path).expanduser().resolve()
    folders = [path, path / "merged"] if path.is_dir() else [path.parent]
    folder = next((one for one in folders if (one / UPDATE).is_file()), None)
    if folder is None:
        raise ExportError(
            f"{path}: holds no merged update ({UPDATE}); give a run that is complete, or what "
            "`fedforget merge` wrote"
        )
    found = Path(run).expanduser() if run else run_above(folder)
    if found is None:
        raise ExportError(f"{folder}: lies in no run's directory; say which run it belongs to with --run")
    if not (folder / REPORT).is_file():
        raise ExportError(f"{folder}: has no {REPORT} beside {UPDATE}; merge again with `fedforget merge`")
    merge = read_json(folder / REPORT)
    try:
        with safe_open(folder / UPDATE, framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in sorted(file.keys())}
    except (OSError, SafetensorError) as error:
        raise ExportError(f"{folder / UPDATE}: cannot be read as safetensors ({error})") from error
    if not _about(merge, shapes):
        raise ExportError(f"{folder / REPORT}: is not about the tensors of {UPDATE}; merge again")
    return Source(folder / UPDATE, merge, RunDirectory(found), shapes, (folder / UPDATE).stat().st_size)


def _about(merge: object, names: Iterable[str]) -> bool:
    """Tell whether a report is whole and about these tensors."""
    if not isinstance(merge, dict) or not isinstance(merge.get("method"), str):
        return False
    tensors = merge.get("tensors")
    return (
        isinstance(merge.get("parameters"), dict)
        and isinstance(tensors, dict)
        and set(tensors) == set(names)
        and all(isinstance(report, dict) for report in tensors.values())
    )


def run_above(folder: Path) -> Path | None:
    """Return the run that a folder lies in, None where it lies in none."""
    return next((one for one in (folder, *folder.parents) if (one / "run.json").is_file()), None)
