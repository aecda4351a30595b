"""Imports go down, and never in a circle. Read from the source, so an import inside a function counts too."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import mcpmix

PACKAGE = Path(mcpmix.__file__).parent

# From top to bottom, as in docs/architecture.md: each part may import those below it.
ORDER = (
    "__main__",
    "cli",
    "studio",
    "bench",
    "replay",
    "run",
    "preflight",
    "timing",
    "estimates",
    "init",
    "pack",
    "report",
    "segmenter",
    "generator",
    "mixing",
    "networks",
    "metrics",
    "data",
    "phantom",
    "config_file",
    "config",
    "config_data",
    "config_training",
    "core",
)
FACADE = "mcpmix/__init__.py"  # offers names of any part but the command line
# Who may import a library: a part, or one module.
FOREIGN = {
    **dict.fromkeys(("diffusers", "transformers", "segmentation_models_pytorch", "timm"), "mcpmix.networks"),
    **dict.fromkeys(("nnunetv2", "batchgeneratorsv2"), "mcpmix.segmenter.nnunet"),
}


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
    """`mcpmix.segmenter.train` is of the part `segmenter`; `mcpmix` and `mcpmix.mix` are the façade."""
    part = name.split(".")[1] if "." in name else ""
    return part if part in ORDER or f"mcpmix.{part}" in MODULES else FACADE


def violations(source, module, *, is_package=False):
    """What is wrong with the imports of a module, one text each."""
    part = part_of(module)
    if part not in (*ORDER, FACADE):
        return [f"{module}: the part {part!r} has no layer; give it one in this test"]
    problems = []
    for name in imports_of(source, module, is_package=is_package):
        root = name.split(".")[0]
        if root in FOREIGN and not f"{module}.".startswith(f"{FOREIGN[root]}."):
            problems.append(f"{module} imports {name}: only {FOREIGN[root]} may import {root}")
        if root != "mcpmix" or name == "mcpmix.__version__":
            continue
        other = part_of(name)
        if part == FACADE:
            allowed = other not in ("__main__", "cli", "studio")
        else:
            allowed = other == part or (other != FACADE and ORDER.index(other) > ORDER.index(part))
        if not allowed:
            problems.append(f"{module} imports {name}: {part} may import what is below it only")
    return problems


def import_graph(sources):
    """For each module, the modules that it imports; `from a import b` means b if it is a module, else a."""
    graph = {}
    for module, (source, is_package) in sources.items():
        wanted = set()
        for name in imports_of(source, module, is_package=is_package):
            while name and name not in sources:
                name = name.rpartition(".")[0]
            wanted.add(name)
        graph[module] = wanted - {module, "mcpmix", ""}
    return graph


def circle_in(graph):
    """The modules of a circle of imports; empty if there is none."""
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return error.args[1]
    return []


def test_the_search_finds_the_package():
    assert {"mcpmix", "mcpmix.config", "mcpmix.data.index", "mcpmix.core.training"} <= set(MODULES)
    assert {part_of(name) for name in MODULES} >= {"core", "data", "mixing", "networks", FACADE}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_go_down_only(module):
    path = MODULES[module]
    problems = violations(path.read_text(encoding="utf-8"), module, is_package=path.name == "__init__.py")

    assert not problems, "\n" + "\n".join(problems)


def package_sources():
    """Source of every module, and whether it is a package; without the façade, which only re-exports."""
    return {
        name: (path.read_text(encoding="utf-8"), path.name == "__init__.py")
        for name, path in MODULES.items()
        if name != "mcpmix"
    }


def test_no_module_imports_itself_by_a_detour():
    assert circle_in(import_graph(package_sources())) == []


def test_a_circle_through_a_function_is_found():
    sources = {
        "mcpmix.a": ("import mcpmix.b", False),
        "mcpmix.b": ("def f():\n    from mcpmix.c import name", False),
        "mcpmix.c": ("from mcpmix import a", False),
    }

    assert set(circle_in(import_graph(sources))) == set(sources)
    assert circle_in(import_graph(sources | {"mcpmix.c": ("import json", False)})) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("mcpmix.core.errors", "import mcpmix.data.sample"),
        ("mcpmix.core.errors", "from mcpmix import data"),
        ("mcpmix.core.errors", "from ..data import sample"),
        ("mcpmix.core.errors", "import importlib\nimportlib.import_module('mcpmix.cli')"),
        ("mcpmix.core.errors", "from mcpmix.config import Config"),
        ("mcpmix.metrics.suite", "from mcpmix import mix"),
        ("mcpmix.data.sample", "def f():\n    from mcpmix.networks.features import load"),
        ("mcpmix.core.training", "from diffusers import UNet2DConditionModel"),
        ("mcpmix.segmenter.train", "import transformers.models"),
        ("mcpmix.segmenter.train", "def f():\n    import nnunetv2.paths"),
        ("mcpmix.segmenter.nnunet_trainers.mcpmix_trainers", "import nnunetv2"),
        ("mcpmix.cli.app", "import segmentation_models_pytorch as smp"),
        ("mcpmix.segmenter.train", "from mcpmix.run import run"),
        ("mcpmix.generator.bank", "from mcpmix.segmenter.train import key"),
        ("mcpmix.run", "import mcpmix.cli.app"),
        ("mcpmix.bench.grid", "from mcpmix.studio import page"),
        ("mcpmix", "from mcpmix.cli.app import main"),
    ],
)
def test_a_forbidden_import_is_found(module, source):
    assert violations(source, module)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("mcpmix.core.stage_folder", "from mcpmix.core.errors import StorageError"),
        ("mcpmix.core.stage_folder", "from mcpmix import __version__"),
        ("mcpmix.core.stage_folder", "import json, torch"),
        ("mcpmix.networks.diffusion", "from diffusers import AutoencoderKL\nfrom . import weight_files"),
        ("mcpmix.segmenter.nnunet", "from nnunetv2.paths import nnUNet_raw"),
        ("mcpmix.phantom.surface", "from .scene import Scene\nfrom ..core import seeds"),
        ("mcpmix.segmenter.train", "from mcpmix.data import index\nfrom mcpmix.mixing.rla import RLA"),
        ("mcpmix.cli.app", "from mcpmix.run import run\nfrom mcpmix.cli.screen import Bars"),
        ("mcpmix", "from mcpmix.mixing.mcpmix import mix"),
    ],
)
def test_an_allowed_import_is_not(module, source):
    assert violations(source, module) == []


def test_a_part_without_a_layer_is_found(monkeypatch):
    monkeypatch.setitem(MODULES, "mcpmix.utils", PACKAGE / "utils.py")

    assert violations("", "mcpmix.utils") == [
        "mcpmix.utils: the part 'utils' has no layer; give it one in this test"
    ]
