"""Batches for strategies."""

import torch

from mcpmix.core.seeds import torch_rng
from mcpmix.data.augment import normalise
from mcpmix.mixing.strategy import Batch


def make_batch(count=4, height=32, width=32, *, ids=None):
    """Random normalised images and random hard masks, without counterparts."""
    rng = torch_rng("batch", count, height, width)
    images = normalise(torch.rand(count, 3, height, width, generator=rng))
    masks = (torch.rand(count, 1, height, width, generator=rng) > 0.5).float()
    return Batch(images, masks, None, ids or tuple(f"case-{index}" for index in range(count)))


def share_batch(count=64, height=4, width=4):
    """Real images are 0 and their counterparts 1: a mixed pixel is the share of the counterpart."""
    plain = make_batch(count, height, width)
    images = torch.zeros(count, 3, height, width)
    return Batch(images, plain.masks, torch.ones_like(images), plain.ids)
