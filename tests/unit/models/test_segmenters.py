import pytest
import torch

from mcpmix.core.errors import ConfigError, ModelError
from mcpmix.models.segmenters import build_segmenter, load_network, save_segmenter


def test_logits_have_the_size_of_the_image_also_when_it_is_no_multiple_of_32():
    network = build_segmenter("segformer", "nano").eval()
    assert network(torch.randn(2, 3, 70, 90)).shape == (2, 1, 70, 90)


@pytest.mark.parametrize(("variant", "millions"), [("b0", 3.7), ("b2", 27.3)])
def test_parameter_counts_of_published_sizes(variant, millions):
    network = build_segmenter("segformer", variant)
    assert sum(p.numel() for p in network.parameters()) / 1e6 == pytest.approx(millions, abs=0.1)


def test_unknown_names_suggest_and_list():
    with pytest.raises(ConfigError, match="did you mean segformer"):
        build_segmenter("segforma", "b0")
    with pytest.raises(ConfigError, match="nano, b0"):
        build_segmenter("segformer", "b9")


def test_saved_and_loaded_networks_agree(tmp_path):
    network = build_segmenter("segformer", "nano").eval()
    save_segmenter(network, tmp_path, {"name": "segformer", "variant": "nano", "size": 64})
    loaded, description = load_network(tmp_path)
    images = torch.randn(1, 3, 64, 64)
    assert torch.equal(loaded(images), network(images))
    assert description["size"] == 64


def test_folder_without_segmenter_says_what_is_expected(tmp_path):
    with pytest.raises(ModelError, match=r"config\.json and model\.safetensors expected"):
        load_network(tmp_path)
