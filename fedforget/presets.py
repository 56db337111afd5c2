"""Finding presets, applying overrides, and saying everything that is wrong with them at once."""

from __future__ import annotations

import dataclasses
import sysconfig
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedforget.checks import contradictions
from fedforget.config import RunConfig
from fedforget.errors import ConfigError, nearest


def config_directories() -> list[Path]:
    """Return the folders that presets are looked up in: the checkout's or bundle's, then the installed."""
    here = Path(__file__).resolve().parents[1] / "configs"
    installed = Path(sysconfig.get_path("data")) / "share" / "fedforget" / "configs"
    return [folder for folder in (here, installed) if folder.is_dir()]


def presets() -> dict[str, Path]:
    """Return every preset by name."""
    found: dict[str, Path] = {}
    for folder in reversed(config_directories()):
        found |= {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    return found


def find(name: str) -> Path:
    """Return the file of a preset, given by name or by path.

    Raises
    ------
    ConfigError
        There is no such preset or file; names the nearest one.
    """
    known = presets()
    if name in known:
        return known[name]
    path = Path(name).expanduser()
    if path.suffix in {".yaml", ".yml"}:
        for candidate in (path, Path(__file__).resolve().parents[1] / path):
            if candidate.is_file():
                return candidate
        if path.stem in known and path.parent.name in {"", "configs"}:
            return known[path.stem]
    raise ConfigError(
        [f"no preset or YAML file {name!r}{nearest(name, known)}; presets: {', '.join(sorted(known))}"]
    )


def load(preset: str, overrides: str | list[str] = "") -> RunConfig:
    """Load a preset with overrides.

    Parameters
    ----------
    preset : str
        A preset's name, or a path to a YAML file.
    overrides : str or list of str
        ``key=value`` pairs in dotted form, e.g. ``"merge.gamma=1.2 seeds.training=1"``. A string
        is split at white space; pass a list for values that hold spaces.

    Returns
    -------
    RunConfig

    Raises
    ------
    ConfigError
        Every unknown key (with the nearest right one), wrong type and contradiction, at once.
    """
    path = find(preset)
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError([f"cannot be read as YAML ({' '.join(str(error).split())})"], str(path)) from error
    if raw is not None and not isinstance(raw, dict):
        raise ConfigError(["the top level must be a mapping of keys to values"], str(path))
    pairs = overrides.split() if isinstance(overrides, str) else list(overrides)
    return parse(raw or {}, pairs, source=str(path))


def parse(raw: dict[str, Any], overrides: list[str], source: str = "") -> RunConfig:
    """Merge a raw mapping and overrides over the defaults; see :func:`load`."""
    problems: list[str] = []
    merged: DictConfig = OmegaConf.structured(RunConfig)
    raw_overrides = _parse_overrides(overrides, problems)
    layers = [_OnlyKnown(RunConfig, problems).clean(raw, "")]
    layers += [_OnlyKnown(RunConfig, problems).clean(layer, "") for layer in raw_overrides]
    for layer in layers:
        merged = _merge_leaves(merged, layer, problems)
    if problems:
        raise ConfigError(problems, source)
    config = cast(RunConfig, OmegaConf.to_object(merged))
    problems = contradictions(config)
    if problems:
        raise ConfigError(problems, source)
    return config


def to_yaml(config: RunConfig) -> str:
    """Return the whole configuration as YAML that :func:`from_yaml` reads back."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def from_yaml(text: str, source: str = "") -> RunConfig:
    """Read back what :func:`to_yaml` wrote, with the same checks as a preset."""
    raw = OmegaConf.to_container(OmegaConf.create(text))
    return parse(cast(dict[str, Any], raw), [], source)


def _parse_overrides(pairs: list[str], problems: list[str]) -> list[dict[str, Any]]:
    layers = []
    for pair in pairs:
        if "=" not in pair:
            problems.append(f"override {pair!r} is not of the form key=value")
            continue
        try:
            layer = OmegaConf.to_container(OmegaConf.from_dotlist([pair]))
        except (OmegaConfBaseException, ValueError, yaml.YAMLError) as error:
            problems.append(f"override {pair!r} cannot be read ({' '.join(str(error).split())})")
            continue
        layers.append(cast(dict[str, Any], layer))
    return layers


class _OnlyKnown:
    """Drops unknown keys from a raw mapping, noting each."""

    def __init__(self, schema: type, problems: list[str]) -> None:
        self._schema = schema
        self._problems = problems

    def clean(self, raw: Any, prefix: str, schema: Any = None) -> Any:
        schema = schema or self._schema
        if not isinstance(raw, dict):
            return raw
        hints = _hints(schema)
        kept: dict[str, Any] = {}
        for key, value in raw.items():
            dotted = f"{prefix}{key}"
            if key not in hints:
                self._problems.append(f"unknown key {dotted!r}{_nearest_key(dotted, str(key), prefix, hints)}")
                continue
            inner = hints[key]
            if dataclasses.is_dataclass(inner):
                kept[key] = self.clean(value, f"{dotted}.", inner)
            elif _list_item(inner) is not None and isinstance(value, list):
                item = _list_item(inner)
                kept[key] = [self.clean(one, f"{dotted}[{i}].", item) for i, one in enumerate(value)]
            else:
                kept[key] = value
        return kept


def _nearest_key(dotted: str, key: str, prefix: str, hints: dict[str, Any]) -> str:
    close = nearest(key, hints)
    if close:
        return close.replace("'", f"'{prefix}", 1)
    return nearest(dotted, all_keys(RunConfig))


def all_keys(schema: Any, prefix: str = "") -> list[str]:
    """Return every dotted key of a structured configuration."""
    keys = []
    for name, hint in _hints(schema).items():
        keys.append(prefix + name)
        if dataclasses.is_dataclass(hint):
            keys += all_keys(hint, f"{prefix}{name}.")
    return keys


def _hints(schema: Any) -> dict[str, Any]:
    import typing

    return typing.get_type_hints(schema)


def _list_item(hint: Any) -> Any:
    import typing

    if typing.get_origin(hint) is list and dataclasses.is_dataclass(typing.get_args(hint)[0]):
        return typing.get_args(hint)[0]
    return None


def _merge_leaves(base: DictConfig, layer: Any, problems: list[str], prefix: str = "") -> DictConfig:
    """Merge leaf by leaf, so that each wrong type is a problem of its own."""
    for key, value in layer.items():
        current = base.get(key) if prefix == "" else OmegaConf.select(base, prefix + key)
        if isinstance(value, dict) and isinstance(current, DictConfig) and _is_structured(current):
            base = _merge_leaves(base, value, problems, f"{prefix}{key}.")
            continue
        try:
            nested: Any = value
            for part in reversed(f"{prefix}{key}".split(".")):
                nested = {part: nested}
            base = cast(DictConfig, OmegaConf.merge(base, nested))
        except (OmegaConfBaseException, TypeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            problems.append(f"{prefix}{key}: {reason}")
    return base


def _is_structured(node: DictConfig) -> bool:
    return dataclasses.is_dataclass(OmegaConf.get_type(node))
