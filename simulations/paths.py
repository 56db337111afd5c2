"""What a relative path in a configuration refers to, in a process whose working directory is Flower's."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from fedforget.config import RunConfig
from fedforget.presets import AnyConfig
from fedforget.sequential.config import SequentialRunConfig


def base() -> Path:
    """Return the folder that relative paths refer to: the user's, which Flower's processes do not run in."""
    return Path(os.environ.get("FEDFORGET_CWD") or os.getcwd())


def absolute(path: str, root: Path | None = None) -> str:
    """Return ``path`` made absolute; an empty one stays empty."""
    if not path:
        return ""
    expanded = Path(path).expanduser()
    return str(expanded if expanded.is_absolute() else ((root or base()) / expanded).resolve())


def with_absolute_paths(config: AnyConfig, root: Path | None = None) -> AnyConfig:
    """Return the configuration with its data and model paths made absolute.

    A path that can also be a hub id is changed only where there is a file or directory of that name.
    """
    root = root or base()
    listed = absolute(config.deployment.nodes_file, root)
    config = dataclasses.replace(config, deployment=dataclasses.replace(config.deployment, nodes_file=listed))
    if not isinstance(config, RunConfig):
        return _sequential(config, root)
    given = config.data
    path = absolute(given.path, root) if given.family == "jsonl" else _if_there(given.path, root)
    also = {name: _if_there(path, root) for name, path in given.also.items()}
    data = dataclasses.replace(given, path=path, also=also)
    clients = [dataclasses.replace(group, path=absolute(group.path, root)) for group in config.clients]
    model = config.model
    if not model.path.startswith("package:") and (root / model.path).is_dir():
        model = dataclasses.replace(model, path=absolute(model.path, root))
    return dataclasses.replace(config, data=data, clients=clients, model=model)


def _sequential(config: SequentialRunConfig, root: Path) -> SequentialRunConfig:
    """Do the same for a FedSGT run, whose data path can be a hub id as well."""
    data, model = config.data, config.model
    data = dataclasses.replace(data, path=_if_there(data.path, root))
    if (root / Path(model.path).expanduser()).is_dir():
        model = dataclasses.replace(model, path=absolute(model.path, root))
    return dataclasses.replace(config, data=data, model=model)


def _if_there(path: str, root: Path) -> str:
    return absolute(path, root) if path and (root / Path(path).expanduser()).exists() else path
