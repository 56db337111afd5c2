"""Finding presets, applying overrides, and saying everything that is wrong with them at once."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedforget.checks.run import contradictions
from fedforget.checks.sequential import sequential_contradictions
from fedforget.config import RunConfig
from fedforget.errors import ConfigError, nearest
from fedforget.schemas import Cleaner
from fedforget.sequential.config import SequentialRunConfig

AnyConfig = RunConfig | SequentialRunConfig
_Config = TypeVar("_Config", RunConfig, SequentialRunConfig)

# Top-level ``kind`` of a preset -> what it may say, and what may be wrong with it.
_SCHEMAS: dict[str, tuple[type[Any], Callable[[Any], list[str]]]] = {
    "firm": (RunConfig, contradictions),
    "fedsgt": (SequentialRunConfig, sequential_contradictions),
}


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
                return candidate.resolve()
        if path.stem in known and path.parent.name in {"", "configs"}:
            return known[path.stem]
    raise ConfigError(
        [f"no preset or YAML file {name!r}{nearest(name, known)}; presets: {', '.join(sorted(known))}"]
    )


def load(preset: str, overrides: str | list[str] = "") -> RunConfig:
    """Load a preset of kind ``firm`` with overrides.

    Parameters
    ----------
    preset : str
        A preset's name, or a path to a YAML file.
    overrides : str or list of str
        ``key=value`` pairs in dotted form, e.g. ``"merge.gamma=1.2 seeds.training=1"``. A string
        is split at white space, or read as a JSON list if it starts with ``[``; see
        :func:`join_overrides` for values that hold spaces.

    Returns
    -------
    RunConfig

    Raises
    ------
    ConfigError
        Every unknown key (with the nearest right one), wrong type and contradiction, at once; or
        a preset of another kind.
    """
    return _of_kind(load_any(preset, overrides), RunConfig, preset)


def load_sequential(preset: str, overrides: str | list[str] = "") -> SequentialRunConfig:
    """Load a preset of kind ``fedsgt``; otherwise as :func:`load`."""
    return _of_kind(load_any(preset, overrides), SequentialRunConfig, preset)


def load_any(preset: str, overrides: str | list[str] = "") -> AnyConfig:
    """Load a preset by the schema that its top-level ``kind`` names; otherwise as :func:`load`."""
    path = find(preset)
    return parse_any(read_mapping(path), split_overrides(overrides), source=str(path))


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping.

    Raises
    ------
    ConfigError
        The file cannot be read, or is not YAML, or holds something else.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"cannot be read ({' '.join(str(error).split())})"], str(path)) from error
    return _read_yaml(text, str(path))


def join_overrides(pairs: Sequence[str]) -> str:
    """Write overrides as one string that :func:`split_overrides` reads back.

    Plain words stay as they are. Where one holds white space or a quote it is a JSON list without
    apostrophes, so that Flower's ``--run-config`` can hold it between two.
    """
    if any(character.isspace() or character in "'\"" for pair in pairs for character in pair):
        return json.dumps(list(pairs)).replace("'", "\\u0027")
    return " ".join(pairs)


def split_overrides(overrides: str | Sequence[str]) -> list[str]:
    """Return the ``key=value`` pairs of a string or a list of them.

    Raises
    ------
    ConfigError
        The string starts like a JSON list and is none of texts.
    """
    if not isinstance(overrides, str):
        return list(overrides)
    if not overrides.lstrip().startswith("["):
        return overrides.split()
    try:
        pairs = json.loads(overrides)
    except ValueError:
        pairs = None
    if not isinstance(pairs, list) or not all(isinstance(pair, str) for pair in pairs):
        raise ConfigError([f"overrides {overrides!r} are neither key=value pairs nor a JSON list of them"])
    return pairs


def _of_kind(config: AnyConfig, schema: type[_Config], source: str) -> _Config:
    if not isinstance(config, schema):
        wanted = next(kind for kind, (known, _) in _SCHEMAS.items() if known is schema)
        raise ConfigError(
            [f"kind: this is a preset of kind {config.kind}; this command takes one of kind {wanted}"], source
        )
    return config


def parse(raw: dict[str, Any], overrides: list[str], source: str = "") -> RunConfig:
    """Merge a raw mapping of kind ``firm`` and overrides over the defaults; see :func:`load`."""
    return _of_kind(parse_any(raw, overrides, source), RunConfig, source)


def parse_any(raw: dict[str, Any], overrides: list[str], source: str = "") -> AnyConfig:
    """Merge a raw mapping and overrides over the defaults of its kind; see :func:`load_any`."""
    kind = raw.get("kind", "firm")
    if not isinstance(kind, str) or kind not in _SCHEMAS:
        raise ConfigError(
            [f"kind: {kind!r} is not one of {', '.join(_SCHEMAS)}{nearest(str(kind), _SCHEMAS)}"], source
        )
    schema, check = _SCHEMAS[kind]
    problems: list[str] = []
    merged: DictConfig = OmegaConf.structured(schema)
    raw_overrides = _parse_overrides(overrides, problems)
    cleaner = Cleaner(schema, problems)
    layers = [cleaner.clean(layer) for layer in (raw, *raw_overrides)]
    for layer in layers:
        merged = _merge(merged, layer, problems)
    try:
        config = cast(AnyConfig, OmegaConf.to_object(merged))
    except OmegaConfBaseException as error:
        raise ConfigError([*problems, " ".join(str(error).split())], source) from error
    if config.kind != kind:
        raise ConfigError([*problems, "kind: cannot be overridden; choose a preset of that kind"], source)
    problems += [one for one in check(config) if not cleaner.concerns_dropped(one)]
    if problems:
        raise ConfigError(problems, source)
    return config


def to_yaml(config: AnyConfig) -> str:
    """Return the whole configuration as YAML that :func:`from_yaml_any` reads back."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def from_yaml(text: str, source: str = "") -> RunConfig:
    """Read back what :func:`to_yaml` wrote for kind ``firm``, with the same checks as a preset."""
    return _of_kind(from_yaml_any(text, source), RunConfig, source)


def from_yaml_sequential(text: str, source: str = "") -> SequentialRunConfig:
    """Read back what :func:`to_yaml` wrote for kind ``fedsgt``, with the same checks as a preset."""
    return _of_kind(from_yaml_any(text, source), SequentialRunConfig, source)


def from_yaml_any(text: str, source: str = "") -> AnyConfig:
    """Read back what :func:`to_yaml` wrote, of either kind."""
    try:
        # A copy: configurations can be changed, and the next reader is not to see that.
        return copy.deepcopy(_from_text(text))
    except ConfigError as error:
        raise ConfigError(error.problems, source) from error


@functools.lru_cache(maxsize=32)
def _from_text(text: str) -> AnyConfig:
    """Parse a text once: a client reads the same one with every message, and parsing takes 0.1 s."""
    return parse_any(_read_yaml(text, ""), [])


def _read_yaml(text: str, source: str) -> dict[str, Any]:
    """Read YAML as OmegaConf does: 1e-3 is a number, and a key given twice is an error."""
    raw: Any
    try:
        raw = OmegaConf.to_container(OmegaConf.create(text))
    except (OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
        raise ConfigError([f"cannot be read as YAML ({' '.join(str(error).split())})"], source) from error
    except AssertionError:  # how OmegaConf says that the text is a bare number
        raw = None
    if not isinstance(raw, dict):
        raise ConfigError(["the top level must be a mapping of keys to values"], source)
    return cast(dict[str, Any], raw)


def _parse_overrides(pairs: list[str], problems: list[str]) -> list[dict[str, Any]]:
    layers = []
    for pair in pairs:
        if not pair.partition("=")[0].strip(" .") or "=" not in pair:
            problems.append(f"override {pair!r} is not of the form key=value")
            continue
        try:
            layer = OmegaConf.to_container(OmegaConf.from_dotlist([pair]))
        except (OmegaConfBaseException, ValueError, yaml.YAMLError) as error:
            problems.append(f"override {pair!r} cannot be read ({' '.join(str(error).split())})")
            continue
        layers.append(cast(dict[str, Any], layer))
    return layers


def _merge(base: DictConfig, layer: dict[str, Any], problems: list[str]) -> DictConfig:
    """Merge a cleaned layer; an empty mapping takes away what is there, which a merge would keep."""
    try:
        merged = cast(DictConfig, OmegaConf.merge(base, layer))
    except (OmegaConfBaseException, TypeError, ValueError):
        # Each copy of the configuration takes long: go leaf by leaf only to tell what is wrong where.
        merged = _merge_leaves(base, layer, problems)
    for key in _emptied(layer):
        if not _is_structured(OmegaConf.select(merged, key)):
            OmegaConf.update(merged, key, {}, merge=False)
    return merged


def _emptied(layer: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in layer.items():
        if value == {}:
            yield f"{prefix}{key}"
        elif isinstance(value, dict):
            yield from _emptied(value, f"{prefix}{key}.")


def _merge_leaves(base: DictConfig, layer: Any, problems: list[str], prefix: str = "") -> DictConfig:
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
