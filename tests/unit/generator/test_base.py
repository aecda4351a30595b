"""The base: saved whole, from scratch or from a pipeline; views of few images."""

import pytest
import torch
from tools.pretrain.blueprints import build_autoencoder
from tools.pretrain.build import untrained_base
from tools.pretrain.corpus import phantom_corpus

from mcpmix.generator.base import train_base, view, view_count
from mcpmix.networks.diffusion import embed_prompts, load_base

TEXTS = [["pale mucosa"] * 4, ["A polyp."] * 4]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return phantom_corpus(tmp_path_factory.mktemp("corpus"), 4, 64).images


@pytest.fixture(scope="module")
def built(images, tmp_path_factory):
    """A base from scratch after one step."""
    folder = tmp_path_factory.mktemp("build")
    start = untrained_base(build_autoencoder(), TEXTS, 64, folder)
    train_base(images, TEXTS, start, folder, steps=1, learning_rate=1e-3, batch_size=2)
    return folder


def test_pipeline_is_saved_whole(built):
    assert embed_prompts(load_base(built / "pipeline"), ["pale mucosa"]).shape == (1, 48, 96)


def test_a_base_can_start_from_a_pipeline_and_forgets_its_folder(built, images, tmp_path):
    start = load_base(built / "pipeline")
    train_base(images, TEXTS, start, tmp_path, steps=1, batch_size=2, learning_rate=1e-9)
    result = load_base(tmp_path / "pipeline")
    assert result.vae.config.scaling_factor == start.vae.config.scaling_factor
    for name, value in start.unet.state_dict().items():  # a rate of nothing leaves the start as it was
        torch.testing.assert_close(result.unet.state_dict()[name], value, atol=1e-3, rtol=1e-2)
    for path in (tmp_path / "pipeline").rglob("*.json"):
        assert str(built) not in path.read_text(), path
        assert str(tmp_path) not in path.read_text(), path


def test_views_are_the_image_its_mirror_image_and_crops():
    images = torch.rand(2, 3, 16, 16) * 2 - 1
    assert torch.equal(view(images, 0, 0), images)
    assert torch.equal(view(images, 1, 0), images.flip(-1))
    third = view(images, 2, 5)
    assert third.shape == images.shape
    assert torch.equal(third[1], view(images[1:], 2, 6)[0])  # belongs to the place, not to the batch
    assert not torch.equal(third, view(images, 3, 5))


@pytest.mark.parametrize(("images", "views"), [(12_000, 2), (512, 8), (10, 16)])
def test_few_images_get_more_views(images, views):
    assert view_count(images) == views
