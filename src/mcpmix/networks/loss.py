"""Forward passes of one optimiser step, with batch statistics kept to real images."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_BatchNorm = nn.modules.batchnorm._BatchNorm

REAL = "real"


def has_batch_norm(network: nn.Module) -> bool:
    """Whether the network keeps running statistics of batches."""
    return any(isinstance(module, _BatchNorm) for module in network.modules())


def predict_terms(network: nn.Module, images: Sequence[Tensor], names: Sequence[str]) -> list[Tensor]:
    """Logits of each term of a step; a term has B',3,H,W images and a name.

    A network without batch norm takes all terms in one concatenated pass. With it, each term has its own
    pass, and only those named "real" move the running statistics: mixed images in the same batch cost
    accuracy even when their loss hardly counts. Where no term is real, as for Mixup, all of them move the
    statistics: a network that never saw any would be useless in evaluation.
    """
    if len(images) == 1:
        return [network(images[0])]
    if not has_batch_norm(network):
        return list(network(torch.cat(list(images))).split([len(part) for part in images]))
    logits = []
    for part, name in zip(images, names, strict=True):
        if name == REAL or REAL not in names:
            logits.append(network(part))
        else:
            with frozen_statistics(network):
                logits.append(network(part))
    return logits


@contextmanager
def frozen_statistics(network: nn.Module) -> Iterator[None]:
    """Batch norm uses the statistics of the batch and leaves the running ones alone."""
    layers = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    tracked = [(layer.momentum, layer.num_batches_tracked) for layer in layers]
    for layer in layers:
        layer.momentum = 0.0
        if layer.num_batches_tracked is not None:
            layer.num_batches_tracked = layer.num_batches_tracked.clone()
    try:
        yield
    finally:
        for layer, (momentum, count) in zip(layers, tracked, strict=True):
            layer.momentum, layer.num_batches_tracked = momentum, count


def input_gradient(network: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    """The gradient of the summed loss at images B,3,H,W with targets B,C,H,W.

    The network is in evaluation mode meanwhile, so that neither dropout nor batch statistics are touched,
    and the gradients of its parameters are neither computed nor changed.
    """
    training = network.training
    network.eval()
    try:
        probe = images.detach().requires_grad_()
        # Summed, not averaged: gradients of a mean over all pixels are too small for half precision.
        loss = segmentation_loss(network(probe), targets) * targets.numel()
        return torch.autograd.grad(loss, probe)[0]
    finally:
        network.train(training)


def probabilities(logits: Tensor) -> Tensor:
    """Chances of logits (B, C, H, W), like them: of lesion with one channel, else of each label."""
    return torch.sigmoid(logits.float()) if logits.shape[1] == 1 else torch.softmax(logits.float(), 1)


def segmentation_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of logits against hard or soft targets in [0, 1], alike in shape; 0-d.

    Binary with one channel; with several, one for each label, over the labels of a pixel.
    """
    if logits.ndim == 4 and logits.shape[1] > 1:
        return F.cross_entropy(logits.float(), targets)
    return F.binary_cross_entropy_with_logits(logits.float(), targets)
