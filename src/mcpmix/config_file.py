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

_PATH_FIELDS = (
    ("data", "root"),
    ("data", "images"),
    ("data", "masks"),
    ("data", "groups"),
    ("data", "split", "file"),
    ("output",),
)


def preset_names() -> list[str]:
    """Names that `preset:` accepts."""
    folder = resources.files("mcpmix") / "presets"
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file; relative paths in it are relative to the file.

    Args:
        path: the file. Its key `preset` names the values it starts from; of a list, later ones win.
        overrides: `key.key=value` texts, as on the command line; relative to the working directory.

    Raises:
        ConfigError: with every problem found.
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
    for field in _PATH_FIELDS:
        _anchor(tree, field, path.parent)
    return resolve_config(tree, overrides, source=str(path))


def resolve_config(
    tree: Mapping[str, Any], overrides: Sequence[str] = (), *, source: str = "configuration"
) -> Config:
    """Merge preset, given values and overrides (later wins) and validate the result.

    Raises:
        ConfigError: with every problem found.
    """
    values, problems = _parse_overrides(overrides)
    given = _merge(dict(tree), values)
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
    """One preset, or several: each is put over those before it, without the one it starts from itself."""
    first, *others = names if isinstance(names, list) and names else [names]
    merged = _load_preset(first)
    for name in others:
        own = _read_preset(name)
        own.pop("preset", None)
        merged = _merge(merged, own)
    return merged


def _load_preset(name: object) -> Tree:
    tree = _read_preset(name)
    parent = tree.pop("preset", None)  # a preset may start from another one
    return _merge(_load_preset(parent), tree) if parent is not None else tree


def _read_preset(name: object) -> Tree:
    if name not in preset_names():
        raise ConfigError(f"unknown preset {name}: {did_you_mean(str(name), preset_names())}")
    text = (resources.files("mcpmix") / "presets" / f"{name}.yaml").read_text(encoding="utf-8")
    return _parse_yaml(text, f"preset {name}")


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


def _parse_overrides(overrides: Sequence[str]) -> tuple[Tree, list[str]]:
    values: Tree = {}
    problems = []
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
        leaf: Tree = {}
        node = leaf
        *parents, last = key.split(".")
        for parent in parents:
            node[parent] = node = {}
        node[last] = value
        values = _merge(values, leaf)
    return values, problems


def _merge(base: Tree, top: Mapping[str, Any]) -> Tree:
    """`top` over `base`; sections are merged, everything else is replaced."""
    merged = dict(base)
    for key, value in top.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return merged


def _anchor(tree: Tree, field: tuple[str, ...], folder: Path) -> None:
    """Make a relative path of the file independent of the working directory."""
    node: Any = tree
    for key in field[:-1]:
        node = node.get(key) if isinstance(node, dict) else None
    if isinstance(node, dict) and isinstance(node.get(field[-1]), str):
        node[field[-1]] = str(folder / Path(node[field[-1]]).expanduser())


def _describe(detail: ErrorDetails) -> str:
    """One line: where, what was expected, what came, and the nearest key for a typing mistake."""
    where = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        *parents, key = (str(part) for part in detail["loc"])
        return f"unknown key {where}: {did_you_mean(key, _keys_of(parents))}"
    if detail["type"] == "missing":
        return f"{where}: missing"
    message = detail["msg"].removeprefix("Value error, ")
    if isinstance(detail["input"], dict):
        return f"{where}: {message}" if where else message
    return f"{where}: {message}, got {detail['input']!r}"


def _keys_of(parents: Sequence[str]) -> list[str]:
    model: type[BaseModel] = Config
    for parent in parents:
        annotation = model.model_fields[parent].annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        model = annotation
    return list(model.model_fields)
