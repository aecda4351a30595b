"""Every strategy with every backbone at a size that is no square and no multiple of 32: one whole step."""

import pytest
import torch

from mcpmix.mixing.registry import STRATEGIES, build_strategy
from mcpmix.mixing.strategy import Batch, Originals
from mcpmix.networks.features import SmallFeatures
from mcpmix.networks.loss import input_gradient, predict_terms, segmentation_loss
from mcpmix.networks.segmenter import SEGMENTERS, build_segmenter

SHAPE = (50, 70)
BACKBONES = {
    "segformer": "nano",
    "unet": "tu-test_resnet",
    "deeplabv3plus": "tu-test_resnet",
    "segnet": "small",
}


def settings_of(name):
    if name == "mcpmix-rla":
        return {"epochs": 4, "features": SmallFeatures((8, 8))}
    return {"epochs": 4} if name in ("mcpmix-stepwise", "mcpmix-cosine") else {}


@pytest.fixture(scope="module")
def batch():
    rng = torch.Generator().manual_seed(0)
    images, synthetic = torch.randn(2, 2, 3, *SHAPE, generator=rng)
    masks = torch.zeros(2, 1, *SHAPE)
    masks[:, :, 10:30, 20:55] = 1
    originals = Originals(images=lambda: images, warp=lambda maps: maps)
    unlabelled = torch.randn(2, 3, *SHAPE, generator=rng)
    more = unlabelled, masks.flip(-1)
    return Batch(images, masks, synthetic, ("a", "b"), originals, *more, more)


@pytest.fixture(scope="module")
def networks():
    torch.manual_seed(0)
    return {name: build_segmenter(name, variant) for name, variant in BACKBONES.items()}


def test_every_backbone_is_tested():
    assert set(BACKBONES) == set(SEGMENTERS)


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_step(name, backbone, batch, networks):
    network, strategy = networks[backbone].train(), build_strategy(name, **settings_of(name))
    strategy.attach(lambda images, targets: input_gradient(network, images, targets), network)
    strategy.prepare([batch])
    strategy.set_epoch(1)
    terms = strategy.terms(batch, torch.Generator().manual_seed(1))
    logits = predict_terms(network, [term.images for term in terms], [term.name for term in terms])
    assert all(
        part.shape == term.targets.shape == (len(term.images), 1, *SHAPE)
        for part, term in zip(logits, terms, strict=True)
    )
    losses = [segmentation_loss(part, term.targets) for part, term in zip(logits, terms, strict=True)]
    total = strategy.combine(losses, batch, terms) + strategy.consistency(logits, terms)
    network.zero_grad(set_to_none=True)
    total.backward()
    gradients = [parameter.grad for parameter in network.parameters()]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
    assert any(gradient.abs().max() > 0 for gradient in gradients)
