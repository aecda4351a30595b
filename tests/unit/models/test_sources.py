import pytest

from mcpmix.core.errors import ModelError
from mcpmix.models.sources import embedded_folder, folder_digest, licence_of, resolve


def test_a_local_folder_is_taken_as_it_is(tmp_path):
    assert resolve(str(tmp_path), "pipeline") == tmp_path


def test_a_hub_id_that_is_not_here_says_how_to_get_it_how_large_and_which_licence():
    with pytest.raises(ModelError) as error:
        resolve("stable-diffusion-v1-5/stable-diffusion-v1-5", "pipeline")
    assert "hf download stable-diffusion-v1-5/stable-diffusion-v1-5" in str(error.value)
    assert "5.5 GB" in str(error.value)
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


@pytest.mark.parametrize("part", ["pipeline", "depth", "features"])
def test_embedded_weights_are_in_the_package(part):
    assert any(embedded_folder(part).rglob("*.safetensors"))
