"""Trains what needs labels that only the phantom has: networks for depth, for features, and for a segmenter.

Depth is exact there, and each frame has words for its appearance. No lesion is labelled for any of them.
"""

import math
from pathlib import Path

import numpy as np
import torch
from tools.pretrain.blueprints import build_depth
from torch import Tensor, nn
from torch.nn import functional as F

from mcpmix.core.pixels import as_images
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.seeds import numpy_rng
from mcpmix.core.training import fit, one_cycle
from mcpmix.data.augment import normalise
from mcpmix.networks.features import SmallFeatures, save_features
from mcpmix.networks.segformer import Segformer


def train_depth(
    images: np.ndarray,
    depths: np.ndarray,
    folder: Path,
    *,
    steps: int,
    batch_size: int = 16,
    progress: Progress = SILENT,
) -> None:
    """Train on relative inverse depth (near = 1), L1 on it and its differences; save to `folder/depth`."""
    torch.manual_seed(0)
    model, processor = build_depth()
    optimiser = torch.optim.AdamW(model.parameters(), 1e-3)

    def loss(index: int) -> Tensor:
        batch, depth = depth_batch(images, depths, index, batch_size)
        with torch.autocast("cpu", torch.bfloat16):
            predicted = model(batch).predicted_depth
        return depth_loss(predicted.float(), depth)

    fit(loss, model, optimiser, one_cycle, steps, folder / "depth.checkpoint", progress=progress)
    model.to(torch.float16).save_pretrained(folder / "depth")
    processor.save_pretrained(folder / "depth")


def train_segmenter(
    images: np.ndarray,
    depths: np.ndarray,
    folder: Path,
    *,
    steps: int,
    batch_size: int = 16,
    progress: Progress = SILENT,
) -> None:
    """Train SegFormer nano on relative inverse depth (near = 1); save it as a start, to `folder/segmenter`.

    From scratch, 24 annotated frames leave this network on a plateau for hundreds of steps, where it answers
    "no lesion" everywhere; which initial weights get off it is chance. What ImageNet is for larger networks,
    depth is here.
    """
    torch.manual_seed(0)
    model = Segformer("nano")
    optimiser = torch.optim.AdamW(model.parameters(), 2e-3)

    def loss(index: int) -> Tensor:
        batch, depth = depth_batch(images, depths, index, batch_size)
        # Differences of neighbours count twice: a lesion is a small step in depth.
        return depth_loss(model(normalise((batch + 1) / 2))[:, 0], depth, edges=2.0)

    fit(loss, model, optimiser, one_cycle, steps, folder / "segmenter.checkpoint", progress=progress)
    state = {  # without the last layer, which each task learns anew
        name: value.detach().to(torch.float16)
        for name, value in model.network.state_dict().items()
        if not name.startswith("decode_head.classifier.")
    }
    model.network.save_pretrained(folder / "segmenter", state_dict=state)


def depth_loss(predicted: Tensor, depth: Tensor, edges: float = 1.0) -> Tensor:
    """Mean absolute error of depth B,S,S plus `edges` times that of its differences."""
    error = predicted - depth
    return error.abs().mean() + edges * (error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean())


def depth_batch(images: np.ndarray, depths: np.ndarray, index: int, batch_size: int) -> tuple[Tensor, Tensor]:
    """Images B,3,S,S in [-1, 1] with brightness and contrast varied, and depth B,S,S in [0, 1]."""
    rng = numpy_rng("depth batch", index)
    chosen = np.sort(rng.choice(len(images), batch_size, replace=False))
    batch = torch.from_numpy(images[chosen]).permute(0, 3, 1, 2).float() / 127.5 - 1
    depth = torch.from_numpy(depths[chosen]).float()
    contrast = torch.from_numpy(rng.uniform(0.8, 1.2, (batch_size, 3, 1, 1))).float()
    batch = (batch * contrast).clamp(-1, 1)
    return (batch.flip(-1), depth.flip(-1)) if rng.random() < 0.5 else (batch, depth)


def train_features(
    images: np.ndarray,
    words: list[tuple[str, ...]],
    folder: Path,
    *,
    steps: int,
    batch_size: int = 32,
    progress: Progress = SILENT,
) -> None:
    """Learn to name the appearance words of images, with a linear head that is thrown away."""
    torch.manual_seed(0)
    labels = word_labels(words)
    model = SmallFeatures()
    both = nn.Sequential(model, nn.Linear(model.channels[-1], labels.shape[1]))
    optimiser = torch.optim.AdamW(both.parameters(), 2e-3)

    def loss(index: int) -> Tensor:
        rng = numpy_rng("feature batch", index)
        chosen = np.sort(rng.choice(len(images), batch_size, replace=False))
        batch = as_images(images[chosen])
        batch = batch.flip(-1) if rng.random() < 0.5 else batch
        return F.binary_cross_entropy_with_logits(both(batch), labels[chosen])

    fit(
        loss,
        both,
        optimiser,
        one_cycle,
        steps,
        folder / "features.checkpoint",
        largest_gradient=math.inf,
        progress=progress,
    )
    save_features(model, folder / "features")


def word_labels(words: list[tuple[str, ...]]) -> Tensor:
    """N,V zeros and ones: which of all words each image has."""
    vocabulary = sorted({word for own in words for word in own})
    labels = torch.zeros(len(words), len(vocabulary))
    for row, own in enumerate(words):
        labels[row, [vocabulary.index(word) for word in own]] = 1
    return labels
