"""Verifies the files around it and installs mcpmix from them. Needs Python's standard library and no network.

tar -xf mcpmix.tar
cd mcpmix
python3 unpack.py                  verify, install into the folder `environment`, say what is missing
python3 unpack.py /opt/mcpmix      another folder
python3 unpack.py --check          verify only
python3 unpack.py --compare runs/demo-fast/report/table.json
"""

from __future__ import annotations  # an old Python must be able to read as far as the message for it

import argparse
import hashlib
import json
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
EXPECTED = "expected/table.json"
WHEELS = "wheels"
_OLDEST = (3, 11)


def seal_of(manifest: Mapping[str, Any]) -> str:
    """SHA-256 over all that a manifest says, but for its seal."""
    rest = {name: value for name, value in manifest.items() if name != "seal"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of an unpacked archive; ValueError if it is damaged or missing."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        intact = manifest["seal"] == seal_of(manifest) and isinstance(manifest["files"], dict)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{MANIFEST} is damaged or missing ({error})") from error
    if not intact:
        raise ValueError(f"{MANIFEST} was changed after it was written")
    return dict(manifest)


def find_damage(folder: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Every file that is missing, has other bytes than when it was packed, or was added beside the others."""
    problems = []
    for name, facts in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            problems.append(f"{name} is missing")
            continue
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != facts["sha256"]:
            problems.append(f"{name} is damaged: {path.stat().st_size} of {facts['size']} bytes, {digest}")
    for top in sorted({name.partition("/")[0] for name in manifest["files"] if "/" in name}):
        found = (path.relative_to(folder).as_posix() for path in (folder / top).rglob("*") if path.is_file())
        problems += [f"{name} was added" for name in sorted(found) if name not in manifest["files"]]
    return problems


def differences(expected: object, found: object, place: str = "") -> Iterator[str]:
    """Where two JSON values differ: `rows.0.metrics.dsc.mean: 41.2, expected 41.3`."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for name in {**expected, **found}:
            yield from differences(expected.get(name), found.get(name), f"{place}.{name}".lstrip("."))
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for number, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from differences(one, other, f"{place}.{number}".lstrip("."))
    elif expected != found:
        yield f"{place}: {found}, expected {expected}"


def install(folder: Path, manifest: Mapping[str, Any], environment: Path) -> int:
    """Install the wheels into an environment of their own, and return pip's exit code."""
    venv.create(environment, with_pip=True)
    python = environment / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--no-index"]
    return subprocess.call([*command, "--find-links", str(folder / WHEELS), manifest["requirement"]])


def main(arguments: list[str] | None = None) -> int:
    """Verify, install or compare; 0 if all is well."""
    if sys.version_info < _OLDEST:
        return _fail("Expected Python 3.11 or newer, this is {}.{}.".format(*sys.version_info))
    parser = argparse.ArgumentParser(description="Verify and install what lies around this script.")
    parser.add_argument("environment", nargs="?", type=Path, help="folder to install into")
    parser.add_argument("--check", action="store_true", help="verify only")
    parser.add_argument(
        "--compare", type=Path, metavar="TABLE", help="compare a table.json with the expected one"
    )
    given = parser.parse_args(arguments)
    folder = Path(__file__).resolve().parent
    try:
        manifest = read_manifest(folder)
    except ValueError as error:
        return _fail(f"{error}. Copy the archive again; nothing was installed.")
    if problems := find_damage(folder, manifest):
        lines = "".join(f"\n  - {problem}" for problem in problems)
        return _fail(f"Not what was packed:{lines}\nCopy the archive again; nothing was installed.")
    _say(f"{len(manifest['files'])} files are what was packed: {manifest['holds']}")
    if given.compare is not None:
        return _compare(folder / EXPECTED, given.compare)
    missing = [f"missing: {text}" for text in manifest["missing"]]
    if given.check or "requirement" not in manifest:
        _say("\n".join(missing))
        return 0
    wanted, here = manifest["python"], "{}.{}".format(*sys.version_info)
    if wanted != here:
        return _fail(f"The wheels are for Python {wanted}, this is {here}. Run: python{wanted} unpack.py")
    environment = (given.environment or folder / "environment").absolute()
    if code := install(folder, manifest, environment):
        _say("\n".join(missing))
        return _fail(
            f"pip could not install {manifest['requirement']} from {folder / WHEELS}; see above.", code
        )
    _say(f"installed: {environment / 'bin' / 'mcpmix'}")
    for weights in manifest["weights"]:
        _say(f"weights: {weights['setting']}={folder / weights['place']}   licence: {weights['licence']}")
    _say("\n".join(missing))
    return 0


def _compare(expected: Path, table: Path) -> int:
    if not expected.is_file():
        return _fail(f"{EXPECTED} is not in this archive. Pack with --expected TABLE to have it.")
    found = list(differences(json.loads(expected.read_bytes()), json.loads(table.read_bytes())))
    if not found:
        _say(f"{table} is the expected table")
        return 0
    return _fail(f"{table} differs in {len(found)} places:\n  " + "\n  ".join(found[:10]))


def _say(text: str) -> None:
    if text:
        sys.stdout.write(text + "\n")


def _fail(text: str, code: int = 1) -> int:
    sys.stderr.write(text + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
