"""Every part of the embedded weights is trained for a step or two, saved and used."""

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL
from PIL import Image
from tools.pretrain.autoencoder import image_batch, reconstruction_loss, train_autoencoder
from tools.pretrain.base import prompted_captions, train_base, training_texts, view, view_count
from tools.pretrain.corpus import image_corpus, phantom_corpus
from tools.pretrain.depth import depth_batch, train_depth
from tools.pretrain.features import train_features, word_labels
from tools.pretrain.images import find_images

from mcpmix.core import checkpoint as resumable
from mcpmix.core.errors import DataError, ModelError
from mcpmix.networks.depth import DepthNetwork
from mcpmix.networks.diffusion import embed_prompts, encode_images, load_autoencoder, load_base
from mcpmix.networks.features import load_small_features
from tools.pretrain import fitting


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return phantom_corpus(tmp_path_factory.mktemp("corpus"), 8, 128)


@pytest.fixture(scope="module")
def built(corpus, tmp_path_factory):
    """Autoencoder and base after one step each."""
    folder = tmp_path_factory.mktemp("build")
    vae = train_autoencoder(corpus, folder, steps=1, batch_size=2)
    train_base(corpus, vae, ["A clinical colon image showing a polyp."], folder, steps=1, batch_size=2)
    return folder


def test_pipeline_is_saved_whole_and_its_latents_have_unit_scale(built, corpus):
    base = load_base(built / "pipeline")
    assert embed_prompts(base, ["pale mucosa"]).shape == (1, 48, 96)
    vae = load_autoencoder(built / "vae")
    assert base.vae.config.scaling_factor == vae.config.scaling_factor
    images = torch.cat([image_batch(corpus, index, 8) for index in range(4)])
    assert float(encode_images(base.vae, images).std()) == pytest.approx(1, abs=0.2)


def test_no_path_of_the_machine_is_in_the_configuration(built):
    for path in (built / "pipeline").rglob("*.json"):
        assert str(built) not in path.read_text(), path


def test_a_stopped_build_continues_to_the_same_weights(corpus, tmp_path, monkeypatch):
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    train_features(corpus, tmp_path / "whole", steps=3, batch_size=4)

    saved = []

    def stop(*arguments, **settings):
        settings |= {"save_every": 1, "after_save": lambda done: saved.append(done) or _raise_at(done, 2)}
        resumable.run_steps(*arguments, **settings)

    monkeypatch.setattr(fitting, "run_steps", stop)
    with pytest.raises(KeyboardInterrupt):
        train_features(corpus, tmp_path / "stopped", steps=3, batch_size=4)
    assert saved == [1, 2]
    monkeypatch.undo()
    train_features(corpus, tmp_path / "stopped", steps=3, batch_size=4)
    whole, stopped = (load_small_features(tmp_path / name / "features") for name in ("whole", "stopped"))
    for key, value in whole.state_dict().items():
        assert torch.equal(value, stopped.state_dict()[key]), key


def _raise_at(done, step):
    if done == step:
        raise KeyboardInterrupt


def test_depth_network_is_saved_with_its_processor(corpus, tmp_path):
    train_depth(corpus, tmp_path, steps=1, batch_size=2)
    assert DepthNetwork(tmp_path / "depth")(np.array(corpus.images[:1])).shape == (1, 128, 128)


def test_batches_belong_to_their_step(corpus):
    assert torch.equal(image_batch(corpus, 3, 4), image_batch(corpus, 3, 4))
    assert not torch.equal(image_batch(corpus, 3, 4), image_batch(corpus, 4, 4))
    images, depth = depth_batch(corpus, 0, 4)
    assert images.shape == (4, 3, 128, 128)
    assert 0 <= depth.min() <= depth.max() <= 1


def test_reconstruction_loss_by_hand():
    target = torch.zeros(1, 1, 8, 8)
    assert reconstruction_loss(target, target) == 0
    # a constant error of 0.5: pixels 0.5, no edges, local means 0.5
    assert float(reconstruction_loss(target + 0.5, target)) == pytest.approx(1.0)


