"""Every command in the pages exists, with its options and settings; blocks with the mark `run` are run."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from tests.architecture.test_config_fields import leaves
from tools.site import MARKS, ROOT

from mcpmix.bench.grid import Grid
from mcpmix.cli.app import app
from mcpmix.config import Config

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TUTORIAL = ROOT / "docs" / "tutorial.md"
FENCE = re.compile(r"^```([\w-]*) ?(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SETTINGS = {leaf.path for leaf in leaves(Config)} | set(Grid.model_fields) | {"preset"}
# What the run of the tutorial leaves out here.
SHORT = (
    "data.size=64 finetune.steps=2 finetune.warmup_steps=1 synthesis.replicas=1 synthesis.steps=2 "
    "train.epochs=2 train.validate_every=1 runtime.jobs=1"
)
SHELL = f"""set -euo pipefail
mcpmix() {{ if [ "$1" = run ]; then set -- "$@" {SHORT}; fi; {shlex.quote(sys.executable)} -m mcpmix "$@"; }}
python() {{ {shlex.quote(sys.executable)} "$@"; }}
"""


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    mark: str
    text: str

    @property
    def where(self):
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self):
        """The lines that a shell would get; of a transcript, those behind the prompt."""
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.language == "console":
            return [line[2:] for line in lines if line.startswith("$ ")]
        return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def blocks(page):
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        yield Block(page, text[: found.start()].count("\n") + 1, *found.groups())


BLOCKS = [block for page in PAGES for block in blocks(page)]
COMMANDS = [
    pytest.param(command, id=f"{block.where} {command.split('#')[0].strip()}")
    for block in BLOCKS
    if block.language in ("bash", "console")
    for command in block.commands
]
INLINE = sorted(
    {
        (page.name, " ".join(span.split()))
        for page in PAGES
        for span in re.findall(r"`(mcpmix [^`]+)`", FENCE.sub("", page.read_text(encoding="utf-8")))
    }
)


def parsed(words):
    """What the real command line makes of `mcpmix WORDS`, without running it: the command's arguments."""

    def disarm(command):
        command.callback = lambda **arguments: arguments
        for inner in getattr(command, "commands", {}).values():
            disarm(inner)

    command = typer.main.get_command(app)
    disarm(command)
    return command.main(args=words, prog_name="mcpmix", standalone_mode=False)


def problem(command):
    """What is wrong with a line of a shell, or nothing."""
    words = shlex.split(command, comments=True)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    if "mcpmix" in words and words[0] != "cd":
        try:
            overrides = parsed(words[words.index("mcpmix") + 1 :]).get("overrides")
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return unknown_setting(overrides or ())
    if words[0] == "python":
        return missing_script(words[1:])
    if words[0] == "make" and not re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE):
        return f"no target {words[1]}"
    named = {name for listed in re.findall(r"mcpmix\[(.+?)\]", command) for name in listed.split(",")}
    if not named <= set(extras):
        return f"no such extra among {', '.join(extras)}"
    return None


def unknown_setting(overrides):
    unknown = [text for text in overrides if text.partition("=")[0] not in SETTINGS]
    return f"no setting {', '.join(unknown)}" if unknown else None


def missing_script(words):
    if words[0] == "-m":
        return None if importlib.util.find_spec(words[1]) else f"no module {words[1]}"
    script = ROOT / words[0]
    source = script.read_text(encoding="utf-8") if script.exists() else ""
    unknown = [word for word in words[1:] if word.startswith("--") and f'"{word}"' not in source]
    return f"{words[0]} does not exist, or has no {unknown}" if unknown or not source else None


def test_blocks_were_found_and_every_one_of_commands_has_a_mark():
    shells = [block for block in BLOCKS if block.language in ("bash", "console")]
    unmarked = [block.where for block in shells if block.mark not in MARKS and block.page.parent != ROOT]
    looks_like_commands = re.compile(r"^(\$ |mcpmix |python |pip |make )", re.MULTILINE)
    hidden = [
        block.where for block in BLOCKS if not block.language and looks_like_commands.search(block.text)
    ]

    assert len(shells) > 20
    assert len(INLINE) > 50
    assert unmarked == []
    assert hidden == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_a_block_exists_with_its_options(command):
    assert problem(command) is None


@pytest.mark.parametrize(("page", "span"), INLINE)
def test_a_command_in_a_sentence_exists_with_its_options(page, span):
    """Sentences leave arguments out and put alternatives into brackets, so names and options are compared."""
    words = shlex.split(re.sub(r"[\[\]]", " ", span.replace(r"\|", "|")))[1:]
    places = [typer.main.get_command(app)]
    while words and getattr(places[0], "commands", None) and not words[0].startswith("-"):
        names = words.pop(0).split("|")
        known = places[0].commands
        assert set(names) <= set(known), f"{page}: no command {names} among {', '.join(known)}"
        places = [known[name] for name in names]
    options = {word.partition("=")[0] for word in words if word.startswith("--")} - {"--help", "--debug"}
    overrides = [word for word in words if re.match(r"[a-z_]+(\.[a-z_]+)*=", word) and word != "key=value"]

    for place in places:
        assert options <= {name for parameter in place.params for name in parameter.opts}, page
    assert unknown_setting(overrides) is None


@pytest.mark.parametrize(
    "wrong",
    [
        "mcpmix chek study/mcpmix.yaml",
        "mcpmix check study/mcpmix.yaml --html-page a.html",
        "mcpmix run study/mcpmix.yaml train.epoch=5",
        "mcpmix predict study/runs/study",
        "python benchmarks/nothing.py",
        "python benchmarks/degraded_pairs.py --rum runs/demo",
        "make nothing",
        "pip install 'mcpmix[nothing]'",
    ],
)
def test_a_wrong_command_is_found(wrong):
    assert problem(wrong) is not None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_blocks_that_can_run_do(tmp_path):
    """The tutorial first: what it makes is what the other pages work with. Its run is a short one."""
    pytest.importorskip("onnxruntime")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    runnable = [block for block in BLOCKS if block.mark == "run"]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])

    assert {block.page for block in runnable} > {TUTORIAL}
    for block in sorted(runnable, key=lambda block: (block.page != TUTORIAL, block.page, block.line)):
        done = subprocess.run(
            ["bash", "-c", SHELL + block.text],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{block.where}\n{done.stdout}\n{done.stderr}"
