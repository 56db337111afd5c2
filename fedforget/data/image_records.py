"""Images with a class: CIFAR-10 and CIFAR-100, and any data set of that schema."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedforget.data.hub_sets import HubSet, Table, load_tables
from fedforget.data.records import Corpus, Records
from fedforget.errors import DataError
from fedforget.sequential.config import RecordsConfig

IMAGE_SETS = {
    "cifar10": HubSet("uoft-cs/cifar10", "", ("img",), "label"),
    "cifar100": HubSet("uoft-cs/cifar100", "", ("img",), "fine_label"),
    "images": HubSet("", "", ("image",), "label"),
}


def image_corpus(cfg: RecordsConfig) -> Corpus:
    """Load images; all training records are federated and none is public.

    Raises
    ------
    DataError
        As :func:`fedforget.data.hub_sets.load_tables`; or an image cannot be read.
    """
    known = IMAGE_SETS[cfg.family]
    train, test, names = load_tables(cfg, known, (cfg.columns.image or known.inputs[0],))
    folder = Path(cfg.path).expanduser() if cfg.path else Path()
    federated = Records.of(train.ids, images(train, folder), train.labels)
    return Corpus(
        federated.subset(()),
        federated,
        Records.of(test.ids, images(test, folder), test.labels),
        names,
        "image",
    )


def images(table: Table, folder: Path) -> Any:
    """Return a table's images: one array where they are of one size, else a tuple of arrays.

    Raises
    ------
    DataError
        An image cannot be read; names the record.
    """
    arrays = [_image(value, folder, name) for name, value in zip(table.ids, table.columns[0], strict=True)]
    if len({array.shape for array in arrays}) == 1:
        return np.stack(arrays)
    return tuple(arrays)


def _image(value: Any, folder: Path, name: str) -> NDArray[np.uint8]:
    """Return one image as uint8 of shape ``[height, width, 3]`` or, gray, ``[height, width]``."""
    from PIL import Image, UnidentifiedImageError

    try:
        if isinstance(value, dict) and value.get("bytes"):
            value = Image.open(io.BytesIO(value["bytes"]))
        elif isinstance(value, dict | str):
            where = value["path"] if isinstance(value, dict) else value
            value = Image.open(folder / where)
        elif isinstance(value, Sequence):
            value = Image.fromarray(np.asarray(value, dtype=np.uint8))
        return np.asarray(value if value.mode == "L" else value.convert("RGB"), dtype=np.uint8)
    except (OSError, UnidentifiedImageError, KeyError, AttributeError, TypeError, ValueError) as error:
        raise DataError(f"record {name}: its image cannot be read ({error})") from error
