"""What an archive for a machine without internet holds: wheels, weights, documentation, presets.

Wheels are those of a folder, or those that pip lists, with sizes and licences, and then fetches.
"""

import base64
import hashlib
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from email.parser import BytesParser
from importlib import metadata, resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from mcpmix import __version__
from mcpmix.config_file import load_config, weight_sources
from mcpmix.core.errors import DependencyError, ModelError
from mcpmix.core.files import is_stray, parse_json
from mcpmix.data.fetch import refuse_offline, remote_size, remote_text
from mcpmix.networks.weight_files import (
    EMBEDDED,
    PICKLES,
    UNUSED,
    licence_of,
    resnet_file,
    resolve,
    resolve_file,
    split_pin,
)
from mcpmix.pack.archive import Members
from mcpmix.pack.unpack import EXPECTED, WHEELS

_DOCS = Path(__file__).parents[3] / "docs"  # of a checkout
_SHORT = 60  # characters; longer texts under "License" are the whole licence


@dataclass(frozen=True)
class Target:
    """A machine to pack for: `python` as 3.11, `platforms` as pip names them; none: that of this machine."""

    python: str
    platforms: tuple[str, ...] = ()

    @property
    def options(self) -> list[str]:
        """The same for pip."""
        given = [f"--platform={name}" for name in self.platforms]
        return ["--only-binary=:all:", f"--python-version={self.python}", *given]


@dataclass(frozen=True)
class Wheel:
    """A package that would be fetched; `size` in bytes, None where the index does not say."""

    name: str
    version: str
    licence: str
    size: int | None
    sha256: str


def installation(
    wheels: Path,
    own: Path,
    target: Target,
    *,
    extras: Sequence[str] = (),
    config: Path | None = None,
    expected: Path | None = None,
) -> tuple[Members, dict[str, Any]]:
    """The members and the facts of an archive that installs mcpmix.

    Args:
        wheels: folder with the wheels of other packages; none need be there.
        own: the wheel of mcpmix.
        extras: of mcpmix, such as `studio`.
        config: a configuration whose weights are packed.
        expected: `table.json` of a test run, to compare with.
    """
    members: dict[str, Path | bytes] = {f"{WHEELS}/{own.name}": own}
    others = sorted(path for path in wheels.glob("*.whl") if not path.name.startswith("mcpmix-"))
    members |= {f"{WHEELS}/{path.name}": path for path in others}
    for preset in sorted(Path(str(resources.files("mcpmix") / "presets")).glob("*.yaml")):
        members[f"presets/{preset.name}"] = preset
    missing = missing_wheels(own, extras, target, wheels)
    docs = _files_below(_DOCS)
    members |= {f"docs/{name}": path for name, path in docs.items()}
    missing += [] if docs else ["docs: they are in a checkout, not in an installed package"]
    weights: list[dict[str, str]] = []
    if config is not None:
        files, weights, absent = weights_of(config)
        members |= {"configuration.yaml": config, **files}
        missing += absent
    if expected is not None:
        members[EXPECTED] = expected
    count = len({entry["place"] for entry in weights})
    facts = {
        "holds": f"mcpmix {__version__}, {len(others)} wheels of other packages, {count} sets of weights",
        "python": target.python,
        "platforms": list(target.platforms),
        "requirement": f"mcpmix[{','.join(extras)}]=={__version__}",
        "licences": {path.name: licence_of_wheel(path) for path in [own, *others]},
        "weights": weights,
        "missing": missing,
    }
    return members, facts


def weights_of(config: Path) -> tuple[Members, list[dict[str, str]], list[str]]:
    """The weights that a configuration names: files, where each setting finds them, and what is not here.

    Embedded weights are in the wheel. Pickles are left behind, except that the one of ResNet-50, which has no
    other form, becomes a safetensors file.
    """
    files: dict[str, Path | bytes] = {}
    entries, absent = [], []
    for setting, source in weight_sources(load_config(config)).items():
        name, _ = split_pin(source)
        if name == EMBEDDED:
            continue
        place = f"weights/{Path(name).name if Path(name).exists() else name.strip('/').replace('/', '--')}"
        try:
            if name == "resnet50":
                place += ".safetensors"
                files[place] = _resnet_as_safetensors()
            elif (file := resolve_file(source)) is not None:
                files[place] = file
            else:
                for inner, path in _files_below(resolve(source, "")).items():
                    if path.suffix not in PICKLES and path.parent.name not in UNUSED:
                        files[f"{place}/{inner}"] = path
        except ModelError as error:
            absent.append(f"weights of {setting}: {error}")
            continue
        entries.append({"setting": setting, "name": name, "place": place, "licence": licence_of(source)})
    return files, entries, absent


def _files_below(folder: Path) -> dict[str, Path]:
    """All files by their names within a folder, sorted, but for what desktops leave behind."""
    found = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name.as_posix(): path for name, path in found.items() if not is_stray(name)}


def _resnet_as_safetensors() -> bytes:
    import torch  # heavy
    from safetensors.torch import save

    path = resnet_file()
    if not path.is_file():
        raise ModelError(f"{path} is not on this machine.")
    return save(torch.load(path, map_location="cpu", weights_only=True))


# --- wheels -------------------------------------------------------------------------------------------------


