import json
import shutil
import tarfile

import pytest
import torch
from safetensors.torch import load

from mcpmix.networks import weight_files
from mcpmix.pack import installation as module
from mcpmix.pack.installation import installation, weights_of
from mcpmix.pack.unpack import EXPECTED
from mcpmix.pack.wheels import Target, own_wheel, this_python


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
    own, target = own_wheel(tmp_path), Target(this_python())
    empty = tmp_path / "wheels"
    empty.mkdir()
    members, facts = installation(
        empty, own, target, extras=["studio"], config=named, expected=tmp_path / "table.json"
    )

    assert {f"wheels/{own.name}", "presets/tiny.yaml", "configuration.yaml", EXPECTED} <= members.keys()
    assert "docs/models.md" in members
    assert facts["requirement"].startswith("mcpmix[studio]==")
    assert facts["licences"] == {own.name: "Apache-2.0"}
    assert any(text.startswith("a wheel of ") for text in facts["missing"])


def test_the_command_packs_without_a_network(tmp_path, monkeypatch):
    from mcpmix.cli.app import main

    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["pack", "new/box.tar"])
    assert ended.value.code == 0
    with tarfile.open("new/box.tar") as archive:
        manifest = json.load(archive.extractfile("box/manifest.json"))
    assert manifest["python"] == this_python()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["box.tar"]


@pytest.mark.parametrize(
    "options",
    [
        ["--run", "x", "--config", "y"],
        ["--wheels", "x", "--python", "3.11"],
        ["--platform", "win_amd64"],
    ],
)
def test_options_that_do_not_go_together(tmp_path, options):
    from mcpmix.cli.app import main

    with pytest.raises(SystemExit) as ended:
        main(["pack", str(tmp_path / "box.tar"), *options])
    assert ended.value.code == 2
