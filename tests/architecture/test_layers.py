"""Imports go down only. Read from the source, so an import inside a function counts as well."""

import ast
from pathlib import Path

import pytest

import mcpmix

PACKAGE = Path(mcpmix.__file__).parent

LAYER_1 = {"data", "models", "metrics", "mixing", "training"}
TOOLS = {"synthesis", "inference", "reporting"}  # of layer 2, below the stages that use them
# one module for each kind of command
SERVICES = {"checks", "building", "prediction", "exporting", "starting", "weights", "repairing", "remaking"}
LAYER_3 = {"pipeline", "bench", "analysis", "studio"} | SERVICES
LOWER = {"core", "stages", "pretraining"} | LAYER_1 | TOOLS

# What the modules of each part may import from other parts. The façade is `mcpmix/__init__.py`.
FACADE = "the façade"
ALLOWED = {
    "core": set(),
    **{part: {"core"} for part in LAYER_1},
    **{part: {"core"} | LAYER_1 for part in ("pretraining", *TOOLS)},
    "stages": {"core"} | LAYER_1 | TOOLS,
    "pipeline": LOWER,
    **{part: LOWER | {"pipeline"} for part in ("bench", "analysis", "studio", *SERVICES)},
    "cli": LOWER | LAYER_3,
    "__main__": {"cli"},
    FACADE: LOWER | LAYER_3,
}
FOREIGN = {"diffusers", "transformers", "segmentation_models_pytorch", "timm"}  # for models only


def modules():
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imports_of(source, module, *, is_package=False):
    """Dotted names that a module imports: `from a.b import c` gives `a.b.c`, where c may be a plain name."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from (item.value for item in node.args[:1] if isinstance(item, ast.Constant))


def part_of(name):
    """`mcpmix.stages.train` is of the part `stages`; `mcpmix` and `mcpmix.__version__` are the façade."""
    part = name.split(".")[1] if "." in name else ""
    return part if part in ALLOWED or f"mcpmix.{part}" in MODULES else FACADE


def violations(source, module, *, is_package=False):
    """What is wrong with the imports of a module, one text each."""
    part = part_of(module)
    if part not in ALLOWED:
        return [f"{module}: the part {part!r} has no layer; give it one in this test"]
    problems = []
    for name in imports_of(source, module, is_package=is_package):
        root = name.split(".")[0]
        if root in FOREIGN and part != "models":
            problems.append(f"{module} imports {name}: only models may import {root}")
        if root == "mcpmix" and name != "mcpmix.__version__":
            problems += _inner_violations(part, module, name)
    return problems


def _inner_violations(part, module, name):
    other = part_of(name)
    if other != part and other not in ALLOWED[part]:
        return [
            f"{module} imports {name}: {part} may import {sorted(ALLOWED[part]) or 'nothing of the package'}"
        ]
    if part == other == "stages" and _stage(name) not in ("", _stage(module)):
        return [f"{module} imports {name}: stages meet through folders only"]
    return []


def _stage(name):
    """`train` for `mcpmix.stages.train.loop`; nothing for the package itself and for shared `_helpers`."""
    parts = name.split(".")
    is_stage = len(parts) > 2 and f"mcpmix.stages.{parts[2]}" in MODULES and not parts[2].startswith("_")
    return parts[2] if is_stage else ""


def test_the_search_finds_the_package():
    expected = {"mcpmix", "mcpmix.core.config.schema", "mcpmix.data.phantom", "mcpmix.training.resumable"}
    assert expected <= set(MODULES)
    assert {part_of(name) for name in MODULES} >= {"core", *LAYER_1, FACADE}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_go_down_only(module):
    path = MODULES[module]
    problems = violations(path.read_text(encoding="utf-8"), module, is_package=path.name == "__init__.py")

    assert not problems, "\n" + "\n".join(problems)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("mcpmix.core.errors", "import mcpmix.data.phantom"),
        ("mcpmix.core.errors", "from mcpmix import data"),
        ("mcpmix.core.errors", "from ..data import phantom"),
        ("mcpmix.core.errors", "import importlib\nimportlib.import_module('mcpmix.cli')"),
        ("mcpmix.metrics.region", "from mcpmix.data.phantom import render"),
        ("mcpmix.metrics.region", "from mcpmix import mix"),
        ("mcpmix.mixing.rla", "def f():\n    from mcpmix.models.features import load"),
        ("mcpmix.mixing.rla", "from mcpmix.training import checkpoint"),
        ("mcpmix.data.phantom.scene", "from mcpmix.models import blueprints"),
        ("mcpmix.training.checkpoint", "from diffusers import UNet2DConditionModel"),
        ("mcpmix.stages.train", "import transformers.models"),
        ("mcpmix.pretraining.base", "import timm"),
        ("mcpmix.cli.app", "import segmentation_models_pytorch as smp"),
        ("mcpmix.stages.train", "from mcpmix.pipeline import run"),
        ("mcpmix.stages.train", "from mcpmix.pretraining.corpus import Corpus"),
        ("mcpmix.stages.train", "from mcpmix.stages.depth import run"),
        ("mcpmix.stages.train", "from mcpmix.stages import depth"),
        ("mcpmix.stages.train", "from . import depth"),
        ("mcpmix.synthesis.sources", "from mcpmix.stages.train import run"),
        ("mcpmix.pipeline", "import mcpmix.cli.app"),
        ("mcpmix.bench.grid", "from mcpmix.cli.app import main"),
        ("mcpmix.bench.grid", "from mcpmix.studio import page"),
        ("mcpmix", "from mcpmix.cli.app import main"),
    ],
)
def test_a_forbidden_import_is_found(module, source):
    assert violations(source, module)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("mcpmix.core.artifacts", "from mcpmix.core.errors import StorageError"),
        ("mcpmix.core.artifacts", "from mcpmix import __version__"),
        ("mcpmix.core.artifacts", "import json, torch"),
        ("mcpmix.models.diffusion", "from diffusers import AutoencoderKL\nfrom . import blueprints"),
        ("mcpmix.data.phantom.scene", "from .style import PatientStyle\nfrom ...core import seeding"),
        ("mcpmix.stages.train", "from mcpmix.data import phantom\nfrom mcpmix.mixing.rla import RLA"),
        ("mcpmix.stages.train", "from mcpmix.stages import Inputs\nfrom mcpmix.stages._shared import read"),
        ("mcpmix.bench.grid", "from mcpmix.pipeline import run"),
        ("mcpmix.cli.app", "from mcpmix.pipeline import run\nfrom mcpmix.cli.bars import Bars"),
        ("mcpmix", "from mcpmix.mixing.paired import mix"),
    ],
)
def test_an_allowed_import_is_not(module, source):
    assert violations(source, module) == []


def test_a_part_without_a_layer_is_found(monkeypatch):
    monkeypatch.setitem(MODULES, "mcpmix.utils", PACKAGE / "utils.py")

    assert violations("", "mcpmix.utils") == [
        "mcpmix.utils: the part 'utils' has no layer; give it one in this test"
    ]
