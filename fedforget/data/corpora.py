"""The data sets that FedSGT trains on, by family."""

from __future__ import annotations

import functools
import json
from dataclasses import asdict

import numpy as np

from fedforget.data.digits import digits
from fedforget.data.image_records import IMAGE_SETS, image_corpus
from fedforget.data.records import Corpus
from fedforget.data.statements import statements
from fedforget.data.text_records import TEXT_SETS, text_corpus
from fedforget.errors import DataError, nearest
from fedforget.seeds import derive_seed
from fedforget.sequential.config import ColumnsConfig, RecordsConfig


def families() -> list[str]:
    """Return the known families of records."""
    return ["digits", "statements", *IMAGE_SETS, *TEXT_SETS]


def load_corpus(cfg: RecordsConfig, seed: int) -> Corpus:
    """Load a data set, cut into public, federated and test records. The last one is kept in memory.

    Parameters
    ----------
    cfg : RecordsConfig
        ``family``, ``path``, ``columns`` and the splits; ``max_records`` limits the federated part.
    seed : int
        Data seed.

    Raises
    ------
    DataError
        An unknown family, or data that are missing or malformed.
    """
    # Who holds what does not matter here, and must not make a second copy.
    own = {key: value for key, value in asdict(cfg).items() if key not in _PARTITION}
    return _load(json.dumps(own, sort_keys=True), seed)


_PARTITION = ("clients", "names", "slices", "partition", "dirichlet_alpha")


@functools.lru_cache(maxsize=1)
def _load(own: str, seed: int) -> Corpus:
    values = json.loads(own)
    cfg = RecordsConfig(**{**values, "columns": ColumnsConfig(**values["columns"])})
    if cfg.family == "digits":
        corpus = digits(seed)
    elif cfg.family == "statements":
        corpus = statements(seed)
    elif cfg.family in IMAGE_SETS:
        corpus = image_corpus(cfg)
    elif cfg.family in TEXT_SETS:
        corpus = text_corpus(cfg)
    else:
        raise DataError(
            f"data.family: {cfg.family!r} is not one of {', '.join(families())}"
            f"{nearest(cfg.family, families())}"
        )
    return _limited(corpus, cfg.max_records, seed)


def _limited(corpus: Corpus, most: int, seed: int) -> Corpus:
    if not 0 < most < len(corpus.federated):
        return corpus
    ids = corpus.federated.ids
    order = np.random.default_rng(derive_seed(seed, "records", "limit")).permutation(len(ids))
    federated = corpus.federated.subset(ids[i] for i in order[:most])
    return Corpus(corpus.public, federated, corpus.test, corpus.labels, corpus.task)
