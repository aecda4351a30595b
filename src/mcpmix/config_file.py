"""From files, presets and overrides to a checked configuration."""

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from mcpmix.config import Config
from mcpmix.core.errors import ConfigError, bullet_list, did_you_mean

Tree = dict[str, Any]

_PRESETS = resources.files("mcpmix") / "presets"
_PATHS = (
    "output",
    "data.root",
    "data.images",
    "data.masks",
    "data.groups",
    "data.split.file",
    "data.unlabelled",
)


def preset_names() -> list[str]:
    """Names that `preset:` accepts."""
    return sorted(Path(file.name).stem for file in _PRESETS.iterdir() if file.name.endswith(".yaml"))


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file; relative paths in it are relative to the file. A ConfigError has every problem found.

    Args:
        path: the file. Its key `preset` names the values it starts from; of a list, later ones win.
        overrides: `key.key=value` texts, as on the command line; relative to the working directory.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"No configuration at {path}. `mcpmix init` writes one.") from error
    except IsADirectoryError as error:
        raise ConfigError(f"{path} is a folder. Name the file in it, e.g. {path / 'mcpmix.yaml'}.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Cannot read the configuration {path}: {error}") from error
    tree = _parse_yaml(text, str(path))
    for setting in _PATHS:
        *parents, key = setting.split(".")
        node: Any = tree
        for parent in parents:
            node = node.get(parent) if isinstance(node, dict) else None
        if not isinstance(node, dict):
            continue
        if isinstance(node.get(key), str):
            node[key] = str(path.parent / Path(node[key]).expanduser())
        elif isinstance(node.get(key), list):
            node[key] = [str(path.parent / Path(str(item)).expanduser()) for item in node[key]]
    return resolve_config(tree, overrides, source=str(path))


def resolve_config(
    tree: Mapping[str, Any], overrides: Sequence[str] = (), *, source: str = "configuration"
) -> Config:
    """Merge preset, given values and overrides (later wins) and validate the result."""
    given, problems = dict(tree), []
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            problems.append(f"override {override!r}: expected key=value, e.g. train.epochs=50")
            continue
        try:
            value = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError):
            problems.append(f"override {override!r}: the value is not valid YAML")
            continue
        for name in reversed(key.split(".")):
            value = {name: value}
        given = _merge(given, value)
    preset = given.pop("preset", None)
    merged = _merge(_load_presets(preset), given) if preset is not None else given
    try:
        config = Config.model_validate(merged)
    except ValidationError as error:
        problems += [_describe(detail) for detail in error.errors()]
    if problems:
        raise ConfigError(bullet_list(f"{source}: {len(problems)} problem(s)", problems))
    return config


def to_yaml(config: Config) -> str:
    """The whole configuration as YAML, in the order of the schema."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _load_presets(names: object) -> Tree:
    """A preset with the one it starts from; of a list, each later one without, over those before it."""
    first, *others = names if isinstance(names, list) and names else [names]
    merged = _read_preset(first)
    if (parent := merged.pop("preset", None)) is not None:
        merged = _merge(_load_presets(parent), merged)
    for name in others:
        own = _read_preset(name)
        own.pop("preset", None)
        merged = _merge(merged, own)
    return merged


def _read_preset(name: object) -> Tree:
    if name not in preset_names():
        raise ConfigError(f"unknown preset {name}: {did_you_mean(str(name), preset_names())}")
    return _parse_yaml((_PRESETS / f"{name}.yaml").read_text(encoding="utf-8"), f"preset {name}")


def _parse_yaml(text: str, source: str) -> Tree:
    try:
        tree = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: 2024-13-45 looks like a date
        raise ConfigError(f"{source} is not valid YAML: {error}") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{source}: expected `key: value` lines, got a {type(tree).__name__}.")
    return tree


def _merge(base: Tree, top: Mapping[str, Any]) -> Tree:
    """`top` over `base`; sections are merged, everything else is replaced."""
    merged = dict(base)
    for key, value in top.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return merged


def _describe(detail: ErrorDetails) -> str:
    """One line: where, what was expected, what was found, and for a typo the nearest key."""
    where = ".".join(map(str, detail["loc"]))
    if detail["type"] == "extra_forbidden":
        *parents, key = map(str, detail["loc"])
        section: type[BaseModel] = Config
        for parent in parents:
            annotation = section.model_fields[parent].annotation
            assert isinstance(annotation, type) and issubclass(annotation, BaseModel)  # noqa: PT018
            section = annotation
        return f"unknown key {where}: {did_you_mean(key, section.model_fields)}"
    if detail["type"] == "missing":
        return f"{where}: missing"
    message = detail["msg"].removeprefix("Value error, ")
    if isinstance(detail["input"], dict):
        return f"{where}: {message}" if where else message
    return f"{where}: {message}, got {detail['input']!r}"
