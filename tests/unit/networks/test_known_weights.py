import pytest

from mcpmix.core.errors import ModelError
from mcpmix.networks.features import resnet_file
from mcpmix.networks.known_weights import list_weights, pinned


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
