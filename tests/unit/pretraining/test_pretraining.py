"""Every part of the embedded weights is trained for a step or two, saved and used."""

import numpy as np
import pytest
import torch
from PIL import Image

from mcpmix.core.errors import DataError
from mcpmix.models.depth import DepthNetwork
from mcpmix.models.diffusion import embed_prompts, encode_images, load_autoencoder, load_base
from mcpmix.models.features import load_small_features
from mcpmix.pretraining import features
from mcpmix.pretraining.autoencoder import image_batch, reconstruction_loss, train_autoencoder
from mcpmix.pretraining.base import prompted_captions, train_base
from mcpmix.pretraining.corpus import folder_corpus, phantom_corpus
from mcpmix.pretraining.depth import depth_batch, train_depth
from mcpmix.pretraining.features import train_features, word_labels
from mcpmix.training import resumable


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

    monkeypatch.setattr(features, "run_steps", stop)
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


def test_own_images_have_no_words_and_the_bare_prompt(tmp_path):
    (tmp_path / "images").mkdir()
    Image.new("RGB", (40, 30), (200, 100, 80)).save(tmp_path / "images" / "a.png")
    corpus = folder_corpus(tmp_path / "images", tmp_path / "cache", "a polyp", 16)
    assert corpus.images.shape == (1, 16, 16, 3)
    assert prompted_captions(corpus, "A polyp.") == [["A polyp."], ["A polyp."]]
    with pytest.raises(ValueError, match="no depth"):
        depth_batch(corpus, 0, 1)


def test_unreadable_images_are_all_named(tmp_path):
    for name in ("a.png", "b.jpg"):
        (tmp_path / name).write_bytes(b"nothing")
    with pytest.raises(DataError) as error:
        folder_corpus(tmp_path, tmp_path / "cache", "", 16)
    assert "a.png" in str(error.value)
    assert "b.jpg" in str(error.value)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="No images below"):
        folder_corpus(tmp_path / "empty", tmp_path / "cache", "", 16)
