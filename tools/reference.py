"""The reference pages of the site, written from signatures, configuration and command line alone."""

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from types import FunctionType
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

import mcpmix
from mcpmix.cli.app import app
from mcpmix.config import Config
from mcpmix.generator.pair_export import Pair, StoredPairs
from mcpmix.mixing.rla import RLALoss
from mcpmix.run import Run, run
from mcpmix.segmenter.predict import Predictor

# The public names, each with the classes of what it returns.
_PUBLIC = {
    "mcpmix.mix": (mcpmix.mix,),
    "mcpmix.RLA": (mcpmix.RLA, RLALoss),
    "mcpmix.mmd": (mcpmix.mmd,),
    "mcpmix.metrics.score": (mcpmix.metrics.score,),
    "mcpmix.load_segmenter": (mcpmix.load_segmenter, Predictor),
    "mcpmix.open_pairs": (mcpmix.open_pairs, StoredPairs, Pair),
    "mcpmix.load_config": (mcpmix.load_config,),
    "mcpmix.run.run": (run, Run),
}


def reference() -> dict[str, str]:
    """The pages by file name, as Markdown."""
    pages = {
        "python.md": ("Python", _python()),
        "configuration.md": ("Configuration", _configuration()),
        "command-line.md": ("Command line", _command_line()),
    }
    made = {name: "\n\n".join([f"# {title}", *parts]) + "\n" for name, (title, parts) in pages.items()}
    return {name: re.sub(r"`?docs/([\w-]+)\.md`?", r"[\1](../\1.md)", text) for name, text in made.items()}


def _python() -> Iterator[str]:
    yield "`import mcpmix` loads nothing heavy: each name below is imported when it is first used."
    for name, (thing, *returned) in _PUBLIC.items():
        yield f"## {name}"
        yield from _described(thing)
        for record in returned:
            yield f"### {record.__name__}"
            yield from _described(record)


def _described(thing: Any) -> Iterator[str]:  # noqa: ANN401
    """Signature and docstring of a function; of a class, those of its public methods and properties too."""
    if not inspect.isclass(thing):
        yield f"```python\n{_signature(thing)}\n```"
        yield _as_markdown(thing)
        return
    if is_dataclass(thing) or issubclass(thing, tuple):  # a record: its fields say it all
        fields = inspect.getsource(thing).partition("\n    def ")[0].strip()
        yield f"```python\n{fields}\n```"
        return
    if "__init__" in vars(thing):
        call = re.sub(r"self,\s+", "", _signature(thing.__init__)).removesuffix(" -> None:")
        yield f"```python\n{call.replace('def __init__', thing.__name__)}\n```"
    yield _as_markdown(thing)
    for name, member in vars(thing).items():
        if name.startswith("_") or not isinstance(member, property | FunctionType):
            continue
        method, above = (member.fget, "@property\n") if isinstance(member, property) else (member, "")
        yield f"#### {thing.__name__}.{name}"
        yield f"```python\n{above}{_signature(method)}\n```"
        yield _as_markdown(method)


def _signature(function: Any) -> str:  # noqa: ANN401
    """The lines from `def` to the body, as they were written."""
    source = textwrap.dedent(inspect.getsource(function))
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.FunctionDef)
    return "\n".join(source.splitlines()[node.lineno - 1 : node.body[0].lineno - 1])


def _as_markdown(thing: Any) -> str:  # noqa: ANN401
    """A docstring in Google's style; its sections become lists."""
    parts = re.split(r"\n(?=(?:Args|Returns|Raises|Yields):\n)", inspect.getdoc(thing) or "")
    for number, part in enumerate(parts[1:], start=1):
        title, _, body = part.partition(":\n")
        items = re.split(r"\n(?=\w)", textwrap.dedent(body).strip())
        if title in ("Args", "Raises"):
            items = [re.sub(r"^(\w+): ", r"`\1`: ", item) for item in items]
            body = "\n".join(f"- {item}" for item in items)
        parts[number] = f"**{title}**\n\n{textwrap.dedent(body).strip()}\n"
    return "\n".join(parts).strip()


def _configuration() -> Iterator[str]:
    yield (
        "Every setting with its default, which a preset or a file may change. `mcpmix run CONFIG "
        "train.epochs=50` sets one for a call; an unknown key is an error."
    )
    schema = Config.model_json_schema()
    yield from _section("", schema, schema["$defs"])


def _section(path: str, section: dict[str, Any], schemas: dict[str, Any]) -> Iterator[str]:
    inner, rows = {}, ["| setting | default | allowed | |", "|---|---|---|---|"]
    for name, field in section["properties"].items():
        place = f"{path}.{name}".lstrip(".")
        if "$ref" in field:
            inner[place] = schemas[field["$ref"].rpartition("/")[2]]
            continue
        default = f"`{json.dumps(field['default'], ensure_ascii=False)}`" if "default" in field else ""
        text = " ".join(field.get("description", "").split())
        cells = (f"`{place}`", default, _allowed(field), text)
        rows.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    yield f"{'#' * min(2 + path.count('.'), 4)} {path or 'The run'}"
    yield section["description"]
    yield "\n".join(rows)
    for place, schema in inner.items():
        yield from _section(place, schema, schemas)


def _allowed(field: dict[str, Any]) -> str:
    """The values that a field of a JSON schema takes, in words."""
    if "anyOf" in field:
        return " or ".join(_allowed(choice) for choice in field["anyOf"])
    if "enum" in field or "const" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    if field.get("type") == "array":
        return f"list of: {_allowed(field['items'])}"
    words = {"string": "text", "null": "none", "boolean": "true, false", "object": "keys and values"}
    words |= {"integer": "whole number", "number": "number"}
    limits = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    ranges = [f"{sign} {field[key]}" for key, sign in limits.items() if key in field and field[key] < 2**62]
    kind = "path" if field.get("format") == "path" else words[field["type"]]
    return " ".join([kind, " and ".join(ranges)]).strip()


def _command_line() -> Iterator[str]:
    yield "`mcpmix COMMAND --help` prints the same. Exit codes: [integrity](../integrity.md#exit-codes)."
    yield from _command(typer.main.get_command(app), "mcpmix")


def _command(command: Any, name: str) -> Iterator[str]:  # noqa: ANN401
    assert isinstance(command, TyperCommand | TyperGroup)
    context = command.context_class(command, info_name=name)
    yield f"## {name}"
    yield f"```text\n{command.get_usage(context).removeprefix('Usage: ')}\n```"
    yield (command.help or "").strip()
    records = [parameter.get_help_record(context) for parameter in command.params]
    rows = [f"| `{left}` | {right} |".replace("\n", " ") for left, right in filter(None, records)]
    if rows:
        yield "\n".join(["| argument or option | |", "|---|---|", *rows])
    for inner, child in getattr(command, "commands", {}).items():
        yield from _command(child, f"{name} {inner}")
