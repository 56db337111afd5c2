"""The folder that Flower runs the app from: the checkout, or one made of the installed packages."""

from __future__ import annotations

import shutil
import tomllib
from importlib.metadata import version
from pathlib import Path

from fedforget.errors import RunError
from fedforget.presets import config_directories

PACKAGES = ("fedforget", "strategies", "clients", "simulations")

_PYPROJECT = """\
[project]
name = "fedforget"
version = "{version}"
description = "Federated unlearning, as installed"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "fedforget"

[tool.flwr.app.components]
serverapp = "simulations.server_app:app"
clientapp = "clients.client_app:app"

[tool.flwr.app.config]
config = "firm-tiny"
overrides = ""
out = ""
action = ""
"""


def app_directory(scratch: Path, preset: Path | None = None) -> Path:
    """Return the folder to give ``flwr run``.

    In a checkout that is the checkout. Installed from a wheel, there is no project file beside
    the packages: a copy of them is put together in ``scratch``; and so it is for a ``preset`` of the
    user's, which the copy holds beside the others.

    Raises
    ------
    RunError
        A package is not where the others are.
    """
    root = Path(__file__).resolve().parents[1]
    if preset is None and is_app(root):
        return root
    target = scratch / "fedforget-app"
    target.mkdir()
    for package in PACKAGES:
        source = root / package
        if not (source / "__init__.py").is_file():
            raise RunError(f"{source}: no such package; reinstall fedforget")
        shutil.copytree(source, target / package, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    for folder in reversed(config_directories()):
        shutil.copytree(folder, target / "configs", dirs_exist_ok=True)
    if preset is not None:
        shutil.copy(preset, target / "configs" / f"{preset.stem}.yaml")
    (target / "pyproject.toml").write_text(_PYPROJECT.format(version=version("fedforget")), encoding="utf-8")
    return target


def is_app(root: Path) -> bool:
    """Tell whether a folder is fedforget's own Flower app."""
    path = root / "pyproject.toml"
    if not path.is_file():
        return False
    project = tomllib.loads(path.read_text(encoding="utf-8"))
    components = project.get("tool", {}).get("flwr", {}).get("app", {}).get("components", {})
    return bool(components.get("serverapp") == "simulations.server_app:app")
