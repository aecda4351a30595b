import json

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    BeitConfig,
    DepthAnythingConfig,
    DepthAnythingForDepthEstimation,
    Dinov2Config,
    DPTImageProcessor,
    ZoeDepthConfig,
)

from mcpmix.core.errors import ModelError
from mcpmix.networks.depth import DepthNetwork, convention, normalise_depth


def test_near_is_one_for_both_conventions():
    metres = torch.tensor([[[1.0, 2.0], [4.0, 4.0]]])
    from_metric = normalise_depth(metres, near="small")
    from_inverse = normalise_depth(1 / metres, near="large")
    torch.testing.assert_close(from_metric, from_inverse)
    assert from_metric[0, 0, 0] == 1
    assert from_metric[0, 1, 1] == 0
    assert from_metric[0, 0, 1] == pytest.approx((1 / 2 - 1 / 4) / (1 - 1 / 4))


def test_each_image_is_stretched_alone_and_a_constant_map_is_zero():
    raw = torch.stack([torch.full((2, 2), 3.0), torch.tensor([[0.0, 10.0], [5.0, 5.0]])])
    result = normalise_depth(raw, near="large")
    assert torch.equal(result[0], torch.zeros(2, 2))
    assert result[1].min() == 0
    assert result[1].max() == 1


def test_rounding_is_not_stretched_to_a_picture():
    flat = torch.full((1, 4, 4), 20.0) + torch.linspace(-1, 1, 16).view(1, 4, 4) * 1e-5
    assert torch.equal(normalise_depth(flat, near="large"), torch.zeros(1, 4, 4))
    assert torch.equal(normalise_depth(flat, near="small"), torch.zeros(1, 4, 4))


def test_one_pixel_at_nothing_does_not_take_all_contrast():
    metres = torch.tensor([[[0.0, 0.1], [0.2, 10.0]]])
    result = normalise_depth(metres, near="small")
    # nothing counts as a thousandth of 10 m: 1/0.01 = 100, against 10, 5 and 0.1
    expected = torch.tensor([[[99.9, 9.9], [4.9, 0.0]]]) / 99.9
    torch.testing.assert_close(result, expected)


def test_network_keeps_the_size_of_the_image(random_models):
    network = DepthNetwork(random_models / "depth")
    maps = network(np.random.default_rng(0).integers(0, 255, (2, 50, 70, 3), dtype=np.uint8))
    assert maps.shape == (2, 50, 70)
    assert maps.dtype == np.float32
    assert maps.min() >= 0
    assert maps.max() <= 1


def test_folder_without_network_is_named(tmp_path):
    with pytest.raises(ModelError, match="depth network"):
        DepthNetwork(tmp_path)


# --- published architectures, small and with random weights -------------------------------------------------


def save_depth_anything(folder, kind):
    """As Depth-Anything-V2-Small-hf and its metric siblings, at a hundredth of their size."""
    torch.manual_seed(1)
    backbone = Dinov2Config(
        hidden_size=16,
        num_hidden_layers=4,
        num_attention_heads=2,
        image_size=28,
        patch_size=14,
        out_indices=[1, 2, 3, 4],
        reshape_hidden_states=False,
    )
    config = DepthAnythingConfig(
        backbone_config=backbone,
        reassemble_hidden_size=16,
        neck_hidden_sizes=[8, 8, 8, 8],
        fusion_hidden_size=8,
        head_hidden_size=4,
        depth_estimation_type=kind,
        max_depth=20,
    )
    save(DepthAnythingForDepthEstimation(config), folder)
    size = {"height": 28, "width": 28}
    DPTImageProcessor(size=size, keep_aspect_ratio=True, ensure_multiple_of=14).save_pretrained(folder)


