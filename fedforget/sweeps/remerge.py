"""A run's stored summaries merged once more under other settings."""

from __future__ import annotations

import errno
import time
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

from fedforget.backends import backend
from fedforget.config import MergeConfig
from fedforget.errors import RunError
from fedforget.files import atomic_path
from fedforget.merging import merge_tensors
from fedforget.merging.registry import find
from fedforget.runs import RunDirectory
from fedforget.sweeps.settings import expand
from fedforget.updates import merge_to

# Another merge was faster, or the name cannot be that of a directory.
_OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)


def merge_again(
    run: RunDirectory,
    method: str | None = None,
    parameters: Mapping[str, str] | None = None,
    out: Path | None = None,
    ray_address: str | None = None,
) -> Path:
    """Merge and write ``update.safetensors`` and ``merge.json`` to a new directory.

    Parameters
    ----------
    run : RunDirectory
    method : str, optional
        By default the run's.
    parameters : mapping of str to str
        Values as text, instead of the run's.
    out : Path, optional
        By default a new directory in the run's ``merges/``.
    ray_address : str, optional
        Merge over this Ray cluster instead of in this process.

    Returns
    -------
    Path
        The directory.

    Raises
    ------
    ConfigError
        An unknown method or parameter, or a value that is not its parameter's.
    RunError
        The directory exists already, or the run holds no summaries.
    """
    config = run.config.merge
    name = method or config.method
    given = expand([name], {key: [text] for key, text in (parameters or {}).items()}, lambda _: {})[
        0
    ].parameters
    own = config.parameters if name == config.method else {}
    section = replace(config, method=name, parameters=own)
    if "epsilon" in given:
        section = replace(section, epsilon_fraction=0.0)
    keys = {one.name for one in fields(MergeConfig)} - {"method", "parameters"}
    section = replace(section, **{key: value for key, value in given.items() if key in keys})
    section.parameters = {**own, **{key: value for key, value in given.items() if key not in keys}}
    find(name).parse(section.parameters)
    merge_over = backend("ray")(ray_address) if ray_address else merge_tensors
    summaries = run.load_summaries()
    target = Path(out).expanduser().resolve() if out else _default(run, name)
    if target.exists():
        raise RunError(f"{target}: exists already; choose another --out, or remove it first")
    try:
        with atomic_path(target) as temporary:
            temporary.mkdir()
            merge_to(temporary, section, summaries, merge_over, run.config.robust)
    except OSError as error:
        if error.errno not in _OCCUPIED:
            raise
        raise RunError(f"{target}: cannot be made ({error.strerror}); choose another --out") from error
    return target


def _default(run: RunDirectory, name: str) -> Path:
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    parent = run.path / "merges"
    return next(
        path for i in range(1000) if not (path := parent / (stem if not i else f"{stem}-{i}")).exists()
    )
