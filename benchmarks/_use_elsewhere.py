"""Writes the generated parts of docs/use-elsewhere.md: what RLA changes in each loop, and the files it uses.

python benchmarks/_use_elsewhere.py
"""

import difflib
from pathlib import Path

from _markers import fill

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
LOOPS = ("pytorch", "lightning", "huggingface", "monai")
SHOWN = ("lightning_callback", "huggingface_trainer")


def parts() -> dict[str, str]:
    """The generated parts of the page by name, Markdown."""
    made = {f"{loop} diff": _fenced("diff", _difference(loop)) for loop in LOOPS}
    return made | {name: _fenced("python", _lines(f"{name}.py")) for name in SHOWN}


def _difference(loop: str) -> list[str]:
    """What changes between the plain loop and the one with RLA, but for the line that says what it is."""
    before, after = (_lines(f"{loop}_{kind}.py")[1:] for kind in ("plain", "rla"))
    return list(difflib.unified_diff(before, after, lineterm="", n=1))[2:]


def _lines(name: str) -> list[str]:
    return (EXAMPLES / name).read_text(encoding="utf-8").splitlines()


def _fenced(language: str, lines: list[str]) -> str:
    return "\n".join([f"```{language}", *lines, "```"])


if __name__ == "__main__":
    for part, text in parts().items():
        fill(ROOT / "docs" / "use-elsewhere.md", part, text)
