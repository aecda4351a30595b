"""What needs the phantom's labels: depth, features and the start of the small segmenter."""

import numpy as np
import pytest
import torch
from safetensors import safe_open
from tools.pretrain.corpus import phantom_corpus
from tools.pretrain.perception import (
    depth_batch,
    depth_loss,
    train_depth,
    train_features,
    train_segmenter,
    word_labels,
)

from mcpmix.core import training
from mcpmix.core.errors import ConfigError
from mcpmix.networks.depth import DepthNetwork
from mcpmix.networks.features import load_small_features
from mcpmix.networks.segmenter import build_segmenter


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return phantom_corpus(tmp_path_factory.mktemp("corpus"), 8, 128)


def test_a_stopped_training_resumes_to_the_same_weights(corpus, tmp_path, monkeypatch):
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    train_features(corpus.images, corpus.words, tmp_path / "whole", steps=3, batch_size=4)

    saved, run_steps = [], training.run_steps

    def stop(*arguments, **settings):
        settings |= {"save_every": 1, "after_save": lambda done: saved.append(done) or _raise_at(done, 2)}
        run_steps(*arguments, **settings)

    monkeypatch.setattr(training, "run_steps", stop)
    with pytest.raises(KeyboardInterrupt):
        train_features(corpus.images, corpus.words, tmp_path / "stopped", steps=3, batch_size=4)
    assert saved == [1, 2]
    monkeypatch.undo()
    train_features(corpus.images, corpus.words, tmp_path / "stopped", steps=3, batch_size=4)
    whole, stopped = (load_small_features(tmp_path / name / "features") for name in ("whole", "stopped"))
    for key, value in whole.state_dict().items():
        assert torch.equal(value, stopped.state_dict()[key]), key


def _raise_at(done, step):
    if done == step:
        raise KeyboardInterrupt


def test_depth_network_is_saved_with_its_processor(corpus, tmp_path):
    train_depth(corpus.images, corpus.depth, tmp_path, steps=1, batch_size=2)
    assert DepthNetwork(tmp_path / "depth")(np.array(corpus.images[:1])).shape == (1, 128, 128)


def test_batches_of_depth_belong_to_their_step(corpus):
    first, again, other = (depth_batch(corpus.images, corpus.depth, index, 4) for index in (0, 0, 1))
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], other[0])
    images, depth = first
    assert images.shape == (4, 3, 128, 128)
    assert 0 <= depth.min() <= depth.max() <= 1


def test_depth_loss_by_hand():
    depth = torch.zeros(1, 2, 2)
    predicted = torch.tensor([[[0.0, 1.0], [0.0, 1.0]]])
    # pixels: a half; differences along rows: 1, along columns: 0
    assert float(depth_loss(predicted, depth)) == pytest.approx(1.5)
    assert float(depth_loss(predicted, depth, edges=2.0)) == pytest.approx(2.5)


def test_words_become_columns(corpus):
    labels = word_labels(corpus.words)
    assert labels.sum(dim=1).tolist() == [len(set(words)) for words in corpus.words]
    assert set(labels.unique().tolist()) == {0.0, 1.0}


def test_a_start_is_saved_small_and_a_segmenter_starts_from_it(corpus, tmp_path):
    train_segmenter(corpus.images, corpus.depth, tmp_path, steps=1, batch_size=2)
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