def this_python() -> str:
    """The version of this interpreter, such as 3.11."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def own_wheel(folder: Path) -> Path:
    """Write the package as it is here, from a checkout or from a wheel, as a wheel into a folder."""
    about = metadata.distribution("mcpmix")
    if about.version != __version__:
        raise DependencyError(
            f"The installed mcpmix says it is {about.version}, and its code {__version__}. Install it again "
            "with `pip install -e .` in the checkout."
        )
    package = Path(str(resources.files("mcpmix")))
    content = {
        f"mcpmix/{name}": path.read_bytes()
        for name, path in _files_below(package).items()
        if "__pycache__/" not in name
    }
    place = f"mcpmix-{__version__}.dist-info"
    for name in ("METADATA", "entry_points.txt", "licenses/LICENSE"):
        if text := about.read_text(name):
            content[f"{place}/{name}"] = text.encode()
    kind = "Wheel-Version: 1.0\nGenerator: mcpmix\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    content[f"{place}/WHEEL"] = kind.encode()
    rows = []
    for name, data in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        rows.append(f"{name},sha256={digest},{len(data)}\n")
    content[f"{place}/RECORD"] = "".join([*rows, f"{place}/RECORD,,\n"]).encode()
    file = folder / f"mcpmix-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return file


def list_needed(own: Path, extras: Sequence[str], target: Target) -> list[Wheel]:
    """What pip would fetch for a target, by its configured index; pip reads metadata, nothing is kept.

    Raises:
        DataError: connections are forbidden.
        DependencyError: pip found no set of wheels for the target.
    """
    refuse_offline()
    needed: list[Wheel] = []
    size: int | None
    for item in _resolve(_with_extras(own, extras), target, []):
        facts, source = item["metadata"], item["download_info"]
        if item["is_direct"]:  # our own
            continue
        url, digests = source["url"], source["archive_info"].get("hashes", {})
        if urlsplit(url).scheme == "file":
            file = Path(url2pathname(urlsplit(url).path))
            size, licence = file.stat().st_size, licence_of_wheel(file)
        else:  # the whole metadata, which indexes keep beside a wheel: pip's report may lack the licence
            size, about = remote_size(url), remote_text(f"{url}.metadata")
            told = [facts.get("license_expression"), facts.get("license")], facts.get("classifier", [])
            licence = _in_metadata(about) if about else _licence(*told, unknown="not known before fetching")
        needed.append(Wheel(facts["name"], facts["version"], licence, size, digests.get("sha256", "")))
    return sorted(needed, key=lambda wheel: wheel.name.lower())


def fetch_wheels(needed: Sequence[Wheel], target: Target, folder: Path) -> None:
    """Let pip fetch exactly what was listed, by version and digest."""
    refuse_offline()
    rows = [
        f"{item.name}=={item.version}" + (f" --hash=sha256:{item.sha256}" if item.sha256 else "")
        for item in needed
    ]
    wanted = folder / "listed.txt"
    wanted.write_text("\n".join(rows) + "\n", encoding="utf-8")
    _pip("download", "--no-deps", *target.options, "--dest", str(folder), "--requirement", str(wanted))
    wanted.unlink()


def missing_wheels(own: Path, extras: Sequence[str], target: Target, folder: Path) -> list[str]:
    """What pip says is missing from a folder of wheels for a target; none: it is complete."""
    try:
        _resolve(_with_extras(own, extras), target, ["--no-index", f"--find-links={folder}"])
    except DependencyError as error:
        found = re.findall(r"No matching distribution found for (.+)", str(error))
        return [f"a wheel of {name}" for name in dict.fromkeys(found)] or [str(error)]
    return []


def licence_of_wheel(file: Path) -> str:
    """The licence that a wheel states; DependencyError if it is none."""
    try:
        with zipfile.ZipFile(file) as archive:
            (name,) = (
                name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)
            )
            about = archive.read(name)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DependencyError(f"{file} is not a wheel ({error}). Remove it, or fetch it again.") from error
    return _in_metadata(about)


def _in_metadata(about: bytes) -> str:
    """The licence in a METADATA file."""
    facts = BytesParser().parsebytes(about)
    return _licence([facts["License-Expression"], facts["License"]], facts.get_all("Classifier", []))


def _licence(given: Sequence[object], classifiers: Sequence[object], unknown: str = "not stated") -> str:
    texts = [str(text) for text in given if text]
    short = [text for text in texts if len(text) <= _SHORT and "\n" not in text]
    kinds = [str(kind) for kind in classifiers if str(kind).startswith("License :: ")]
    named = [kind.rpartition(" :: ")[2] for kind in kinds]
    return (short + named + (["see its licence file"] if texts else []) + [unknown])[0]


def _with_extras(own: Path, extras: Sequence[str]) -> str:
    return f"{own}[{','.join(extras)}]" if extras else str(own)


def _resolve(requirement: str, target: Target, options: Sequence[str]) -> list[dict[str, Any]]:
    with TemporaryDirectory() as place:
        report = Path(place) / "report.json"
        _pip(
            "install", "--dry-run", "--ignore-installed", f"--target={place}", f"--report={report}",
            *target.options, *options, requirement,
        )  # fmt: skip
        found: list[dict[str, Any]] = parse_json(report.read_bytes())["install"]
    return found


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "ERROR" in line] or [done.stderr.strip()]
        raise DependencyError(f"pip {arguments[0]} failed: " + "\n  ".join(errors))
