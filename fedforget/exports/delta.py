"""The update apart from the backbone: the exact bits that were merged and certified."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedforget.exports.source import Source
from fedforget.exports.target import REPORT, ensure_room, new_directory
from fedforget.files import write_json
from fedforget.updates import write_update

DELTA = "delta.safetensors"


def export_delta(source: Source, target: Path) -> dict[str, Any]:
    """Write ``delta.safetensors`` and ``report.json``.

    The tensors are those of the merge, to the bit. The file's metadata says what they are about:
    the base and its fingerprint, the method and its parameters, and the certificate of every
    tensor that was projected.

    Parameters
    ----------
    source : Source
    target : Path
        The directory to make.

    Returns
    -------
    dict
        The report.

    Raises
    ------
    ExportError
        The target is not empty, or the disk is full.
    """
    report = {**source.facts("delta"), "tensors": list(source.shapes)}
    with new_directory(target) as folder:
        ensure_room(folder, source.bytes)
        write_update(folder / DELTA, source.tensors(), source.shapes, source.about())
        write_json(folder / REPORT, report)
    return report
