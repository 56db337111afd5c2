"""Seeds derived from what they are for, so that no draw depends on what was drawn before it."""

from __future__ import annotations

import hashlib


def derive_seed(root: int, *purpose: object) -> int:
    """Derive an independent seed for one purpose.

    Parameters
    ----------
    root : int
        The run's seed.
    *purpose : object
        What the seed is for, most general first, e.g. ``("train", "client", "forget-bio-0")``.
        Each part enters through ``repr``; use strings, integers and tuples of them.

    Returns
    -------
    int
        In ``[0, 2**63)``, the range that torch and NumPy generators accept.
    """
    digest = hashlib.sha256(repr((int(root), *purpose)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
