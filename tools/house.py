"""Counts what a newcomer has to walk through: `python tools/house.py [--way]`.

Counted from the source: files and lines, private functions with a single use, configuration leaves, modules
without a test of their own, circles of imports. With `--way` a small run is traced as well: the files and
functions of the package that work while a folder of images becomes scores (one arm with RLA, one seed).
"""

import argparse
import ast
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "mcpmix"
SMALL = (
    "data.size=64",
    "data.split.test=0.3",
    "data.split.validation=0.2",
    "finetune.steps=2",
    "finetune.warmup_steps=1",
    "synthesis.replicas=1",
    "synthesis.steps=2",
    "train.epochs=2",
    "train.validate_every=1",
    "train.seeds=[0]",
    "train.arms=[mcpmix-rla]",
    "runtime.jobs=1",
    "evaluation.seen=mark",  # the frames are not grouped here, and may look alike
)


def sources(below: Path) -> dict[Path, ast.Module]:
    """The parsed Python files below a folder."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(below.rglob("*.py"))}


def used_once(trees: dict[Path, ast.Module]) -> dict[Path, list[str]]:
    """Private functions and methods whose name stands in exactly one other place of their file."""
    found = {}
    for path, tree in trees.items():
        uses = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
        uses.update(node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute))
        names = [
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef)
            and node.name.startswith("_")
            and not node.name.startswith("__")
            and not node.decorator_list  # validators, callbacks and properties are called by others
            and uses[node.name] == 1
        ]
        if names:
            found[path] = names
    return found


def called(trees: dict[Path, ast.Module], once: dict[Path, list[str]]) -> int:
    """How many of those are called where they stand; the others are entries of a table, or callbacks."""
    total = 0
    for path, names in once.items():
        functions = [node.func for node in ast.walk(trees[path]) if isinstance(node, ast.Call)]
        total += sum(getattr(each, "attr", getattr(each, "id", "")) in names for each in functions)
    return total


def has_logic(tree: ast.Module) -> bool:
    """Whether a module defines functions, or classes with methods."""
    return any(isinstance(node, ast.FunctionDef) for node in ast.walk(tree))


def untested(trees: dict[Path, ast.Module]) -> list[Path]:
    """Modules with logic that have no `test_<name>.py` in the folder of the tests that mirrors theirs."""
    tests = ROOT / "tests" / "unit"
    return [
        path
        for path, tree in trees.items()
        if has_logic(tree)
        and path.name not in ("__init__.py", "__main__.py")
        and not (tests / path.relative_to(PACKAGE).parent / f"test_{path.name}").exists()
    ]


def leaves(section: type) -> int:
    """Settings below a section of the configuration."""
    fields = [info.annotation for info in section.model_fields.values()]
    return sum(leaves(kind) if hasattr(kind, "model_fields") else 1 for kind in fields)


def way(place: Path) -> Counter[str]:
    """How many functions of each file of the package work while own images become scores."""
    from mcpmix.config_file import resolve_config
    from mcpmix.data.phantom_set import write_phantom_set
    from mcpmix.run import run

    write_phantom_set(
        place,
        train_patients=3,
        validation_patients=1,
        test_patients=1,
        frames_per_patient=2,
        test_frames_per_patient=2,
        seed=0,
        size=64,
    )
    folders = {"source": "folder", "images": f"{place}/images", "masks": f"{place}/masks"}
    config = resolve_config({"preset": "demo-fast", "output": str(place), "data": folders}, SMALL)
    seen: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and (name := frame.f_code.co_filename).startswith(str(PACKAGE)):
            seen.add((name, frame.f_code.co_qualname))

    sys.setprofile(note)
    threading.setprofile(note)
    try:
        run(config, until="evaluation")
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    named = {(file, name) for file, name in seen if "<" not in name.rpartition(".")[2]}
    return Counter(Path(file).relative_to(PACKAGE).as_posix() for file, _ in named)


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--way", action="store_true", help="trace a small run too (a minute)")
    parser.add_argument("--list", action="store_true", help="name the functions and modules that are counted")
    arguments = parser.parse_args()
    sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
    from tests.architecture.test_layers import circle_in, import_graph, package_sources

    from mcpmix.config import Config

    trees = sources(PACKAGE)
    once, without = used_once(trees), untested(trees)
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in trees)
    tested = sum(map(has_logic, trees.values()))
    print(f"files of src                              {len(trees)}")
    print(f"lines of src                              {lines}")
    print(f"private functions with one use            {sum(map(len, once.values()))}")
    print(f"  which is a call                         {called(trees, once)}")
    print(f"configuration leaves                      {leaves(Config)}")
    print(f"modules with logic and a test of their own {tested - len(without)} of {tested}")
    print(f"circles of imports                        {len(circle_in(import_graph(package_sources())))}")
    if arguments.list:
        for path, names in once.items():
            print(f"  {path.relative_to(PACKAGE)}: {', '.join(names)}")
        print("  without a test: " + ", ".join(path.relative_to(PACKAGE).as_posix() for path in without))
    if arguments.way:
        with tempfile.TemporaryDirectory() as place:
            files = way(Path(place))
        print(f"files on the way of a run                 {len(files)}")
        print(f"functions on the way of a run             {sum(files.values())}")
        if arguments.list:
            print("  " + ", ".join(f"{name} ({count})" for name, count in sorted(files.items())))


if __name__ == "__main__":
    main()
