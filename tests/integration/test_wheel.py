"""The wheel: the whole package is in it, it says what the tree says, and it runs by itself."""

import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from email.parser import BytesParser
from pathlib import Path

import pytest
import yaml

import mcpmix
from mcpmix.core.files import is_stray

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "mcpmix"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel built from the tree, without a network."""
    pytest.importorskip("hatchling", reason="the build backend is in the extra dev")
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (file,) = out.glob("*.whl")
    return file


def tree():
    """Every file of the package by its name in a wheel."""
    found = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    names = {path.relative_to(PACKAGE.parent): path for path in found}
    return {name.as_posix(): path for name, path in names.items() if not is_stray(name)}


def test_the_wheel_holds_every_file_of_the_package_and_no_other(wheel):
    files = tree()
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        different = [name for name in packed & files.keys() if archive.read(name) != files[name].read_bytes()]

    assert packed == files.keys()
    assert different == []
    for kind in (
        "assets/depth/model.safetensors",
        "presets/tiny.yaml",
        "bench/grids/ablation.yaml",
        "py.typed",
    ):
        assert f"mcpmix/{kind}" in packed
    for folder in ("report/templates/", "studio/templates/", "studio/static/", "data/names/"):
        assert any(name.startswith(f"mcpmix/{folder}") for name in packed)


def test_the_wheel_says_what_pyproject_says(wheel):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    with zipfile.ZipFile(wheel) as archive:
        (place,) = {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        facts = BytesParser().parsebytes(archive.read(f"{place}/METADATA"))
        scripts = archive.read(f"{place}/entry_points.txt").decode()
        licence = archive.read(f"{place}/licenses/LICENSE")

    needed = {text.partition(">")[0].lower() for text in project["dependencies"]}
    required = [text for text in facts.get_all("Requires-Dist") if "extra ==" not in text]
    assert facts["Version"] == mcpmix.__version__
    assert {text.partition(">")[0].lower() for text in required} == needed
    assert facts["Requires-Python"] == project["requires-python"]
    assert set(facts.get_all("Provides-Extra")) == set(project["optional-dependencies"])
    assert "mcpmix = mcpmix.cli.app:main" in scripts
    assert licence == (ROOT / "LICENSE").read_bytes()


def test_version_changelog_and_citation_agree():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert re.findall(r"^## \[(.+?)\]", changelog, re.MULTILINE)[0] == mcpmix.__version__
    assert citation["version"] == mcpmix.__version__
    assert citation["license"] == project["license"]


def test_a_build_of_torch_can_be_chosen(tmp_path):
    command = [
        "make",
        "--dry-run",
        "demo",
        "TORCH=cpu",
        f"VENV={tmp_path / 'venv'}",
        f"PYTHON={sys.executable}",
    ]
    plan = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout

    first, second = (line for line in plan.splitlines() if " install " in line)
    assert first.endswith("torch torchvision --index-url https://download.pytorch.org/whl/cpu")
    assert second.endswith("-e .")


@pytest.mark.slow
def test_the_installed_wheel_runs_in_an_empty_folder(wheel, tmp_path):
    place, work = tmp_path / "venv", tmp_path / "work"
    venv.create(place)
    work.mkdir()
    python = place / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run([*pip, "install", "-q", "--no-index", "--no-deps", str(wheel)], check=True)
    # What it needs comes from here; the editable package does not, as .pth files there are not followed.
    (packages,) = place.glob("lib/python*/site-packages")
    around = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "around.pth").write_text("\n".join(around) + "\n", encoding="utf-8")
    environment = {
        name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")
    }

    def run(*command):
        done = subprocess.run(
            [place / "bin" / command[0], *command[1:]],
            cwd=work,
            env=environment,
            check=True,
            capture_output=True,
        )
        return done.stdout.decode()

    assert Path(run("python", "-c", "import mcpmix; print(mcpmix.__file__)").strip()).is_relative_to(packages)
    assert run("mcpmix", "--version") == f"mcpmix {mcpmix.__version__}\n"
    listed = run("mcpmix", "models", "list")
    assert len(re.findall(r"embedded \(\w+\) .* yes ", listed)) == 5
    run("mcpmix", "data", "phantom", "--out", "frames", "--patients", "3", "--frames", "2", "--size", "64")
    run("mcpmix", "init", "own", "--images", "frames/images", "--masks", "frames/masks", "--preset", "tiny")
    assert len(list((work / "frames" / "images").iterdir())) == 6
    assert (work / "own" / "mcpmix.yaml").is_file()
