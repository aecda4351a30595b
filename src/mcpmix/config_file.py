"""From files, presets and overrides to a checked configuration."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from mcpmix.config import PSEUDO, Config
from mcpmix.core.errors import ConfigError, StorageError, bullet_list, did_you_mean
from mcpmix.core.files import expanded, make_folder, read_text, storage_errors, write_text
from mcpmix.core.progress import Progress

Tree = dict[str, Any]
S = TypeVar("S", bound=BaseModel)

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
_SOURCES = (  # of weights: a path, or a name that is no path
    "depth.model",
    "generator.base",
    "adapt.autoencoder",
    "finetune.start",
    "synthesis.admission.judge.weights",
    "few_steps.lora",
    "segmenter.weights",
    "rla.features",
    "editor.model",
)
_KEPT = "config.yaml"  # in the folder of a run: its settings, resolved
_LONGEST_SHOWN = 200
_BRACKETS = 100  # open at a time, those in texts included
_DEEPEST, _LARGEST = 30, 100_000  # levels and values of a configuration: far more than any has
_NAMES = ("embedded", "pseudo", "resnet50")  # sources that are no path, even if there is one of that name


def preset_names() -> list[str]:
    """Names that `preset:` accepts."""
    return sorted(Path(file.name).stem for file in _PRESETS.iterdir() if file.name.endswith(".yaml"))


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file; relative paths in it are relative to the file. A ConfigError has every problem found.

    The run is the same wherever it is called from: only overrides are relative to the working directory.

    Args:
        path: the file. Its key `preset` names the values it starts from; of a list, later ones win.
        overrides: `key.key=value` texts, as on the command line; relative to the working directory.
    """
    tree = read_yaml(path)
    tree.setdefault("output", str(Config.model_fields["output"].default))
    place_paths(tree, path.parent)
    return resolve_config(tree, overrides, source=str(path))


def read_yaml(path: Path) -> Tree:
    """The content of a YAML file; a ConfigError says why there is none."""
    try:
        text = read_text(path)
    except FileNotFoundError as error:
        raise ConfigError(f"No configuration at {path}. `mcpmix init` writes one.") from error
    except IsADirectoryError as error:
        raise ConfigError(f"{path} is a folder. Name the file in it, e.g. {path / 'mcpmix.yaml'}.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Cannot read the configuration {path}: {error}") from error
    return parse_yaml(text, str(path))


def place_paths(tree: Tree, folder: Path) -> None:
    """Make relative paths in a tree of settings, which is changed, relative to a folder."""
    home = folder.resolve()

    def anchored(name: str) -> str:
        place, path = home, expanded(name)
        while path.parts[:1] == ("..",):  # messages show the paths: `study/../frames` is hard to read
            place, path = place.parent, Path(*path.parts[1:])
        return str(place / path)

    def source(name: str) -> str:
        bare = name.partition("@")[0]
        return anchored(name) if bare not in _NAMES and os.path.exists(home / bare) else name  # noqa: PTH110

    _change(tree, _PATHS, anchored)
    _change(tree, _SOURCES, source)


def without_places(config: Config) -> Config:
    """The same settings with each path reduced to its last name: nothing of the machine that they ran on."""
    tree = config.model_dump(mode="json")
    _change(tree, (*_PATHS, *_SOURCES), lambda name: Path(name).name if Path(name).is_absolute() else name)
    return Config.model_validate({**tree, "output": Path(tree["output"]).name})


def weight_sources(config: Config) -> dict[str, str]:
    """The weights that a configuration names, by setting: `embedded`, a path, or a name of published ones."""
    found: dict[str, str] = {}
    for setting in _SOURCES:
        value: Any = config
        for name in setting.split("."):
            value = getattr(value, name)
        if value is not None and value != PSEUDO:
            found[setting] = value
    return found


def _change(tree: Tree, settings: Sequence[str], change: Callable[[str], str]) -> None:
    """Change the texts at some settings, where they are given; of a list, each one."""
    for setting in settings:
        *parents, key = setting.split(".")
        node: Any = tree
        for parent in parents:
            node = node.get(parent) if isinstance(node, dict) else None
        if isinstance(node, dict) and isinstance(node.get(key), str):
            node[key] = change(node[key])
        elif isinstance(node, dict) and isinstance(node.get(key), list):
            node[key] = [change(str(item)) for item in node[key]]


def resolve_config(
    tree: Mapping[str, Any], overrides: Sequence[str] = (), *, source: str = "configuration"
) -> Config:
    """Merge preset, given values and overrides (later wins) and validate the result."""
    changed, problems = parse_overrides(overrides)
    given = merge(tree, changed)
    preset = given.pop("preset", None)
    merged = merge(_load_presets(preset), given) if preset is not None else given
    return validated(Config, merged, source, problems)


def parse_overrides(overrides: Sequence[str]) -> tuple[Tree, list[str]]:
    """The tree that `key.key=value` texts stand for, later ones over earlier ones; and what is wrong."""
    tree: Tree = {}
    problems = []
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            problems.append(f"override {override!r}: expected key=value, e.g. train.epochs=50")
            continue
        try:
            value = _load_yaml(text)
        except (yaml.YAMLError, ValueError):
            problems.append(f"override {override[:80]!r}: the value is not valid YAML")
            continue
        if key.count(".") > _DEEPEST:
            problems.append(f"override {override[:80]!r}: no setting lies that deep")
            continue
        for name in reversed(key.split(".")):
            value = {name: value}
        tree = merge(tree, value)
    return tree, problems


