"""Trains the embedded depth network on phantom frames, whose depth is exact."""

from pathlib import Path

import numpy as np
import torch
from tools.pretrain.corpus import Corpus
from tools.pretrain.fitting import fit
from torch import Tensor

from mcpmix.core.optimisers import one_cycle
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.seeds import numpy_rng
from mcpmix.networks.blueprints import build_depth


def train_depth(
    corpus: Corpus,
    folder: Path,
    *,
    steps: int,
    batch_size: int = 16,
    learning_rate: float = 1e-3,
    progress: Progress = SILENT,
) -> None:
    """Train on relative inverse depth (near = 1), L1 on it and its differences; save to `folder/depth`."""
    torch.manual_seed(0)
    model, processor = build_depth()
    optimiser = torch.optim.AdamW(model.parameters(), learning_rate)

    def loss(index: int) -> Tensor:
        images, depth = depth_batch(corpus, index, batch_size)
        with torch.autocast("cpu", torch.bfloat16):
            predicted = model(images).predicted_depth
        return depth_loss(predicted.float(), depth)

    fit(
        loss,
        model,
        optimiser,
        one_cycle(optimiser, steps),
        steps=steps,
        checkpoint=folder / "depth.checkpoint",
        title="depth",
        progress=progress,
    )
    model.to(torch.float16).save_pretrained(folder / "depth")
    processor.save_pretrained(folder / "depth")


def depth_loss(predicted: Tensor, depth: Tensor, edges: float = 1.0) -> Tensor:
    """Mean absolute error of depth B,S,S plus `edges` times that of its differences."""
    error = predicted - depth
    return error.abs().mean() + edges * (error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean())


def depth_batch(corpus: Corpus, index: int, batch_size: int) -> tuple[Tensor, Tensor]:
    """Images B,3,S,S in [-1, 1] with brightness and contrast varied, and depth B,S,S in [0, 1]."""
    if corpus.depth is None:
        raise ValueError("this corpus has no depth")
    rng = numpy_rng("depth batch", index)
    chosen = np.sort(rng.choice(len(corpus), batch_size, replace=False))
    images = torch.from_numpy(corpus.images[chosen]).permute(0, 3, 1, 2).float() / 127.5 - 1
    depth = torch.from_numpy(corpus.depth[chosen]).float()
    contrast = torch.from_numpy(rng.uniform(0.8, 1.2, (batch_size, 3, 1, 1))).float()
    images = (images * contrast).clamp(-1, 1)
    return (images.flip(-1), depth.flip(-1)) if rng.random() < 0.5 else (images, depth)
