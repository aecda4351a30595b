"""The start of the small segmenter: learnt from depth, saved without its last layer."""

import pytest
import torch
from safetensors import safe_open
from tools.pretrain.corpus import phantom_corpus
from tools.pretrain.depth import depth_loss
from tools.pretrain.segmenter import train_segmenter

from mcpmix.core.errors import ConfigError
from mcpmix.networks.segmenter import build_segmenter


def test_it_is_saved_small_and_a_segmenter_starts_from_it(tmp_path):
    corpus = phantom_corpus(tmp_path / "corpus", 4, 128)
    train_segmenter(corpus, tmp_path, steps=1, batch_size=2)
    with safe_open(tmp_path / "segmenter" / "model.safetensors", "pt") as file:
        names = set(file.keys())
        assert {str(file.get_tensor(name).dtype) for name in names if "num_batches" not in name} == {
            "torch.float16"
        }
    assert not any("classifier" in name for name in names)
    network = build_segmenter("segformer", "nano", str(tmp_path / "segmenter"))
    assert next(network.parameters()).dtype == torch.float32


def test_embedded_start_is_loaded_and_its_last_layer_is_new():
    torch.manual_seed(0)
    one, other = (build_segmenter("segformer", "nano", "embedded").state_dict() for _ in range(2))
    different = {name for name in one if not torch.equal(one[name], other[name])}
    assert different == {"network.decode_head.classifier.weight"}


@pytest.mark.parametrize(("name", "variant"), [("segformer", "b0"), ("unet", "resnet18")])
def test_other_networks_have_no_embedded_start(name, variant):
    with pytest.raises(ConfigError, match=f"not for {name} {variant}.*segmenter.weights=null"):
        build_segmenter(name, variant, "embedded")


def test_depth_loss_by_hand():
    depth = torch.zeros(1, 2, 2)
    predicted = torch.tensor([[[0.0, 1.0], [0.0, 1.0]]])
    # pixels: a half; differences along rows: 1, along columns: 0
    assert float(depth_loss(predicted, depth)) == pytest.approx(1.5)
    assert float(depth_loss(predicted, depth, edges=2.0)) == pytest.approx(2.5)
