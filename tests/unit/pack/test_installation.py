import shutil
import subprocess
import sys
import zipfile

import pytest
import torch
from safetensors.torch import load
from tests.helpers.tiny_wheels import make_wheel

import mcpmix
from mcpmix.core.errors import DataError, DependencyError
from mcpmix.networks import weight_files
from mcpmix.pack import installation as module
from mcpmix.pack.installation import (
    Target,
    fetch_wheels,
    installation,
    licence_of_wheel,
    list_needed,
    missing_wheels,
    own_wheel,
    this_python,
    weights_of,
)
from mcpmix.pack.unpack import EXPECTED

HERE = Target(this_python())


@pytest.fixture
def named(tmp_path, random_models):
    """A configuration that names a depth folder, ResNet-50 and weights that are not here."""
    folder = shutil.copytree(random_models / "depth", tmp_path / "depth")
    (folder / "old.bin").write_bytes(b"a pickle")
    file = tmp_path / "mcpmix.yaml"
    weights = ["depth: {model: depth}", "rla: {features: resnet50}", "segmenter: {weights: nvidia/mit-b0}"]
    file.write_text("\n".join(["preset: tiny", *weights]))
    return file


@pytest.fixture
def resnet(tmp_path, monkeypatch):
    path = tmp_path / "resnet.pth"
    torch.save({"conv1.weight": torch.ones(2)}, path)
    monkeypatch.setattr(module, "resnet_file", lambda: path)


def test_weights_of_a_configuration(named, resnet):
    files, entries, absent = weights_of(named)

    places = {entry["setting"]: (entry["place"], entry["licence"]) for entry in entries}
    resnet50 = weight_files.KNOWN["resnet50"].licence
    assert places["depth.model"][0] == "weights/depth"
    assert places["rla.features"] == ("weights/resnet50.safetensors", resnet50)
    assert torch.equal(load(files["weights/resnet50.safetensors"])["conv1.weight"], torch.ones(2))
    assert {"weights/depth/config.json", "weights/depth/model.safetensors"} <= files.keys()
    assert not [name for name in files if name.endswith(".bin")]
    assert len(absent) == 1
    assert "segmenter.weights" in absent[0]
    assert "hf download nvidia/mit-b0" in absent[0]


def test_resnet_that_is_not_here_is_missing(named, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "resnet_file", lambda: tmp_path / "none.pth")

    assert any("rla.features" in text for text in weights_of(named)[2])


def test_an_installation_says_what_it_holds_and_lacks(tmp_path, named, resnet):
    (tmp_path / "table.json").write_text("{}")
    own = own_wheel(tmp_path)
    empty = tmp_path / "wheels"
    empty.mkdir()
    members, facts = installation(
        empty, own, HERE, extras=["studio"], config=named, expected=tmp_path / "table.json"
    )

    assert {f"wheels/{own.name}", "presets/tiny.yaml", "configuration.yaml", EXPECTED} <= members.keys()
    assert "docs/models.md" in members
    assert facts["requirement"].startswith("mcpmix[studio]==")
    assert facts["licences"] == {own.name: "Apache-2.0"}
    assert any(text.startswith("a wheel of ") for text in facts["missing"])


@pytest.fixture
def index(tmp_path, monkeypatch):
    """An application that needs a library; pip's only index has two versions of that."""
    folder = tmp_path / "index"
    folder.mkdir()
    for version in ("1.0", "2.0"):
        make_wheel(folder, "library", version, about=["License: BSD-3-Clause"])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("MCPMIX_OFFLINE", "0")
    needs = ["library>=1.5", 'more; extra == "plus"']
    return make_wheel(tmp_path, "application", needs=needs, about=["Provides-Extra: plus"])


def test_own_wheel_is_the_package_and_can_be_installed(tmp_path):
    file = own_wheel(tmp_path)
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        listed = archive.read(f"mcpmix-{mcpmix.__version__}.dist-info/RECORD").decode().splitlines()
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
    subprocess.run([*command, "--target", str(tmp_path / "there"), str(file)], check=True)

    assert {"mcpmix/py.typed", "mcpmix/presets/tiny.yaml", "mcpmix/assets/depth/config.json"} <= set(names)
    assert not [name for name in names if "__pycache__" in name]
    assert [row.partition(",")[0] for row in listed] == names
    assert (tmp_path / "there" / "mcpmix" / "run.py").is_file()


def test_what_is_needed_is_listed_then_fetched(index, tmp_path):
    (needed,) = list_needed(index, [], HERE)
    assert (needed.name, needed.version, needed.licence) == ("library", "2.0", "BSD-3-Clause")
    assert needed.size == (tmp_path / "index" / "library-2.0-py3-none-any.whl").stat().st_size

    (tmp_path / "got").mkdir()
    fetch_wheels([needed], HERE, tmp_path / "got")
    assert [path.name for path in (tmp_path / "got").iterdir()] == ["library-2.0-py3-none-any.whl"]


def test_another_file_than_the_listed_one_is_refused(index, tmp_path):
    needed = list_needed(index, [], HERE)
    make_wheel(tmp_path / "index", "library", "2.0", about=["License: Other"])

    with pytest.raises(DependencyError, match="pip download failed"):
        fetch_wheels([*needed], HERE, tmp_path)


def test_nothing_is_asked_of_an_index_offline(index, monkeypatch):
    monkeypatch.setenv("MCPMIX_OFFLINE", "1")

    with pytest.raises(DataError, match="MCPMIX_OFFLINE=1 forbids"):
        list_needed(index, [], HERE)


def test_missing_wheels_are_named(index, tmp_path, monkeypatch):
    monkeypatch.delenv("PIP_FIND_LINKS")
    (tmp_path / "empty").mkdir()

    assert missing_wheels(index, [], HERE, tmp_path / "index") == []
    assert missing_wheels(index, [], HERE, tmp_path / "empty") == ["a wheel of library>=1.5"]
    assert missing_wheels(index, ["plus"], HERE, tmp_path / "index") == ['a wheel of more; extra == "plus"']


def test_a_wheel_of_another_platform_is_missing(index, tmp_path):
    old = next((tmp_path / "index").glob("library-2.0*"))
    old.rename(old.with_name("library-2.0-py3-none-win_amd64.whl"))

    assert missing_wheels(index, [], HERE, tmp_path / "index") == ["a wheel of library>=1.5"]
    windows = Target(this_python(), ("win_amd64",))
    assert missing_wheels(index, [], windows, tmp_path / "index") == []


@pytest.mark.parametrize(
    ("about", "licence"),
    [
        (["License-Expression: MIT", "License: text"], "MIT"),
        (["License: BSD-3-Clause"], "BSD-3-Clause"),
        (["License: " + 100 * "x", "Classifier: License :: OSI Approved :: Apache Software License"],
         "Apache Software License"),
        (["License: " + 100 * "x"], "see its licence file"),
        ([], "not stated"),
    ],
)  # fmt: skip
def test_the_licence_that_a_wheel_states(tmp_path, about, licence):
    assert licence_of_wheel(make_wheel(tmp_path, "one", about=about)) == licence


def test_what_is_no_wheel_is_named(tmp_path):
    (tmp_path / "bad.whl").write_text("no")

    with pytest.raises(DependencyError, match=r"bad\.whl is not a wheel"):
        licence_of_wheel(tmp_path / "bad.whl")
