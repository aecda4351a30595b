"""Builds the documentation as a site: `python -m tools.site [--out build/docs]`; the pages are in OUT/site.

Pages are laid out for Zensical first: those of docs/, README and others at the top of the repository, and the
reference. Nothing is fetched, and a warning ends the build.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tools.reference import reference

ROOT = Path(__file__).parents[1]
# Pages at the top of the repository, and their names in the site.
_TOP = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "ROADMAP.md": "roadmap.md",
}
# The second word of a fence, as in "```bash gpu": why no test runs the block. The site shows it as a title.
MARKS = {
    "gpu": "needs a GPU",
    "data": "needs images of your own, or a finished run",
    "hours": "takes hours",
    "network": "needs the network",
    "cluster": "needs a cluster",
    "open": "stays open until Ctrl+C",
    "run": None,  # a test runs the block
}


def lay_out(folder: Path) -> None:
    """Write all that Zensical reads into a folder, replacing it: zensical.toml and docs/."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "zensical.toml", folder)
    for page in [*(ROOT / name for name in _TOP), *(ROOT / "docs").rglob("*.md")]:
        text = for_the_site(page.read_text(encoding="utf-8"), page)
        (folder / "docs" / _place(page)).write_text(text, encoding="utf-8")
    (folder / "docs" / "reference").mkdir()
    for name, text in reference().items():
        (folder / "docs" / "reference" / name).write_text(text, encoding="utf-8")


def for_the_site(text: str, page: Path) -> str:
    """A page with the links and fences that the site needs.

    Links to other pages follow them to their places; a link to a file that is no page becomes plain text. In
    tables GitHub wants `|` escaped inside code, and the site does not.
    """

    def link(found: re.Match[str]) -> str:
        text, target, anchor = found.groups()
        file = (page.parent / target).resolve()
        if not file.exists():  # code that looks like a link, or a wrong one, which the build finds
            return found[0]
        place = _place(file)
        if place.startswith(".."):
            return text.strip("[]")
        here = (ROOT / "docs" / _place(page)).parent
        return f"{text}({os.path.relpath(ROOT / 'docs' / place, here)}{anchor})"

    def fence(found: re.Match[str]) -> str:
        title = MARKS[found[2]]
        shown = title and found[1] != "console"  # a transcript shows what came out
        return f'```{found[1]} title="{title}"' if shown else f"```{found[1]}"

    text = re.sub(r"(!?\[[^\]]*\])\(([^)#:\s]+)(#[^)\s]*|)\)", link, text)
    text = re.sub(r"^```(\w+) (\w+)$", fence, text, flags=re.MULTILINE)
    return re.sub(r"`[^`\n]+`", lambda code: code[0].replace(r"\|", "|"), text)


def _place(file: Path) -> str:
    """Where a file of the repository is below docs/ in the site."""
    name = os.path.relpath(file, ROOT)
    return _TOP.get(name, os.path.relpath(name, "docs"))


def main() -> None:
    """Lay out the pages and build the site."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "docs", help="a folder that is replaced")
    folder = parser.parse_args().out
    lay_out(folder)
    build = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", folder / "zensical.toml"]
    if status := subprocess.run(build, check=False).returncode:
        sys.exit(status)
    print(f"built: {folder / 'site' / 'index.html'}")


if __name__ == "__main__":
    main()