def test_words_become_columns(corpus):
    labels = word_labels(corpus)
    assert labels.sum(dim=1).tolist() == [len(set(words)) for words in corpus.words]
    assert set(labels.unique().tolist()) == {0.0, 1.0}


def test_prompts_carry_one_and_three_phrases(corpus):
    one, three = prompted_captions(corpus, "A polyp.")
    mucosa, view, light = corpus.words[0][:3]
    assert one[0] == f"A polyp. {mucosa} mucosa"
    assert three[0] == f"A polyp. {mucosa} mucosa, {view} view, {light} light"


@pytest.fixture
def photographs(tmp_path):
    """Three images of different sizes."""
    folder = tmp_path / "images"
    (folder / "deep").mkdir(parents=True)
    for number, name in enumerate(("a.png", "b.png", "deep/c.png")):
        Image.new("RGB", (40 + number, 30), (200, 100, 80 * number)).save(folder / name)
    return folder


def test_own_images_have_no_words_and_only_their_captions(photographs, tmp_path):
    paths = find_images(photographs)
    corpus = image_corpus(paths, ["a polyp", "b", "c"], tmp_path / "cache", 16)
    assert corpus.images.shape == (3, 16, 16, 3)
    assert corpus.images[1, 0, 0].tolist() == [200, 100, 80]
    assert training_texts(corpus, "A polyp.") == [["a polyp", "b", "c"]]
    with pytest.raises(ValueError, match="no depth"):
        depth_batch(corpus, 0, 1)


def test_decoded_images_are_kept_until_a_file_changes(photographs, tmp_path, monkeypatch):
    paths = find_images(photographs)
    first = image_corpus(paths, [""] * 3, tmp_path / "cache", 16)
    with monkeypatch.context() as patch:
        patch.setattr("tools.pretrain.corpus.read_image", None)  # a second decoding would fail
        assert image_corpus(paths, [""] * 3, tmp_path / "cache", 16).digest == first.digest
    Image.new("RGB", (40, 30), (1, 2, 3)).save(paths[0])
    changed = image_corpus(paths, [""] * 3, tmp_path / "cache", 16)
    assert changed.digest != first.digest
    assert changed.images[0, 0, 0].tolist() == [1, 2, 3]


def test_unreadable_images_are_all_named(tmp_path):
    for name in ("a.png", "b.jpg"):
        (tmp_path / name).write_bytes(b"nothing")
    with pytest.raises(DataError) as error:
        image_corpus(find_images(tmp_path), ["", ""], tmp_path / "cache", 16)
    assert "a.png" in str(error.value)
    assert "b.jpg" in str(error.value)


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


def test_a_build_can_start_from_a_pipeline(built, corpus, tmp_path):
    start = load_base(built / "pipeline")
    vae = train_autoencoder(corpus, tmp_path, steps=0, start=start.vae)
    assert vae.config.scaling_factor == start.vae.config.scaling_factor
    train_base(corpus, vae, ["A polyp."], tmp_path, steps=1, batch_size=2, learning_rate=1e-9, start=start)
    result = load_base(tmp_path / "pipeline")
    for name, value in start.unet.state_dict().items():  # a rate of nothing leaves the start as it was
        torch.testing.assert_close(result.unet.state_dict()[name], value, atol=1e-3, rtol=1e-2)
    for path in (tmp_path / "pipeline").rglob("*.json"):
        assert str(built) not in path.read_text(), path


def test_an_autoencoder_of_another_kind_is_kept_not_trained(corpus, tmp_path):
    other = AutoencoderKL(block_out_channels=(8,), norm_num_groups=4)
    with pytest.raises(ModelError, match="--autoencoder-steps 0"):
        train_autoencoder(corpus, tmp_path, steps=1, start=other)
