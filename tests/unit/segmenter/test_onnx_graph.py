import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mcpmix.core.pixels import IMAGENET_MEAN, IMAGENET_STD
from mcpmix.data.sample import resize_image
from mcpmix.segmenter.onnx import WholeSegmenter, resize_levels
from mcpmix.segmenter.predict import Predictor


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def as_levels(image):
    return torch.from_numpy(image).permute(2, 0, 1).double()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 130), st.integers(0, 9))
def test_resizing_is_that_of_the_data_bit_for_bit(height, width, size, seed):
    image = noise(height, width, seed)
    resized = resize_levels(as_levels(image), size).permute(1, 2, 0).numpy()
    assert np.array_equal(resized, resize_image(image, size))


def test_resizing_two_pixels_by_hand():
    levels = torch.tensor([[[0.0, 100.0]]], dtype=torch.float64)
    # Centres of four pixels lie at 1/4, 3/4, 5/4, 7/4 of the old grid, whose own are at 1/2 and 3/2.
    assert resize_levels(levels, 4)[0].tolist() == [[0.0, 25.0, 75.0, 100.0]] * 4
    assert resize_levels(levels, 1).tolist() == [[[50.0]]]


class Slope(nn.Module):
    """Logits from the first channel, undoing its normalisation: grey level / 255 - 0.5."""

    def forward(self, images):
        return images[:, :1] * IMAGENET_STD[0] + IMAGENET_MEAN[0] - 0.5


@pytest.mark.parametrize("shape", [(40, 64), (7, 5), (16, 16)])
def test_the_graph_is_what_the_predictor_does(shape):
    image = noise(*shape)
    whole = WholeSegmenter(Slope(), 16)
    expected = Predictor(Slope(), {"size": 16}).predict(image)
    assert np.array_equal(whole(torch.from_numpy(image)).numpy(), expected)
    fractions = torch.from_numpy(image.astype(np.float32) / 255)
    assert np.array_equal(whole(fractions).numpy(), expected)