def validated(schema: type[S], tree: Tree, source: str, problems: Sequence[str] = ()) -> S:
    """A tree as an object of a schema; a ConfigError has all problems, those that are given first."""
    found = list(problems)
    try:
        made = schema.model_validate(tree)
    except ValidationError as error:
        found += [_describe(detail, schema) for detail in error.errors()]
    if found:
        raise ConfigError(bullet_list(f"{source}: {len(found)} problem(s)", found))
    return made


def to_yaml(config: Config) -> str:
    """The whole configuration as YAML, in the order of the schema."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def keep_settings(config: Config, progress: Progress) -> None:
    """Write the resolved configuration into the run's folder; storage that only lets read is no obstacle.

    A finished run can be shown from there, and a stage that has to be made says itself that it cannot.
    """
    if are_kept(config):
        return
    path = config.folder / _KEPT
    try:
        with storage_errors(config.folder):
            make_folder(config.folder)
            write_text(path, to_yaml(config))
    except StorageError as error:
        if not path.is_file():
            raise
        progress.say(f"config.yaml stays as it is: {error}")


def are_kept(config: Config) -> bool:
    """Whether the run's folder holds exactly this configuration."""
    path = config.folder / _KEPT
    return path.is_file() and path.read_bytes() == to_yaml(config).encode()


def _load_presets(names: object) -> Tree:
    """A preset with the one it starts from; of a list, each later one without, over those before it."""
    first, *others = names if isinstance(names, list) and names else [names]
    merged = _read_preset(first)
    if (parent := merged.pop("preset", None)) is not None:
        merged = merge(_load_presets(parent), merged)
    for name in others:
        own = _read_preset(name)
        own.pop("preset", None)
        merged = merge(merged, own)
    return merged


def _read_preset(name: object) -> Tree:
    if name not in preset_names():
        text = name if isinstance(name, str) else _short(name)
        raise ConfigError(f"unknown preset {text[:80]}: {did_you_mean(text[:80], preset_names())}")
    return parse_yaml((_PRESETS / f"{name}.yaml").read_text(encoding="utf-8"), f"preset {name}")


def parse_yaml(text: str, source: str) -> Tree:
    """The `key: value` lines of a text; empty for an empty one."""
    try:
        tree = _load_yaml(text)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: 2024-13-45 looks like a date
        raise ConfigError(f"{source} is not valid YAML: {error}") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{source}: expected `key: value` lines, got a {type(tree).__name__}.")
    return tree


class _Loader(yaml.SafeLoader):
    """Refuses a key that is given twice, of which YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [child.value for child, _ in node.value if isinstance(child, yaml.ScalarNode)]
        if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1 and name != "<<"]:
            line = node.start_mark.line + 1
            raise ValueError(f"{', '.join(twice)} given twice in the section from line {line}: keep one")
        return super().construct_mapping(node, deep)


def _load_yaml(text: str) -> Any:  # noqa: ANN401
    """The value of a YAML text; ValueError if it is nested too deeply or aliases make it too large."""
    depth = deepest = 0
    for mark in re.findall(r"[\[\]{}]", text):  # first: the parser takes seconds for a thousand levels
        depth = max(0, depth + (1 if mark in "[{" else -1))
        deepest = max(deepest, depth)
    if deepest > _BRACKETS:
        raise ValueError("it is nested too deeply")
    try:
        value = yaml.load(text, _Loader)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    sizes: dict[int, int] = {}  # by identity: what aliases repeat is one object

    def size(node: object, depth: int) -> int:
        if depth > _DEEPEST:
            raise ValueError("it is nested too deeply")
        if not isinstance(node, dict | list):
            return 1
        if id(node) not in sizes:
            inside = [*node, *node.values()] if isinstance(node, dict) else node
            sizes[id(node)] = 1 + sum(size(each, depth + 1) for each in inside)
        return sizes[id(node)]

    if size(value, 0) > _LARGEST:
        raise ValueError("aliases make it too large")
    return value


def merge(base: Mapping[str, Any], top: Mapping[str, Any]) -> Tree:
    """`top` over `base`; sections are merged, everything else is replaced."""
    merged = dict(base)
    for key, value in top.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return merged


def _sections(annotation: object) -> Iterator[type[BaseModel]]:
    """The schemas that a type is made of: itself, or those that it holds."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _sections(part)


def _describe(detail: ErrorDetails, schema: type[BaseModel]) -> str:
    """One line: where, what was expected, what was found, and for a typo the nearest key."""
    where = ".".join(map(str, detail["loc"]))
    if detail["type"] == "extra_forbidden":
        *parents, key = map(str, detail["loc"])
        section: type[BaseModel] = schema
        for parent in parents:
            field = section.model_fields.get(parent)
            if field is not None:  # else a place in a list, or the name of a branch of a union
                section = next(_sections(field.annotation), section)
        return f"unknown key {where}: {did_you_mean(key, section.model_fields)}"
    if detail["type"] == "missing":
        return f"{where}: missing"
    message = detail["msg"].removeprefix("Value error, ")
    if isinstance(detail["input"], dict):
        return f"{where}: {message}" if where else message
    return f"{where}: {message}, got {_short(detail['input'])}"


def _short(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # a number of thousands of digits
        return f"a very large {type(value).__name__}"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