def save_zoedepth(folder):
    """As Intel/zoedepth-nyu: metres, and a processor that pads."""
    # Here, where the filter of the test works: its module uses something that torch says is outdated.
    from transformers import ZoeDepthForDepthEstimation, ZoeDepthImageProcessor

    torch.manual_seed(2)
    backbone = BeitConfig(
        hidden_size=16,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=32,
        patch_size=16,
        use_relative_position_bias=True,
        reshape_hidden_states=False,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    config = ZoeDepthConfig(
        backbone_config=backbone,
        neck_hidden_sizes=[8, 8, 8, 8],
        fusion_hidden_size=8,
        bottleneck_features=8,
        num_relative_features=4,
        bin_embedding_dim=8,
        bin_configurations=[{"n_bins": 4, "min_depth": 0.001, "max_depth": 10.0}],
    )
    save(ZoeDepthForDepthEstimation(config), folder)
    ZoeDepthImageProcessor(size={"height": 64, "width": 64}).save_pretrained(folder)


def save(model, folder):
    """With the libraries' own random weights the head sees nothing of the image: larger ones."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
        if isinstance(layer, nn.Conv2d) and layer.out_channels == 1:  # before a ReLU, which might cut all
            nn.init.constant_(layer.bias, 1.0)
    model.save_pretrained(folder)


MAKERS = {
    "depth-anything": (lambda folder: save_depth_anything(folder, "relative"), "large"),
    "depth-anything-metric": (lambda folder: save_depth_anything(folder, "metric"), "small"),
    "zoedepth": (save_zoedepth, "small"),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning")
@pytest.mark.parametrize("kind", MAKERS)
def test_published_architectures_come_out_with_near_as_one(tmp_path, kind):
    make, near = MAKERS[kind]
    make(tmp_path)
    network = DepthNetwork(tmp_path)
    assert network.near == near
    images = np.random.default_rng(3).integers(0, 255, (2, 48, 64, 3), dtype=np.uint8)
    maps = network(images)
    assert maps.shape == (2, 48, 64)
    assert maps.min() == 0
    assert maps.max() == 1
    # the network's own values at the same places, by the library's own post-processing
    inputs = network.processor(images=list(images), return_tensors="pt")
    with torch.no_grad():
        output = network.model(**inputs)
    sizes = [(48, 64)] * 2
    extra = {"source_sizes": sizes} if kind == "zoedepth" else {}
    own = network.processor.post_process_depth_estimation(output, target_sizes=sizes, **extra)
    for depth, raw in zip(maps, own, strict=True):
        values = raw["predicted_depth"].numpy()
        assert values.std() > 1e-3
        order = np.corrcoef(depth.ravel(), values.ravel())[0, 1]
        assert order > 0.9 if near == "large" else order < -0.5


def test_the_switch_overrides_the_configuration(tmp_path):
    save_depth_anything(tmp_path, "metric")
    image = np.random.default_rng(4).integers(0, 255, (1, 28, 28, 3), dtype=np.uint8)
    metric, forced = DepthNetwork(tmp_path)(image), DepthNetwork(tmp_path, near="large")(image)
    assert metric.argmax() == forced.argmin()


@pytest.mark.parametrize(
    ("place", "config", "near"),
    [
        ("dpt-large", {"model_type": "dpt"}, "large"),
        ("nyu/dpt-large", {"model_type": "dpt"}, "large"),
        ("models--facebook--dpt-dinov2-small-nyu/snapshots/1", {"model_type": "dpt"}, "small"),
        ("dpt-dinov2-base-kitti", {"model_type": "dpt"}, "small"),
        ("a", {"model_type": "glpn"}, "small"),
        ("a", {"model_type": "zoedepth"}, "small"),
        ("a", {"model_type": "depth_pro"}, "large"),
        ("a", {"model_type": "depth_anything", "depth_estimation_type": "metric"}, "small"),
        ("a", {"model_type": "depth_anything"}, "large"),
    ],
)
def test_convention_of_known_networks(tmp_path, place, config, near):
    folder = tmp_path / place
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    assert convention(folder) == near
    assert convention(folder, "small") == "small"


def test_values_that_are_not_finite_are_refused(random_models):
    network = DepthNetwork(random_models / "depth")
    with torch.no_grad():
        next(network.model.parameters()).fill_(float("nan"))
    with pytest.raises(ModelError, match="not finite"):
        network(np.zeros((1, 32, 32, 3), dtype=np.uint8))


def test_a_configuration_that_is_no_object_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="must hold an object"):
        convention(tmp_path)
