import hashlib

import pytest

from mcpmix.core.errors import ModelError
from mcpmix.networks.weight_files import (
    digest_of_weights,
    embedded_folder,
    folder_digest,
    licence_of,
    list_weights,
    pinned,
    resnet_file,
    resolve,
    resolve_file,
    split_pin,
)


def test_a_local_folder_is_taken_as_it_is(tmp_path):
    assert resolve(str(tmp_path), "pipeline") == tmp_path


def test_a_hub_id_that_is_not_here_says_how_to_get_it_how_large_and_which_licence():
    with pytest.raises(ModelError) as error:
        resolve("stable-diffusion-v1-5/stable-diffusion-v1-5", "pipeline")
    assert "hf download stable-diffusion-v1-5/stable-diffusion-v1-5" in str(error.value)
    assert '--include "unet/diffusion_pytorch_model.safetensors"' in str(error.value)
    assert "4.3 GB" in str(error.value)
    assert "OpenRAIL-M" in str(error.value)


def test_nonsense_is_a_message_not_a_traceback():
    with pytest.raises(ModelError, match="neither a local folder nor in the local hub cache"):
        resolve("no//such thing at all", "pipeline")


def test_digest_follows_content(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    before = folder_digest(tmp_path)
    folder_digest.cache_clear()
    (tmp_path / "config.json").write_text("{ }")
    assert folder_digest(tmp_path) != before


def test_licences_are_known_or_said_to_be_unknown():
    assert "Apache-2.0" in licence_of("embedded")
    assert "check the terms" in licence_of("someone/something")


@pytest.mark.parametrize("part", ["pipeline", "depth", "features", "segmenter"])
def test_embedded_weights_are_in_the_package(part):
    assert any(embedded_folder(part).rglob("*.safetensors"))


@pytest.fixture
def folder(tmp_path):
    """A model folder as far as this module is concerned."""
    place = tmp_path / "model"
    place.mkdir()
    (place / "config.json").write_text("{}")
    (place / "model.safetensors").write_bytes(b"weights")
    return place


def test_a_pin_that_fits_is_accepted_and_another_names_both_digests(folder):
    digest = digest_of_weights(folder)
    assert resolve(f"{folder}@sha256:{digest}", "depth") == folder
    assert resolve(f"{folder}@sha256:{digest.upper()}", "depth") == folder
    with pytest.raises(ModelError) as error:
        resolve(f"{folder}@sha256:{'0' * 64}", "depth")
    assert f"expected sha256:{'0' * 64}" in str(error.value)
    assert f"found    sha256:{digest}" in str(error.value)


def test_embedded_weights_can_be_pinned_too():
    digest = digest_of_weights(embedded_folder("depth"))
    assert resolve(f"embedded@sha256:{digest}", "depth") == embedded_folder("depth")


def test_the_pin_of_a_file_is_its_plain_sha256(folder):
    file = folder / "model.safetensors"
    digest = hashlib.sha256(b"weights").hexdigest()
    assert resolve_file(f"{file}@sha256:{digest}") == file
    assert resolve_file(str(file)) == file
    assert resolve_file(str(folder)) is None
    with pytest.raises(ModelError, match="not the pinned ones"):
        resolve_file(f"{file}@sha256:{'1' * 64}")


def test_a_pin_must_be_a_sha256():
    assert split_pin("a/b") == ("a/b", None)
    with pytest.raises(ModelError, match="64 hexadecimal digits"):
        split_pin("a/b@sha256:1234")


def test_the_licence_does_not_depend_on_a_pin():
    assert licence_of(f"Intel/dpt-large@sha256:{'0' * 64}") == licence_of("Intel/dpt-large")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.ckpt"])
def test_weights_as_pickles_only_are_refused_with_the_way_out(tmp_path, name):
    (tmp_path / "unet").mkdir()
    (tmp_path / "model_index.json").write_text("{}")
    (tmp_path / "unet" / name).write_bytes(b"pickle")
    with pytest.raises(ModelError) as error:
        resolve(str(tmp_path), "pipeline")
    assert f"unet/{name}" in str(error.value)
    assert "StableDiffusionPipeline.from_pretrained(folder, use_safetensors=False)" in str(error.value)


def test_pickles_beside_safetensors_or_in_unused_parts_do_no_harm(folder):
    (folder / "training_args.bin").write_bytes(b"pickle")
    (folder / "safety_checker").mkdir()
    (folder / "safety_checker" / "pytorch_model.bin").write_bytes(b"pickle")
    assert resolve(str(folder), "pipeline") == folder


def test_embedded_parts_and_published_weights_with_their_licences():
    rows = {name: (size, here, licence) for name, size, here, licence in list_weights()}
    assert {
        f"embedded ({part})" for part in ("pipeline", "control", "depth", "features", "segmenter")
    } <= set(rows)
    assert "OpenRAIL" in rows["stable-diffusion-v1-5/stable-diffusion-v1-5"][2]
    assert "embedded" not in rows


def test_the_resnet_is_found_in_the_cache_of_torch(monkeypatch, tmp_path):
    def here():
        return next(row[2] for row in list_weights() if row[0] == "resnet50")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    assert not here()
    resnet_file().parent.mkdir(parents=True)
    resnet_file().write_bytes(b"weights")
    assert here()


def test_a_pin_is_accepted_by_what_made_it_and_by_nothing_else(random_models):
    source = str(random_models / "depth")
    pin = pinned(source)
    assert pin.startswith(f"{source}@sha256:")
    assert pinned(pin) == pin
    with pytest.raises(ModelError, match="not the pinned ones"):
        pinned(f"{source}@sha256:{'0' * 64}")
