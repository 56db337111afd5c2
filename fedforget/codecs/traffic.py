"""What a summary took on the wire, and what it would have taken dense."""

from __future__ import annotations

from typing import Any

from fedforget.codecs.manifest import parse


def traffic(manifest: str, client: str = "") -> dict[str, Any]:
    """Read the sizes off a manifest.

    Returns
    -------
    dict
        ``codec`` of the Fisher, ``fisher_bytes`` and ``fisher_dense_bytes``, ``delta_bytes`` and
        ``delta_dense_bytes`` (as tensors of the same dtype), and, of an approximate codec,
        ``relative_error`` and ``overlap`` as the client measured them.

    Raises
    ------
    SummaryError
        The text is not a manifest.
    """
    declared = parse(manifest, client)
    fishers = [one for one in declared.tensors if one.kind == "fisher"]
    sizes = {one.name: one.size * one.dtype.itemsize for one in declared.tensors if one.kind == "delta"}
    rows = {one.name: one for one in declared.tensors if one.kind == "lora_B"}
    columns = {one.name: one for one in declared.tensors if one.kind == "lora_A"}
    sizes |= {
        name: rows[name].shape[0] * columns[name].shape[-1] * rows[name].dtype.itemsize
        for name in rows.keys() & columns.keys()
    }
    return {
        "codec": declared.codec,
        "fisher_bytes": sum(one.nbytes for one in fishers),
        "fisher_dense_bytes": sum(one.size * one.dtype.itemsize for one in fishers),
        "delta_bytes": sum(one.nbytes for one in declared.tensors if one.kind != "fisher"),
        "delta_dense_bytes": sum(sizes.values()),
        **declared.errors,
    }
